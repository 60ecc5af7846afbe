// Recorded iterations once more, on a modelled GPU: how long a step would take there, with and without a plan.
//
// Covers: asking the engine and the plan runner for what an iteration of a trace asked for, as the observer and the allocator do.
// Leaves: calls that are run again (calls.h), the device (testing/driver_model.h), traces (lgm/), what is compared
// (tests/core/test_modelled_gpu.py). Knows nothing of torch, nor of Python.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "iteration/plan_runner.h"
#include "replay/calls.h"

namespace vt {

// A trace, as far as it matters here. What each number is: lgm/records/model.py.
struct ReplayTrace {
  struct Row {
    std::string name;
    std::uint64_t ns;
    std::uint32_t last;
  };
  struct Tensor {
    Bytes bytes;
    std::int64_t born, died;
  };
  struct Use {
    std::size_t row, tensor;
    std::uint32_t first, last;
    bool write;
  };
  struct Call {
    std::uint32_t first, last;
    bool fills;
  };
  Bytes chunk_bytes = 0;
  std::vector<Row> rows;
  std::vector<Tensor> tensors;
  std::vector<Use> uses;
  std::vector<Call> calls;  // those that can be run again
};

class Replay {
 public:
  Replay(const ReplayTrace& trace, std::size_t budget_chunks, const ModelCosts& costs, std::uint64_t launch_ns);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Seconds an iteration takes, to the end of all that was asked of the device.
  double iteration();
  // Whether a plan may be made of the one that ended.
  bool boundary() { return runner_.boundary(*engine_, false, Teller::somebody) == Finding::telling; }
  PlanRunner& runner() noexcept { return runner_; }
  Snapshot snapshot() const { return engine_->inspect().snapshot(); }

 private:
  struct Row {
    OpId op;
    std::uint64_t ns = 0;
    std::vector<std::size_t> births = {}, deaths = {};
    std::vector<ReplayTrace::Use> uses = {};
    std::vector<std::uint32_t> ends = {};  // rows whose operations end with this one
    std::optional<std::size_t> call = {};  // that begins with it
  };

  void read(const ReplayTrace& trace);
  void add_call(const ReplayTrace& trace, const ReplayTrace::Call& known);
  Range* allocate(std::size_t tensor, bool pinned);
  void free(Range*& range, bool keep);
  void replay(const Row& row);
  void begin(const ReplayCall& call);
  void end();

  const std::uint64_t launch_ns_;
  std::vector<Row> rows_;
  std::vector<ReplayCall> calls_;  // those that can be run again
  std::vector<Bytes> bytes_;
  ModelDriver* device_ = nullptr;  // the engine's
  std::unique_ptr<Engine> engine_;
  Lane stream_ = Lane::none;
  PlanRunner runner_;
  std::vector<Range*> live_;       // by tensor; nullptr: not alive
  std::uint64_t begun_ = 0;
  const ReplayCall* begun_call_ = nullptr;
  std::shared_ptr<Step> step_;     // of it
};

}  // namespace vt
