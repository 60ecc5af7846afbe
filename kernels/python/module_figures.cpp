// Figures of the core as Python dictionaries; vtensor/native/core.py has their types. See module.h.

#include "python/module.h"

namespace py = pybind11;

namespace vt {

py::dict to_dict(const Amount& amount) {
  py::dict d;
  d["current"] = amount.current;
  d["peak"] = amount.peak;
  d["allocated"] = amount.allocated;
  d["freed"] = amount.freed;
  return d;
}

py::dict to_dict(const LiveHandles& handles) {
  py::dict d;
  d["reservations"] = handles.reservations;
  d["chunks"] = handles.chunks;
  d["mappings"] = handles.mappings;
  d["host_mappings"] = handles.host_mappings;
  d["places"] = handles.places;
  d["copies"] = handles.copies;
  return d;
}

py::dict to_dict(const Snapshot& shot) {
  const Counters& c = shot.counters;
  py::dict d;
  d["tensor_bytes"] = to_dict(c.tensor_bytes);
  d["wanted_bytes"] = to_dict(c.wanted_bytes);
  d["absent_bytes"] = to_dict(c.absent_bytes);
  d["borrowed_bytes"] = to_dict(c.borrowed_bytes);
  d["dropped_bytes"] = to_dict(c.dropped_bytes);
  d["made_bytes"] = c.made_bytes;
  d["make_ns"] = c.make_ns;
  d["chunk_bytes"] = shot.chunk_bytes;
  d["budget_chunks"] = shot.budget_chunks;
  d["held_chunks"] = shot.held_chunks;
  d["peak_held_chunks"] = shot.peak_held_chunks;
  d["cached_chunks"] = shot.cached_chunks;
  d["peak_used_chunks"] = shot.peak_used_chunks;
  d["overdrawn_chunks"] = shot.overdrawn_chunks;
  d["peak_overdrawn_chunks"] = shot.peak_overdrawn_chunks;
  d["host_waits"] = shot.host_waits;
  d["pinned_bytes"] = shot.pinned;
  d["ranges"] = shot.ranges;
  d["slots_used"] = shot.slots_used;
  d["slots_capacity"] = shot.slots_capacity;
  d["slots_peak"] = shot.slots_peak;
  d["moved_out_bytes"] = shot.moved_out_bytes;
  d["moved_in_bytes"] = shot.moved_in_bytes;
  d["allocations"] = c.allocations;
  d["reused"] = c.reused;
  d["remaps"] = c.remaps;
  d["evictions"] = c.evictions;
  d["discards"] = c.discards;
  d["drops"] = c.drops;
  d["cancels"] = c.cancels;
  d["faults"] = c.faults;
  d["oversize"] = c.oversize;
  d["failures"] = c.failures;
  d["arrivals"] = c.arrivals;
  d["late_arrivals"] = c.late_arrivals;
  d["wait_ns"] = c.wait_ns;
  d["moves_in_wait"] = shot.moves_in_wait;
  d["out_ns"] = shot.out_times.busy_ns;
  d["in_ns"] = shot.in_times.busy_ns;
  d["processor_ns"] = shot.out_times.processor_ns + shot.in_times.processor_ns;
  d["host"] = shot.host_name;
  d["handles"] = to_dict(shot.handles);
  return d;
}

py::dict to_dict(const Residency& residency) {
  py::dict d;
  d["chunks"] = residency.chunks;
  for (std::size_t s = 0; s < kStates; ++s) {
    const auto state = static_cast<State>(s);
    if (state != State::given) d[name_of(state)] = residency.in_state[s];  // of no tensor that a person has
  }
  d["clean"] = residency.clean;
  return d;
}

}  // namespace vt
