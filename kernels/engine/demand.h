// Who needs a chunk now. Planned arrivals stand back meanwhile (arrivals.h).
//
// Covers: counting them, and telling who waits for that to end. Leaves: serving them (supply.h). Requires: the lock.
#pragma once

#include <condition_variable>
#include <new>

#include "engine/ground.h"

namespace vt {

class Demand {
 public:
  // For as long as it lives, somebody needs a chunk. The lock may be released and taken again meanwhile.
  class Taking {
   public:
    explicit Taking(Demand& demand) : demand_(demand) { ++demand_.taking_; }
    ~Taking() {
      if (--demand_.taking_ == 0 && demand_.awaited_) demand_.wake();
    }
    Taking(const Taking&) = delete;
    Taking& operator=(const Taking&) = delete;

   private:
    Demand& demand_;
  };

  bool any() const noexcept { return taking_ > 0; }
  // Stands until wake(), or if `awaited` until nobody needs a chunk any more; also without a reason.
  void wait(Lock& lock, bool awaited) {
    awaited_ = awaited;
    changed_.wait(lock);
    awaited_ = false;
  }
  void wake() noexcept { changed_.notify_one(); }
  // In a forked child the other threads do not exist, and what they waited on is not defined.
  void forget_threads() {
    taking_ = 0;
    awaited_ = false;
    new (&changed_) std::condition_variable;
  }

 private:
  std::size_t taking_ = 0;
  bool awaited_ = false;  // somebody waits for the end of that
  std::condition_variable changed_;
};

}  // namespace vt
