#include "iteration/binding.h"

namespace vt {

void Binding::begin(std::span<Range* const> live) {
  living_.clear();
  for (Range* range : live) living_.push_back({{range, range->serial}, range->bytes});
  births_.clear();
  std::swap(nth_, before_);
  nth_.clear();
  births_ahead_ = 0;
}

void Binding::forget() {
  bound_.clear();
  planned_.clear();
  births_.clear();
  nth_.clear();
  before_.clear();
  living_.clear();
  births_ahead_ = 0;
}

bool Binding::recognize(Plan& plan) const {
  bool all = true;
  std::size_t begin = 0;
  for (Plan::Tensor& tensor : plan.tensors) {
    if (!tensor.lasting) continue;
    std::size_t i = begin;
    while (i < living_.size() && (recorder_.tensors()[i].previous != kNone || living_[i].bytes != tensor.bytes)) ++i;
    const bool found = i < living_.size();
    tensor.serial = found ? living_[i].bound.serial : 0;
    if (found) begin = i + 1;
    all = all && found;
  }
  return all;
}

void Binding::bind(const Plan& plan) {
  bound_.assign(plan.tensors.size(), {});
  planned_.assign(recorder_.tensors().size(), kNone);
  // Tensors that last, and tensors of the iteration before that outlive it, each by what is known of them.
  const auto by_serial = living_by_serial();
  std::unordered_map<std::uint32_t, std::uint32_t> by_birth;
  for (std::uint32_t i = 0; i < living_.size(); ++i) {
    const std::uint32_t previous = recorder_.tensors()[i].previous;
    if (previous < before_.size()) by_birth.emplace(before_[previous], i);
  }
  for (std::uint32_t t = 0; t < bound_.size(); ++t) {
    const Plan::Tensor& tensor = plan.tensors[t];
    if (tensor.lasting) {
      const auto found = by_serial.find(tensor.serial);
      if (found != by_serial.end()) bind(t, found->second, living_[found->second].bound);
    } else if (tensor.previous != kNone) {
      const auto found = by_birth.find(tensor.previous);
      if (found != by_birth.end() && living_[found->second].bytes == tensor.bytes) {
        bind(t, found->second, living_[found->second].bound);
      }
    }
  }
  births_ahead_ = 0;
  for (std::size_t k = 0; k < births_.size(); ++k) bind_birth(plan, k);
}

void Binding::rejoin(const Plan& plan, std::int64_t births_ahead, std::uint32_t since) {
  births_ahead_ = births_ahead;
  planned_.resize(recorder_.tensors().size(), kNone);
  for (std::size_t k = left_; k < births_.size(); ++k) {
    if (recorder_.tensors()[recorder_.births()[k]].born < static_cast<std::int32_t>(since)) {
      nth_[k] = kNone;
    } else {
      bind_birth(plan, k);
    }
  }
}

void Binding::bind_birth(const Plan& plan, std::size_t k) {
  nth_[k] = static_cast<std::uint32_t>(static_cast<std::int64_t>(k) + births_ahead_);
  if (nth_[k] < plan.births.size()) bind(plan.births[nth_[k]], recorder_.births()[k], births_[k]);
}

void Binding::bind(std::uint32_t tensor, std::uint32_t recorded, const Bound& bound) {
  bound_[tensor] = bound;
  if (recorded >= planned_.size()) planned_.resize(recorded + 1, kNone);
  planned_[recorded] = tensor;
}

void Binding::go_on() {
  planned_.assign(recorder_.tensors().size(), kNone);
  const auto by_serial = living_by_serial();
  for (std::uint32_t t = 0; t < bound_.size(); ++t) {
    if (bound_[t].range == nullptr) continue;
    const auto found = by_serial.find(bound_[t].serial);
    if (found != by_serial.end()) planned_[found->second] = t;
  }
}

std::unordered_map<std::uint64_t, std::uint32_t> Binding::living_by_serial() const {
  std::unordered_map<std::uint64_t, std::uint32_t> index;
  for (std::uint32_t i = 0; i < living_.size(); ++i) index.emplace(living_[i].bound.serial, i);
  return index;
}

void Binding::fill(const Plan& plan, std::span<const Plan::Part> parts, std::vector<PlannedMove>& moves) const {
  moves.clear();
  for (const Plan::Part& part : parts) {
    const Bound& bound = bound_[part.tensor];
    if (bound.range == nullptr) continue;
    // Until backward, what is only saved for it (the mask of a dropout) would pass for a workspace (OrderedMoves::may_leave).
    const Plan::Tensor& tensor = plan.tensors[part.tensor];
    moves.push_back({bound.range, bound.serial, part.first, part.last, tensor.used && tensor.is_birth()});
  }
}

std::vector<Seating::Present> Binding::present() const {
  std::vector<Seating::Present> found;
  for (std::uint32_t t = 0; t < bound_.size(); ++t) {
    if (bound_[t].range != nullptr) found.push_back({t, bound_[t].range, bound_[t].serial});
  }
  return found;
}

std::uint32_t Binding::born(Range& range, const Plan* plan) {
  const std::size_t k = births_.size();
  births_.push_back({&range, range.serial});
  nth_.push_back(static_cast<std::uint32_t>(static_cast<std::int64_t>(k) + births_ahead_));
  if (plan == nullptr) return kNone;
  bind_birth(*plan, k);
  return nth_[k] < plan->births.size() ? plan->births[nth_[k]] : kNone;
}

std::uint32_t Binding::died(const Range& range) noexcept {
  const std::uint32_t recorded = recorder_.tensor_of(range);
  if (recorded >= planned_.size()) return kNone;
  const std::uint32_t tensor = planned_[recorded];
  if (tensor == kNone || bound_[tensor].serial != range.serial) return kNone;
  bound_[tensor] = {};
  return tensor;
}

}  // namespace vt
