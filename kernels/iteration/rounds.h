// Where iterations end that nobody tells of: batches of an evaluation or an inference, tokens of a generation.
//
// A loop whose tensors do not all fit brings the same ones back in each round. One operation on one of them, which comes once
// a round, is the mark: an iteration ends before it.
//
// Covers: when it is worth looking for a mark, finding one, knowing it again.
// Leaves: what happens there (plan_runner.h), who does tell (vtensor/planning/marker.py): then no mark counts, unless far more
// was done since than such an iteration does, as in an evaluation between two epochs.
// Thread-safety: none; recording.h guards it.
#pragma once

#include <optional>
#include <span>

#include "iteration/recorder.h"

namespace vt {

// This operation, with vTensors [first, last) of this tensor.
struct Mark {
  OpId op;
  std::uint64_t serial;
  std::uint32_t first, last;
  std::uint32_t rows;  // of a round
};

// A mark of the rounds in this log, at which as little as possible is alive that is made anew in each; nothing if there are not
// three alike at its end, in each of which half of what comes back again and again is used.
std::optional<Mark> find_mark(const Recorder& log);

class Rounds {
 public:
  // Whether to look for marks at all.
  void look(bool on) noexcept { on_ = on; }
  // A log begins in the midst of something.
  void begin() noexcept;
  // An operation of the iteration in this log found something away. Looks for a mark now and then; true if there is one now.
  bool found_after_miss(const Recorder& log);
  // Whether a round begins with this operation on these, and nobody told of as many rows.
  bool begins(const Recorder& log, OpId op, std::span<const Use> uses) const noexcept;
  // A round ends, of which a plan was or was not `followed` mostly; so many were ever installed. Where plans do not bring less
  // back the mark is given up. (That one is followed does not tell: operations may be the same, and tensors others.)
  void judge(bool followed, std::uint64_t installed) noexcept;
  // The iteration in this log ended: as somebody told, or as a round began. `whole`: nothing of it is missing.
  void ended(const Recorder& log, bool told, bool whole) noexcept;
  void forget() noexcept { *this = {}; }

 private:
  static constexpr std::size_t kFirstLook = 16;
  static constexpr int kCredit = 32;
  static constexpr std::size_t kLong = std::size_t{1} << 15;  // rows, where it is not known what is usual

  bool counts(const Recorder& log) const noexcept;

  bool on_ = false;
  std::optional<Mark> mark_;
  std::size_t first_look_ = kFirstLook;
  std::size_t misses_ = 0, look_at_ = kFirstLook;  // in this log; and when a mark is looked for
  int credit_ = 0;          // of the mark: so many more rounds in which a plan does not help, and it is given up
  std::optional<std::uint64_t> installed_ = {};  // when it was found
  std::size_t reactive_ = 0;                     // misses of the newest round before there was a plan
  std::size_t round_ = 0;   // rows of the newest
  bool heard_ = false;      // somebody told, at some time
  std::size_t since_ = 0;   // rows since then, of rounds that ended
  bool whole_ = false;      // since then
  std::size_t before_ = 0;  // rows between the last two times
  std::size_t usual_ = 0;   // rows that two of those in a row have; 0 while that is not known
};

}  // namespace vt
