// Leaving without a copy, and being recomputed.
//
// Covers: dropping a tensor whose content can be recomputed; bringing it back, one thread for each; what must be brought back
// before something is written or its address given away; tensors that the program freed and that recipes still read.
// Leaves: which content is made of which (recipes.h), running operations (Remaker), where chunks go (moves.h).
// Thread-safety: the front of it takes the engine's lock; what requires it says so.
#pragma once

#include <condition_variable>
#include <functional>

#include "engine/freed.h"
#include "engine/patience.h"
#include "recipes/recipes.h"

namespace vt {

// Runs what was seen. Any thread may ask, without a lock.
class Remaker {
 public:
  // The content that `made` holds is found by `take` while it lives. Stops the program if a step cannot be run.
  using Take = std::function<void(const Content& content, Range& made)>;
  virtual ~Remaker() = default;
  // Runs the steps in order. `aside`: by a thread of its own, as the caller stands in the middle of anything.
  virtual void run(const Recipes::Run& run, const Take& take, bool aside) = 0;
};

class Remake {
 public:
  Remake(std::mutex& mutex, Ground& ground, Moves& moves, Freed& freed)
      : mutex_(mutex), ground_(ground), moves_(moves), freed_(freed) {}

  // --- the front --------------------------------------------------------------------------------------------
  // Who runs steps, from now on. `verify`: nothing is dropped; what would be is put aside for take_doubted().
  void use(std::unique_ptr<Remaker> remaker, bool verify = false);
  bool doubts() const noexcept { return doubts_.load(std::memory_order_relaxed); }
  std::vector<PlannedMove> take_doubted();
  // Plans that copy nothing are made for so many chunks more than there are.
  void expect_shortfall(std::size_t chunks) noexcept { ground_.shortfall.store(chunks, std::memory_order_relaxed); }
  bool on() const noexcept { return on_.load(std::memory_order_relaxed); }
  // Whether what leaves without a plan is chosen by what making it again takes.
  bool weighs() const noexcept { return ground_.config.leaving != Leaving::copy; }
  // An operation begins that can be run again. nullptr if one of its sources may change unseen. What it overwrites cannot be made
  // again if others write it, too, before it ends: another part of it, in another thread.
  std::shared_ptr<Step> begin(std::unique_ptr<Operation> operation, std::span<Range* const> sources,
                              Range* overwritten = nullptr);
  // It ended, and these hold its results: none, if it cannot be run again. What was begun must be ended, as what it read knows of
  // it.
  void end(std::shared_ptr<Step> step, std::span<Range* const> results);
  // The content of a live tensor is about to be another. What was made of it is there first. `by`: the step that writes it.
  void before_write(Range& range, const Step* by = nullptr);
  // Runs what would make a live tensor's content, and lets it be compared with what is there. False if nothing makes it.
  bool check(Range& range, const Remaker::Take& compare);
  // Drops what of it can be.
  void drop(std::span<const PlannedMove> moves);
  // Brings them back, if they are dropped.
  void bring_back(std::span<const PlannedMove> moves);
  // An iteration begins.
  void begin_iteration();
  // Brings back all that is dropped, with no further drops until resume(). `forget`: and what was seen is forgotten.
  void suspend(bool forget);
  void resume();

  // --- what requires the lock -------------------------------------------------------------------------------
  // Makes tensors again; `all`: and dropped ones that are made by the way. Lets go of the lock.
  void bring(Lock& lock, std::span<Range* const> ranges, bool aside, bool all = false);
  // Whether it may leave without a copy, and what making it again would take: nothing if that is too much to say.
  bool may_drop(const Range& range) const;
  bool verifies() const noexcept { return verify_; }
  // Whether making has taken too much of the iteration.
  bool is_in_vain() noexcept { return patience_.is_over(ground_.counters.make_ns); }
  std::optional<std::uint64_t> making_ns(const Range& range) const { return recipes_.making_ns(range); }
  // What of vTensors [first, last) is not pinned leaves without a copy. nothing_leaves if nothing does. Pre: may_drop().
  // `worth_ns`: as Recipes::drop().
  Status leave(Range& range, std::uint32_t first, std::uint32_t last, std::optional<std::uint64_t> worth_ns = {});
  // A tensor may be written unseen from now on, or is: what was made of it is there first. Lets go of the lock.
  void lose_sight(Lock& lock, Range& range);
  // The program frees a tensor. True if what was dropped needs it: it lives on.
  bool outlives(Range& range);
  std::string validate() const { return recipes_.validate(); }

 private:
  void end_content(Lock& lock, Range& range, bool unseen);
  void perform(Lock& lock, Recipes::Run& run, const Remaker::Take& take, bool aside);
  void release_orphans();
  void await(Lock& lock);  // until some run has ended

  std::mutex& mutex_;
  Ground& ground_;
  Moves& moves_;
  Freed& freed_;
  Recipes recipes_;
  Patience patience_;
  std::unique_ptr<Remaker> remaker_;
  std::atomic<bool> on_{false};
  bool verify_ = false;
  std::atomic<bool> doubts_{false};
  std::vector<PlannedMove> doubted_;
  std::size_t suspended_ = 0;
  std::vector<Range*> dropped_;  // tensors of which something is
  std::vector<Range*> claimed_;  // being made by some thread
  std::vector<Range*> kept_;     // made before their source is written: one would leave for the other, for ever
  std::condition_variable made_;
};

}  // namespace vt
