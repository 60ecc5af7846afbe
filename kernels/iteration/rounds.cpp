#include "iteration/rounds.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vt {

namespace {

constexpr std::size_t kMostCandidates = 512;  // a layer or two would do

// Tensors that came back again and again, and live.
struct Returning {
  explicit Returning(const Recorder& log) : times(log.tensors().size(), 0) {
    for (const auto& use : log.uses()) times[use.tensor] += use.away > 0;
    for (std::size_t t = 0; t < times.size(); ++t) {
      if (log.tensors()[t].died >= 0 || times[t] < 2) times[t] = 0;
      if (times[t] != 0) bytes += log.tensors()[t].bytes;
    }
  }
  bool has(std::uint32_t tensor) const noexcept { return times[tensor] != 0; }

  std::vector<std::uint32_t> times;  // by tensor; 0: it is none
  Bytes bytes = 0;                   // of all
};

// By row, bytes alive as it begins that were made and freed within the log.
std::vector<Bytes> passing_bytes(const Recorder& log) {
  std::vector<Bytes> alive(log.rows() + 1, 0);  // differences first: unsigned, they add up modulo 2^64
  for (const auto& tensor : log.tensors()) {
    if (tensor.born < 0 || tensor.died < 0) continue;
    alive[static_cast<std::size_t>(tensor.born) + 1] += tensor.bytes;
    alive[static_cast<std::size_t>(tensor.died) + 1] -= tensor.bytes;
  }
  for (std::size_t r = 1; r < alive.size(); ++r) alive[r] += alive[r - 1];
  return alive;
}

// Which rows begin within another operation.
std::vector<bool> nested_rows(const Recorder& log) {
  std::vector<bool> nested(log.rows());
  std::uint32_t reached = 0;
  for (std::uint32_t r = 0; r < log.rows(); ++r) {
    nested[r] = r > 0 && reached >= r;
    reached = std::max(reached, log.all_rows()[r].last);
  }
  return nested;
}

}  // namespace

std::optional<Mark> find_mark(const Recorder& log) {
  const Returning returning(log);
  if (returning.bytes == 0) return std::nullopt;
  const std::vector<bool> nested = nested_rows(log);
  // Their uses, in order; by use, the one before it of the same tensor; by operation and tensor, where they are.
  struct Used {
    std::uint32_t row, tensor;
    std::size_t before;
  };
  constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
  std::vector<Used> used;
  std::vector<std::size_t> newest(log.tensors().size(), kNever);
  std::unordered_map<std::uint64_t, std::size_t> number;
  std::vector<std::vector<std::size_t>> places;  // by candidate, in the order in which they first came
  for (const auto& use : log.uses()) {
    if (!returning.has(use.tensor)) continue;
    used.push_back({use.row, use.tensor, std::exchange(newest[use.tensor], used.size())});
    if (nested[use.row]) continue;
    const auto [found, fresh] = number.emplace(Recorder::mix(log.all_rows()[use.row].op, use.tensor), places.size());
    if (fresh && places.size() == kMostCandidates) {
      number.erase(found);
      continue;
    }
    if (fresh) places.emplace_back();
    std::vector<std::size_t>& mine = places[found->second];
    if (mine.empty() || used[mine.back()].row != use.row) mine.push_back(used.size() - 1);
  }
  const auto covers = [&](std::size_t from, std::size_t to) {
    Bytes bytes = 0;
    for (std::size_t k = from; k < to; ++k) {
      const bool first = used[k].before == kNever || used[k].before < from;
      if (first) bytes += log.tensors()[used[k].tensor].bytes;
    }
    return 2 * bytes >= returning.bytes;
  };
  const std::vector<Bytes> passing = passing_bytes(log);
  std::optional<Mark> best;
  Bytes least = 0;
  for (const std::vector<std::size_t>& mine : places) {
    if (mine.size() < 3) continue;
    const std::size_t a = mine[mine.size() - 3], b = mine[mine.size() - 2], c = mine.back();
    const std::uint32_t one = used[b].row - used[a].row, other = used[c].row - used[b].row;
    if (std::max(one, other) > 2 * std::min(one, other) || !covers(a, b) || !covers(b, c)) continue;
    const Bytes alive = std::max(passing[used[a].row], passing[used[b].row]);
    if (best && alive >= least) continue;
    least = alive;
    best = Mark{log.all_rows()[used[c].row].op, log.tensors()[used[c].tensor].serial};
  }
  return best;
}

// Whether marks do.
bool Rounds::counts(const Recorder& log) const noexcept {
  return on_ && (!heard_ || (usual_ > 0 && since_ + log.rows() > 2 * usual_));
}

bool Rounds::missed(const Recorder& log) {
  if (++misses_ < look_at_ || !counts(log) || log.rows() < 2 * round_) return false;
  look_at_ = 2 * misses_;
  const std::optional<Mark> found = find_mark(log);
  if (found) mark_ = found;
  return found.has_value();
}

bool Rounds::begins(const Recorder& log, OpId op, std::span<const Use> uses) const noexcept {
  if (!mark_ || mark_->op != op || !counts(log)) return false;
  return std::any_of(uses.begin(), uses.end(), [&](const Use& use) { return use.range->serial == mark_->serial; });
}

void Rounds::ended(const Recorder& log, bool told) noexcept {
  if (told && heard_ && since_ == 0) usual_ = std::max<std::size_t>(log.rows(), usual_ - usual_ / 8);
  if (!told) round_ = log.rows();
  since_ = told ? 0 : since_ + log.rows();
  heard_ = heard_ || told;
  misses_ = 0;
  look_at_ = kFirstLook;
}

}  // namespace vt
