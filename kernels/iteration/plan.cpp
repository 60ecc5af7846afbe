#include "iteration/plan.h"

namespace vt {

void Plan::set_rows(const std::vector<OpId>& operations, const std::vector<std::uint32_t>& births_in) {
  std::vector<StepId> each;
  std::vector<std::uint32_t> births_before;
  hash.clear();
  final_hash = Recorder::kSeed;
  std::uint32_t born = 0;
  for (std::size_t row = 0; row < operations.size(); ++row) {
    hash.push_back(final_hash = Recorder::mix(final_hash, operations[row]));
    each.push_back(Steps::step(operations[row], row == 0 ? 0 : births_in[row - 1]));
    births_before.push_back(born);
    for (std::uint32_t k = 0; k < births_in[row]; ++k) final_hash = Recorder::mix(final_hash, Recorder::kBirth);
    born += births_in[row];
  }
  steps = Steps(std::move(each), std::move(births_before));
}

}  // namespace vt
