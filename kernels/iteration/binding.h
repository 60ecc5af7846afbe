// Which tensor of a plan is which range, in the iteration that is under way.
//
// Covers: tensors that last, by what is known of them; those the iteration allocates, by their order; what became of them.
// Leaves: which plan, and whether it is the right one (plan_runner.h).
// Thread-safety: none; recording.h guards it.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "iteration/plan.h"

namespace vt {

class Binding {
 public:
  // `recorder` logs the same iterations, and goes before: it has begun what begins here, and knows what is born.
  explicit Binding(const Recorder& recorder) : recorder_(recorder) {}

  // An iteration begins: `live` are the tensors that exist now, oldest first. The plan that is bound may go_on().
  void begin(std::span<Range* const> live);
  // The plan goes on into the next iteration, where the recorder numbers tensors anew.
  void go_on();
  // Which tensors the lasting ones of a plan from a file are: the same program makes the same ones in the same order. What the
  // iteration before made is none of them. Nothing is known of what the first one made (gradients, states of the optimizer), so
  // that what is found after it is a guess. Returns whether all were found.
  bool recognize(Plan& plan) const;
  // This plan from now on, also for what was allocated before.
  void bind(const Plan& plan);
  // The plan is left: what is allocated from now on is none of its tensors.
  void leave() noexcept { left_ = births_.size(); }
  // The same plan again, whose allocations are so many further on, also for what was allocated since a row of the iteration.
  void rejoin(const Plan& plan, std::int64_t births_ahead, std::uint32_t since);
  // Returns which tensor of the plan it is; kNone without one.
  std::uint32_t born(Range& range, const Plan* plan);
  // The same; it is none of them any more.
  std::uint32_t died(const Range& range) noexcept;
  void forget();
  // Tensors of the plan that are there.
  std::vector<Seating::Present> present() const;

  // What is there of these parts of the plan.
  void fill(const Plan& plan, std::span<const Plan::Part> parts, std::vector<PlannedMove>& moves) const;

 private:
  // Ranges are records that are used again: the serial tells whether it still is the same tensor.
  struct Bound {
    Range* range = nullptr;
    std::uint64_t serial = 0;
  };
  struct Living {
    Bound bound;
    Bytes bytes;
  };

  void bind(std::uint32_t tensor, std::uint32_t recorded, const Bound& bound);
  void bind_birth(const Plan& plan, std::size_t k);
  std::unordered_map<std::uint64_t, std::uint32_t> living_by_serial() const;

  const Recorder& recorder_;
  std::vector<Bound> bound_;            // by tensor of the plan
  std::vector<std::uint32_t> planned_;  // by tensor of the recorder: that of the plan, or kNone
  std::vector<Bound> births_;           // this iteration's allocations
  std::vector<std::uint32_t> nth_;      // which of the plan's each is
  std::vector<std::uint32_t> before_;   // and each of the iteration before was
  std::int64_t births_ahead_ = 0;
  std::size_t left_ = 0;
  std::vector<Living> living_;          // at its beginning, oldest first: the first of the recorder's tensors
};

}  // namespace vt
