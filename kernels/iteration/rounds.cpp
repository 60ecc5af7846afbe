#include "iteration/rounds.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vt {

namespace {

constexpr std::size_t kMostTried = 512;
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

// Parts of tensors that came back again and again, and live; and their uses, in order. (Parts: layers may lie in one tensor.)
struct Returning {
  struct Piece {
    std::uint32_t tensor, first, last;
    std::uint32_t times = 0;       // it was away
    std::size_t newest = kNever;   // use
  };
  struct Used {
    std::uint32_t row, piece;
    std::size_t before;  // the use of the same piece before it; kNever: none
  };

  explicit Returning(const Recorder& log) {
    const auto& tensors = log.tensors();
    std::unordered_map<std::uint64_t, std::uint32_t> number;
    const auto piece_of = [&](const Recorder::UseOf& use) {
      const std::uint64_t key = mix(mix(use.tensor, use.first), use.last);
      const auto [found, fresh] = number.try_emplace(key, static_cast<std::uint32_t>(pieces.size()));
      if (fresh) pieces.push_back({use.tensor, use.first, use.last});
      return found->second;
    };
    for (const auto& use : log.uses()) {
      if (tensors[use.tensor].died < 0) pieces[piece_of(use)].times += use.away > 0;
    }
    for (const Piece& piece : pieces) all_ += piece.times >= 2 ? piece.last - piece.first : 0;
    if (all_ == 0) return;
    for (const auto& use : log.uses()) {
      if (tensors[use.tensor].died >= 0) continue;
      const std::uint32_t piece = piece_of(use);
      if (pieces[piece].times >= 2) used.push_back({use.row, piece, std::exchange(pieces[piece].newest, used.size())});
    }
  }

  // Whether half of them is used in [from, to).
  bool half_used(std::size_t from, std::size_t to) const {
    std::size_t vtensors = 0;
    for (std::size_t k = from; k < to; ++k) {
      const bool first = used[k].before == kNever || used[k].before < from;
      if (first) vtensors += pieces[used[k].piece].last - pieces[used[k].piece].first;
    }
    return 2 * vtensors >= all_;
  }

  std::vector<Piece> pieces;
  std::vector<Used> used;

 private:
  std::size_t all_ = 0;  // vTensors
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

// An operation on one of them, again and again.
struct Recurring {
  std::size_t first;                    // use
  std::array<std::size_t, 3> last = {};  // the newest, oldest first
  std::size_t times = 0;
  Bytes alive = 0;  // at the first two of those, of what is made in a round
};

std::vector<Recurring> recurring(const Recorder& log, const Returning& returning) {
  const std::vector<bool> nested = nested_rows(log);
  const auto& used = returning.used;
  std::unordered_map<std::uint64_t, Recurring> known;
  for (std::size_t k = 0; k < used.size(); ++k) {
    if (nested[used[k].row]) continue;
    const std::uint64_t key = mix(log.all_rows()[used[k].row].op, used[k].piece);
    Recurring& one = known.try_emplace(key, Recurring{k}).first->second;
    if (one.times > 0 && used[one.last[2]].row == used[k].row) continue;  // twice in one operation
    one.last = {one.last[1], one.last[2], k};
    ++one.times;
  }
  const std::vector<Bytes> passing = passing_bytes(log);
  std::vector<Recurring> found;
  for (auto& [key, one] : known) {
    if (one.times < one.last.size()) continue;
    one.alive = std::max(passing[used[one.last[0]].row], passing[used[one.last[1]].row]);
    found.push_back(one);
  }
  std::sort(found.begin(), found.end(),
            [](const Recurring& a, const Recurring& b) { return std::pair(a.alive, a.first) < std::pair(b.alive, b.first); });
  if (found.size() > kMostTried) found.resize(kMostTried);
  return found;
}

}  // namespace

std::optional<Mark> find_mark(const Recorder& log) {
  const Returning returning(log);
  const auto& used = returning.used;
  for (const Recurring& one : recurring(log, returning)) {
    const auto [a, b, c] = one.last;
    const std::uint32_t rows = used[b].row - used[a].row, again = used[c].row - used[b].row;
    const bool alike = std::max(rows, again) <= 2 * std::min(rows, again);
    if (!alike || !returning.half_used(a, b) || !returning.half_used(b, c)) continue;
    const Returning::Piece& piece = returning.pieces[used[c].piece];
    const std::uint64_t serial = log.tensors()[piece.tensor].serial;
    return Mark{log.all_rows()[used[c].row].op, serial, piece.first, piece.last, std::min(rows, again)};
  }
  return std::nullopt;
}

void Rounds::begin() noexcept {
  misses_ = 0;
  look_at_ = first_look_;
}

// Whether marks do.
bool Rounds::counts(const Recorder& log) const noexcept {
  return on_ && (!heard_ || since_ + log.rows() > (usual_ > 0 ? 2 * usual_ : kLong));
}

bool Rounds::found_after_miss(const Recorder& log) {
  if (++misses_ < look_at_ || !counts(log) || log.rows() < 2 * round_) return false;
  look_at_ = 2 * misses_;
  const std::optional<Mark> found = find_mark(log);
  if (!found) return false;
  mark_ = found;
  credit_ = kCredit;
  installed_ = std::nullopt;
  return true;
}

bool Rounds::begins(const Recorder& log, OpId op, std::span<const Use> uses) const noexcept {
  if (!mark_ || mark_->op != op || 2 * log.rows() < mark_->rows || !counts(log)) return false;
  return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    return use.range->serial == mark_->serial && use.first == mark_->first && use.last == mark_->last;
  });
}

void Rounds::judge(bool followed, std::uint64_t installed) noexcept {
  if (!installed_) installed_ = installed;
  if (installed == *installed_) {
    reactive_ = misses_;
    return;
  }
  const bool helps = followed && 4 * misses_ <= 3 * reactive_;
  credit_ = helps ? std::min(credit_ + 1, kCredit) : credit_ - 1;
  if (!mark_ || credit_ > 0) return;
  mark_ = std::nullopt;
  first_look_ = std::min(first_look_ * 64, std::size_t{1} << 30);
  begin();
}

void Rounds::ended(const Recorder& log, bool told, bool whole) noexcept {
  since_ += log.rows();
  if (told) {
    if (whole && whole_) usual_ = std::max(std::min(since_, std::exchange(before_, since_)), usual_ - usual_ / 8);
    heard_ = whole_ = true;
    since_ = 0;
  } else {
    round_ = log.rows();
    whole_ = whole_ && whole;
  }
  begin();
}

}  // namespace vt
