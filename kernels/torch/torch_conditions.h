// What besides its arguments decides the bits of an operation's result: torch's settings, of the thread and of the process.
//
// Covers: keeping them when an operation is seen, setting them while it runs again. Those of the process other threads meet, too,
// meanwhile: where a program changes them while several of its threads compute, that can be seen (docs/again.md).
// Leaves: the dispatcher's state, which is the same for all that is run again (torch_remaker.cpp).
#pragma once

#include <array>
#include <cstdint>

namespace vt {

class Conditions {
 public:
  static constexpr std::size_t kMost = 28;

  // Those that hold now, on this thread.
  static Conditions now();
  // Whether floats are rounded and kept as every thread begins with. If not, what OpenMP's threads do depends on which thread
  // made them, and when (torch.set_flush_denormal).
  static bool floats_are_usual();
  // Whether those of the process are not the program's now, as somebody runs something again.
  static bool are_set_aside() noexcept;

  // Sets them, for as long as it lives, where they are others. Waits while they are set to something else, but not for ever: who
  // has set them may be waiting for what this one makes.
  class Guard {
   public:
    explicit Guard(const Conditions& wanted);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    const Conditions& wanted_;
    std::array<std::int64_t, kMost> of_thread_, of_process_;  // as they were
    bool over_ = false;                                       // others' of the process, which come back
  };

 private:
  std::array<std::int64_t, kMost> values_{};
};

}  // namespace vt
