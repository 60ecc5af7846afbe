// A plan of one iteration, as the runner follows it (plan_runner.h). What may be in it and what it means: lgm/records/model.py.
#pragma once

#include <vector>

#include "iteration/seating.h"
#include "iteration/recorder.h"
#include "iteration/second_look.h"
#include "iteration/steps.h"

namespace vt {

struct Plan {
  struct Part {
    std::uint32_t tensor, first, last;
  };
  std::vector<std::uint64_t> hash;            // [rows] the recorder's when the row has begun
  std::uint64_t final_hash = 0;               // and when the iteration ends
  Steps steps;                                // by row
  std::vector<std::uint32_t> out_at, in_at;   // [planned rows + 1] where each row's moves begin
  std::vector<Part> out, in;
  // Where a plan makes things again, it has more rows than the iteration: before each of those, one for each thing to be made.
  // All that is given by row is given by these.
  std::vector<std::uint32_t> at;              // [rows] which of them is a row of the iteration; empty: there are no others
  std::vector<std::uint32_t> drop_at, make_at;  // [planned rows + 1]
  std::vector<Part> drop, make;
  std::vector<std::uint8_t> sees;             // [rows] whether the operation that begins with it will be run again; empty: none
  std::vector<Part> away;                     // what is away when an iteration begins
  std::vector<std::uint32_t> births;          // tensors in order of allocation
  std::vector<Bytes> allocated;               // [births + 1] what all before take; the runner fills it in
  std::vector<std::uint8_t> keep;             // [tensors]
  std::vector<std::uint8_t> used;             // [tensors] an operation had it as an argument: it is no workspace
  Seating seating;                            // on ordered devices
  SecondLook second_look;                     // there, too
  std::vector<std::uint8_t> lasting;          // [tensors] alive when an iteration begins, and born in none
  std::vector<std::uint64_t> serial;          // [tensors] of lasting ones; 0: not known
  bool settled = true;                        // the serials will not change; false: the plan comes from a file
  std::vector<std::uint32_t> previous;        // [tensors] which allocation of the iteration before, or kNone
  std::vector<Bytes> bytes;                   // [tensors]

  // Its operations, and how many tensors each allocates: by these it is known.
  void set_rows(const std::vector<OpId>& operations, const std::vector<std::uint32_t>& births_in);
  // Whether the iteration itself allocates it.
  bool is_birth(std::uint32_t tensor) const noexcept { return lasting[tensor] == 0 && previous[tensor] == kNone; }
  std::uint32_t rows() const noexcept { return static_cast<std::uint32_t>(hash.size()); }
  // The planned row with which what belongs to a row begins: what is made for its operation comes before it.
  std::uint32_t begin_of(std::uint32_t row) const noexcept { return at.empty() || row == 0 ? row : at[row - 1] + 1; }
};

}  // namespace vt
