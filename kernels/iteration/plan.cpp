#include "iteration/plan.h"

#include <numeric>
#include <utility>

namespace vt {

Plan::ByRow::ByRow(std::vector<Part> parts, std::span<const std::uint32_t> rows, std::size_t planned_rows)
    : parts_(std::move(parts)), begin_(planned_rows + 1, 0) {
  for (const std::uint32_t row : rows) ++begin_[std::size_t{row} + 1];
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
}

void Plan::set_rows(const std::vector<OpId>& operations, const std::vector<std::uint32_t>& births_in) {
  std::vector<StepId> each;
  std::vector<std::uint32_t> births_before;
  hash.clear();
  final_hash = kHashSeed;
  std::uint32_t born = 0;
  for (std::size_t row = 0; row < operations.size(); ++row) {
    hash.push_back(final_hash = mix(final_hash, operations[row]));
    each.push_back(Steps::step(operations[row], row == 0 ? 0 : births_in[row - 1]));
    births_before.push_back(born);
    for (std::uint32_t k = 0; k < births_in[row]; ++k) final_hash = mix(final_hash, Recorder::kBirth);
    born += births_in[row];
  }
  steps = Steps(std::move(each), std::move(births_before));
}

}  // namespace vt
