// Whether a plan should be made once more, of an iteration that followed it.
//
// On an ordered device a row lasts until the next begins. Without a plan the host maps and moves in between, and where the device
// has done all it was asked for, rows last as long as the host takes: on an H100 those of GPT-2 added up to 209 ms of a step of
// 166, and its plan believed in a quarter more time to copy than there was. With a plan the host is ahead again. So the second
// iteration that follows one is timed, the fourth, the eighth ..., until one took what the plan was made with, or another plan
// was made of it.
//
// Covers: which, and how much is as good as the same. Leaves: timing (timing.h), making plans (vtensor/planning/maker.py).
// Thread-safety: none; recording.h guards it.
#pragma once

#include <bit>
#include <cstdint>

namespace vt {

class SecondLook {
 public:
  SecondLook() = default;
  // `computing_ns`: what the rows of the plan's iteration add up to; 0: nobody timed them. `followed`: it had a plan itself.
  SecondLook(std::uint64_t computing_ns, bool followed)
      : computing_ns_(computing_ns), needed_(computing_ns > 0 && !followed) {}

  // One followed the plan from end to end. Whether the next should be timed.
  bool is_due() noexcept { return needed_ && ++followed_ > 1 && std::has_single_bit(followed_); }
  // One did, and its rows add up to this. Whether a plan of it would know better.
  bool finds(std::uint64_t computing_ns) noexcept {
    const std::uint64_t off = computing_ns > computing_ns_ ? computing_ns - computing_ns_ : computing_ns_ - computing_ns;
    needed_ = needed_ && off > computing_ns_ / kSame;
    return needed_;
  }

 private:
  static constexpr std::uint64_t kSame = 20;  // parts of it; less is not worth leading all addresses to other chunks

  std::uint64_t computing_ns_ = 0;
  bool needed_ = false;
  std::uint32_t followed_ = 0;
};

}  // namespace vt
