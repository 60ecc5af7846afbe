// The observer: every dispatcher operation makes its tensor arguments resident and pins them while it runs.
//
// Covers: which tensors an operation uses, which of them it writes, when observing starts.
// Leaves: what is done with them (engine.h), what is recorded (recording.h). The torch_*.cpp files are the only ones of
// kernels/ that include torch.
#pragma once

namespace vt {

// Operations are observed from the moment live tensors first came near the budget: with room to spare nothing can be
// missing, and nothing is paid (I8). The operation that runs at that moment was not seen; what it misses, the fault
// handler brings. For a device without such a handler, and for plans, observe from the start.
void observe();
// Starts observing now if the engine asks for it (Engine::pressed). For calls that evict outside an allocation.
void observe_if_pressed();
bool observing() noexcept;
void stop_observing();

}  // namespace vt
