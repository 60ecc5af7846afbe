// Who draws random numbers at the moment.
//
// An operation that draws can be run again from the state its generator had when it began, if nobody else drew meanwhile: threads
// that draw at the same time are told from each other by counting.
//
// Covers: every operation that draws, on every thread that is observed. Leaves: generators (torch_random.h).
#pragma once

#include <cstdint>

namespace vt {

class Draws {
 public:
  // The calling thread begins and ends to draw.
  static void begin() noexcept;
  static void end() noexcept;

  // Whether the other threads have drawn nothing since it was made.
  class Alone {
   public:
    Alone() noexcept : others_(begun_by_others()), quiet_(others_ == ended_by_others()) {}
    bool so_far() const noexcept { return quiet_ && begun_by_others() == others_; }

   private:
    std::uint64_t others_;
    bool quiet_;
  };

 private:
  static std::uint64_t begun_by_others() noexcept;
  static std::uint64_t ended_by_others() noexcept;
};

}  // namespace vt
