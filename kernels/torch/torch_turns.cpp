#include "torch/torch_turns.h"

#include <ATen/ThreadLocalState.h>

namespace vt {

TorchState::TorchState() : state_(std::make_shared<at::ThreadLocalState>()) {}

TorchState TorchState::set() const {
  TorchState before;
  at::ThreadLocalState::setThreadLocalState(*state_);
  return before;
}

}  // namespace vt
