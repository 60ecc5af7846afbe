// Threads that take turns at one program.
//
// Covers: torch's state of a thread (grad mode, autocast, dispatch, modes, hooks), taken from one and set on others.
// Leaves: whose turn it is (vtensor/harmony/turns/weave.py), what is recorded (iteration/thread_state.h).
#pragma once

#include <memory>

namespace at {
class ThreadLocalState;
}

namespace vt {

class TorchState {
 public:
  // That of the calling thread.
  TorchState();
  // Sets it on the calling thread; returns what was set before.
  TorchState set() const;

 private:
  std::shared_ptr<const at::ThreadLocalState> state_;
};

}  // namespace vt
