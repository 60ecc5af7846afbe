// Follows plans: starts the copies each row asks for, and notices when an iteration is not the one that was planned.
//
// Covers: the plans by the shape of their iteration, which tensor of a plan is which range, deviations, boundaries.
// Leaves: moving chunks (Engine::move_by_plan), making plans (lgm/, called from vtensor/planning.py).
//
// A plan knows the recorder's hash at each of its rows. One comparison a row tells whether the iteration still is the planned
// one. If not, another plan whose hash fits takes over (another batch size, say); if there is none, the rest of the iteration is
// the reactive policy's. At the next boundary the plan that was completed last is tried again (I4).
// Thread-safety: none; thread_state.h guards it.
#pragma once

#include <memory>
#include <utility>
#include <unordered_map>
#include <vector>

#include "iteration/recorder.h"

namespace vt {

struct Plan {
  struct Part {
    std::uint32_t tensor, first, last;
  };
  std::vector<std::uint64_t> hash;            // [rows] the recorder's when the row has begun
  std::uint64_t final_hash = 0;               // and when the iteration ends
  std::vector<std::uint32_t> out_at, in_at;   // [planned rows + 1] where each row's moves begin
  std::vector<Part> out, in;
  // Where a plan makes things again, it has more rows than the iteration: before each of those, one for each thing to be made. All
  // that is given by row is given by these.
  std::vector<std::uint32_t> at;              // [rows] which of them is a row of the iteration; empty: there are no others
  std::vector<std::uint32_t> drop_at, make_at;  // [planned rows + 1]
  std::vector<Part> drop, make;
  std::vector<std::uint8_t> sees;             // [rows] whether the operation that begins with it will be run again; empty: none
  std::vector<Part> away;                     // what is away when an iteration begins
  std::vector<std::uint32_t> births;          // tensors in order of allocation
  std::vector<std::uint8_t> keep;             // [tensors]
  std::vector<std::uint8_t> lasting;          // [tensors] alive when an iteration begins, and born in none
  std::vector<std::uint64_t> serial;          // [tensors] of lasting ones; 0: not known
  bool settled = true;                        // the serials will not change; false: the plan comes from a file
  std::vector<std::uint32_t> previous;        // [tensors] which allocation of the iteration before, or kNone
  std::vector<Bytes> bytes;                   // [tensors]

  std::uint32_t rows() const noexcept { return static_cast<std::uint32_t>(hash.size()); }
};

struct PlanCounters {
  std::uint64_t iterations = 0;  // boundaries so far
  std::uint64_t planned = 0;     // iterations that followed a plan from end to end
  std::uint64_t deviations = 0;  // iterations that left one
  std::uint32_t left_row = kNone;  // where the last of them did; kNone if it ended early
  OpId left_op = 0;                // and with which operation
  std::uint64_t installed = 0;
};

// What a boundary found out about the iteration it ended.
enum class Finding : std::uint8_t {
  nothing,   // it followed a plan, or has not been seen before
  repeated,  // the same shape as an earlier one, and no plan for it yet: worth analysing
};

class PlanRunner {
 public:
  static constexpr std::size_t kMostPlans = 8;

  // The calling thread ends an iteration of `engine` and begins the next.
  Finding boundary(Engine& engine);
  // A plan to be used from the next boundary on.
  void install(std::unique_ptr<Plan> plan);
  // All plans are forgotten at the next boundary (the budget changed).
  void forget_plans();
  // Forgets plans and records, now.
  void reset();

  // What the thread that runs iterations does (torch_observer.cpp, torch_bridge.cpp).
  bool recording() const noexcept { return recording_; }
  // `stream`: what the row is asked of, on an ordered device.
  std::uint32_t row(Engine& engine, OpId op, Ticket::Lane stream = Ticket::Lane::none);
  // Whether an operation that begins with this row will be run again.
  bool sees(std::uint32_t row) const noexcept { return followed_ && row < active_->sees.size() && active_->sees[row] != 0; }
  // Whether a plan may be made of the iteration, which should know what could be run again.
  bool asks() const noexcept { return !followed_; }
  // A call that began with this row ends. Returns what it took when an iteration was timed last, if that was one like this; else 0.
  std::uint64_t call(std::uint32_t first, Recorder::CallOf::Again again);
  // What must be made again before the row goes on; then go_on() must be called, and this again.
  std::vector<PlannedMove> take_due() { return std::exchange(due_, {}); }
  bool has_due() const noexcept { return !due_.empty(); }
  void go_on(Engine& engine);
  std::uint32_t rows() const noexcept { return recorder_.rows(); }
  void row_ends(std::uint32_t row) noexcept { recorder_.row_ends(row); }
  void use(Range& range, const Use& use) { recorder_.use(range, use); }
  void born(Range& range);
  // Whether the addresses should stay mapped.
  bool died(Range& range) noexcept;
  bool freed() const noexcept { return recorder_.freed(); }
  void stall(std::uint64_t ns) noexcept { recorder_.stall(ns); }

  // The iteration that the last boundary ended.
  const Recorder& last() const noexcept { return finished_; }
  PlanCounters counters() const noexcept { return counters_; }

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
  struct Seen {
    std::uint64_t hash;
    std::uint32_t times;
  };

  bool change_plan(Engine& engine, std::uint32_t row);
  void activate(Plan& plan);
  void recognize(Plan& plan) const;
  void bind(std::uint32_t tensor, std::uint32_t recorded, const Bound& bound);
  void bind_again();
  void deviate(Engine& engine, std::uint32_t row = kNone);
  std::unordered_map<std::uint64_t, std::uint32_t> living_by_serial() const;
  void fill(const std::vector<Plan::Part>& parts, std::size_t begin, std::size_t end, std::vector<PlannedMove>& moves) const;
  bool has_plan(std::uint64_t hash, std::uint32_t rows) const noexcept;

  Recorder recorder_;
  Recorder finished_;
  Recorder usual_;  // the newest that an ordered device timed, where somebody weighs by it
  bool recording_ = false;
  std::size_t timing_ = 0;                    // iterations of which an ordered device keeps the moments at which rows begin
  bool followed_ = false;                     // the whole iteration so far followed a plan
  std::vector<std::unique_ptr<Plan>> plans_;  // the one completed last at the end
  Plan* active_ = nullptr;
  std::uint32_t number_ = 0;                  // of the iteration; never one twice, as tags outlive sessions
  std::vector<Bound> bound_;                  // by tensor of the active plan
  std::vector<std::uint32_t> planned_;        // by tensor of the recorder: that of the active plan, or kNone
  std::vector<Bound> births_;                 // this iteration's allocations
  std::vector<Living> living_;                // at its beginning, oldest first: the first of the recorder's tensors
  std::uint32_t next_ = 0, until_ = 0;        // planned rows that are yet to be begun: [next_, until_)
  std::vector<PlannedMove> out_now_, in_now_, drop_now_, due_;
  std::vector<Seen> seen_;
  PlanCounters counters_;
  std::vector<std::unique_ptr<Plan>> incoming_;
  bool forget_ = false;
};

}  // namespace vt
