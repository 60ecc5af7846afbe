// The log of one training iteration: rows (operations), tensors, uses. See lgm/records/model.py for what becomes of it.
//
// Covers: what happened since the last boundary, as plain arrays; rolling hashes that name what the iteration does, and its
// shape.
// Leaves: what is done with it (plan_runner.h for following a plan, vtensor/planning/recordings.py for making a trace of it).
//
// A row begins when an operation first uses or allocates managed memory; operations that do neither leave no trace, so a
// `loss.item()` now and then changes nothing. An operation that allocates after something was freed in it goes on in another row:
// what it frees and what it then allocates need not be held at once. Time spent waiting in the engine is not part of a row.
// Thread-safety: none; recording.h guards it.
#pragma once

#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "memory/range.h"

namespace vt {

using OpId = std::uint64_t;  // hash of an operator's name and overload

// How far an iteration is from one that does the same, by what both allocate. More is worse than less: where it was planned
// less, moves are lacking, and otherwise some are too many.
inline double farness(Bytes allocated, Bytes planned) noexcept {
  if (planned == 0) return 0;
  const double ratio = static_cast<double>(allocated) / static_cast<double>(planned);
  return ratio > 1 ? 2 * (ratio - 1) : 1 - ratio;
}
constexpr double kNear = 0.2;  // nearer ones need no plan of their own

class Recorder {
 public:
  struct Row {
    OpId op;
    std::uint64_t begin_ns;  // since the iteration began, without stalls
    std::uint32_t last;      // the last row that began before this operation ended
  };
  struct Tensor {
    Bytes bytes;
    std::int32_t born;          // row, or -1: older than the iteration
    std::int32_t died;          // row, or -1: still alive
    std::uint32_t previous;     // which allocation of the iteration before it was, or kNone
    std::uint64_t serial;
  };
  struct UseOf {
    std::uint32_t row, tensor, first, last;
    bool write;
    std::uint32_t away;  // vTensors of it, more or less, that had to come back first
  };

  // Rows of one operation that torch itself cannot look into, with all that is nested in it.
  struct CallOf {
    enum class Again : std::uint8_t {
      no,
      yes,    // it was seen, and can be run again
      fills,  // and it does not read what it overwrites
    };
    std::uint32_t first, last;
    Again again;
  };

  struct Whole {
    std::uint64_t took_ns = 0;  // this very iteration, whatever times its rows have been given; 0: not known
    bool planned = false;       // it followed a plan from end to end
  };

  static constexpr std::size_t kMostRows = std::size_t{1} << 20;  // a longer "iteration" is not one

  // Iteration `number` begins (they count up): `live` are the tensors that exist now, oldest first, and the first of tensors().
  void begin(std::uint32_t number, std::span<Range* const> live);
  // The next row. Pre: not full.
  std::uint32_t row(OpId op);
  void row_ends(std::uint32_t row) noexcept;
  // Whether something of it was away.
  bool use(Range& range, const Use& use);
  void call(std::uint32_t first, CallOf::Again again) {
    if (first < rows_.size()) calls_.push_back({first, static_cast<std::uint32_t>(rows_.size() - 1), again});
  }
  void born(Range& range);
  void died(Range& range) noexcept;
  // Which of tensors() it is; kNone if it is of another iteration.
  std::uint32_t tensor_of(const Range& range) const noexcept {
    return range.tag.iteration == iteration_ ? range.tag.tensor : kNone;
  }
  // Time that is not computing: waiting for copies, moving chunks.
  void stall(std::uint64_t ns) noexcept { stalls_ += ns; }
  std::uint64_t stalls() const noexcept { return stalls_; }
  // As if it were that one: what the engine counted since the last boundary goes with the stalls of what ended there.
  void stalled_like(const Recorder& other) noexcept { stalls_ = other.stalls_; }
  // The length of the last row is known now.
  void end() noexcept { end_ns_ = now(); }
  // `timed`: times are those of the device, not only of a thread that asked it for work.
  void ended_as(bool timed, bool planned) noexcept {
    whole_ = {timed && !rows_.empty() ? end_ns_ - rows_.front().begin_ns : 0, planned};
  }
  // Rows began at these times, and the iteration ended at the last of them. False if it is not one more than there are rows.
  bool take_times(const std::vector<std::uint64_t>& begins) noexcept;
  // If `other` was the same iteration, and quicker, rows take as long as in that one: something else may have had the processor.
  void take_quicker_times(const Recorder& other) noexcept;

  // Whether something was freed since the last row began.
  bool freed() const noexcept { return freed_; }
  bool full() const noexcept { return rows_.size() >= kMostRows; }
  // Names what happened before the next row: operations, and which of them allocated how often. Batches of any size are the same.
  std::uint64_t hash() const noexcept { return hash_; }
  // And the sizes of what they allocated, by steps of a quarter octave.
  std::uint64_t shape() const noexcept { return mix(hash_, sizes_); }
  // All that was allocated.
  Bytes allocated() const noexcept { return allocated_; }
  std::uint32_t rows() const noexcept { return static_cast<std::uint32_t>(rows_.size()); }
  const std::vector<Row>& all_rows() const noexcept { return rows_; }
  const std::vector<Tensor>& tensors() const noexcept { return tensors_; }
  const std::vector<UseOf>& uses() const noexcept { return uses_; }
  const std::vector<CallOf>& calls() const noexcept { return calls_; }
  const std::vector<std::uint32_t>& births() const noexcept { return births_; }  // tensors in order of allocation
  std::uint64_t end_ns() const noexcept { return end_ns_; }
  const Whole& whole() const noexcept { return whole_; }

  static constexpr std::uint64_t kBirth = 1;  // mixed into the hash for each allocation

 private:
  std::uint64_t now() const noexcept;

  std::vector<Row> rows_;
  std::vector<Tensor> tensors_;
  std::vector<UseOf> uses_;
  std::vector<CallOf> calls_;
  std::vector<std::uint32_t> births_;
  std::uint32_t iteration_ = 0;
  std::uint64_t hash_ = kHashSeed;
  std::uint64_t sizes_ = kHashSeed;
  Bytes allocated_ = 0;
  std::uint64_t stalls_ = 0;
  std::uint64_t end_ns_ = 0;
  Whole whole_;
  bool freed_ = false;
  Clock::time_point began_{};
};

}  // namespace vt
