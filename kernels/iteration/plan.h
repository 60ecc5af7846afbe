// A plan of one iteration, as the runner follows it (plan_runner.h). What may be in it and what it means:
// lgm/placing/orders.py; which ranges its tensors are: vtensor/planning/plans.py.
#pragma once

#include <span>
#include <vector>

#include "iteration/seating.h"
#include "iteration/recorder.h"
#include "iteration/second_look.h"
#include "iteration/steps.h"

namespace vt {

struct Plan {
  // vTensors [first, last) of a tensor.
  struct Part {
    std::uint32_t tensor, first, last;
  };
  // What happens with each planned row.
  class ByRow {
   public:
    ByRow() = default;
    // Pre: of each part its row, in ascending order.
    ByRow(std::vector<Part> parts, std::span<const std::uint32_t> rows, std::size_t planned_rows);

    std::span<const Part> of(std::uint32_t row) const noexcept { return of(row, row + 1); }
    std::span<const Part> of(std::uint32_t from, std::uint32_t to) const noexcept {
      return parts_.empty() ? std::span<const Part>{} : std::span(parts_).subspan(begin_[from], begin_[to] - begin_[from]);
    }
    std::span<const Part> all() const noexcept { return parts_; }

   private:
    std::vector<Part> parts_;
    std::vector<std::uint32_t> begin_;  // [planned rows + 1]
  };
  struct Tensor {
    Bytes bytes = 0;
    std::uint64_t serial = 0;        // if it is lasting; 0: not known
    std::uint32_t previous = kNone;  // which allocation of the iteration before it is, or kNone
    bool lasting = false;            // alive when an iteration begins, and born in none
    bool keep = false;               // when it is freed its addresses should stay mapped
    bool used = false;               // an operation had it as an argument: it is no workspace

    // Whether the iteration itself allocates it.
    bool is_birth() const noexcept { return !lasting && previous == kNone; }
  };

  std::vector<Tensor> tensors;
  std::vector<std::uint32_t> births;          // tensors in order of allocation
  std::vector<Bytes> allocated;               // [births + 1] what all before take; filled in when it is installed
  std::vector<std::uint64_t> hash;            // [rows] the recorder's when the row has begun
  std::uint64_t final_hash = 0;               // and when the iteration ends
  Steps steps;                                // by row
  // Where a plan makes things again, it has more rows than the iteration: before each of those, one for each thing to be made.
  std::vector<std::uint32_t> at;              // [rows] which planned row each is; empty: there are no others
  ByRow out, in, drop, make;
  std::vector<std::uint8_t> sees;             // [rows] whether the operation that begins with it will be run again; empty: none
  std::vector<Part> away;                     // what is away when an iteration begins
  Seating seating;                            // on ordered devices
  SecondLook second_look;                     // there, too
  bool settled = true;                        // the serials will not change; false: the plan comes from a file

  // Its operations, and how many tensors each allocates: by these it is known.
  void set_rows(const std::vector<OpId>& operations, const std::vector<std::uint32_t>& births_in);
  std::uint32_t rows() const noexcept { return static_cast<std::uint32_t>(hash.size()); }
  // The planned row with which what belongs to a row begins: what is made for its operation comes before it.
  std::uint32_t begin_of(std::uint32_t row) const noexcept { return at.empty() || row == 0 ? row : at[row - 1] + 1; }
  // Whether anything happens with planned rows [from, to).
  bool acts(std::uint32_t from, std::uint32_t to) const noexcept {
    return !(out.of(from, to).empty() && in.of(from, to).empty() && drop.of(from, to).empty() && make.of(from, to).empty());
  }
};

}  // namespace vt
