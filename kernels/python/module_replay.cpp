// Replays of recorded iterations (replay/replay.h), for tests and benchmarks.
//
// Covers: traces of `lgm` as the core reads them. Leaves: all else to replay.h.

#include "python/module.h"
#include "replay/replay.h"

namespace py = pybind11;

namespace vt {
namespace {

ReplayTrace trace_from(const py::object& given) {
  const auto ints = [&](const char* name) { return given.attr(name).cast<std::vector<std::int64_t>>(); };
  const auto at = [](std::int64_t index) { return static_cast<std::uint32_t>(index); };
  ReplayTrace trace;
  trace.chunk_bytes = given.attr("chunk_bytes").cast<Bytes>();
  const auto names = given.attr("names").cast<std::vector<std::string>>();
  const auto name = ints("op_name"), ns = ints("op_ns"), row_last = ints("op_last");
  for (std::size_t i = 0; i < name.size(); ++i) {
    trace.rows.push_back({names.at(at(name[i])), static_cast<std::uint64_t>(ns[i]), at(row_last[i])});
  }
  const auto bytes = ints("tensor_bytes"), born = ints("tensor_born"), died = ints("tensor_died");
  for (std::size_t t = 0; t < bytes.size(); ++t) trace.tensors.push_back({static_cast<Bytes>(bytes[t]), born[t], died[t]});
  const auto row = ints("use_op"), tensor = ints("use_tensor"), first = ints("use_first"), last = ints("use_last"),
             write = ints("use_write");
  for (std::size_t u = 0; u < row.size(); ++u) {
    trace.uses.push_back({at(row[u]), at(tensor[u]), at(first[u]), at(last[u]), write[u] != 0});
  }
  const auto call_first = ints("call_first"), call_last = ints("call_last"), again = ints("call_again");
  for (std::size_t c = 0; c < again.size(); ++c) {
    const auto kind = static_cast<Recorder::CallOf::Again>(again[c]);
    if (kind == Recorder::CallOf::Again::no) continue;
    trace.calls.push_back({at(call_first[c]), at(call_last[c]), kind == Recorder::CallOf::Again::fills});
  }
  return trace;
}

}  // namespace

void bind_replay(py::module_& m) {
  py::class_<Replay>(m, "Replay")
      .def(py::init([](const py::object& trace, std::size_t budget_chunks, double out_speed, double in_speed,
                       std::uint64_t launch_ns, std::uint64_t call_ns, std::uint64_t map_ns, std::uint64_t piece_ns,
                       std::size_t room) {
             const ModelCosts costs{call_ns, map_ns, piece_ns, out_speed, in_speed, room};
             return std::make_unique<Replay>(trace_from(trace), budget_chunks, costs, launch_ns);
           }),
           py::arg("trace"), py::arg("budget_chunks"), py::arg("out_speed"), py::arg("in_speed"), py::arg("launch_ns") = 0,
           py::arg("call_ns") = 0, py::arg("map_ns") = 0, py::arg("piece_ns") = 0, py::arg("room") = 0)
      .def("iteration", &Replay::iteration)
      .def("boundary", &Replay::boundary)
      .def("ordered", [](const Replay&) { return true; })
      .def("recorded_iteration", [](Replay& r) { return to_dict(r.runner().last()); })
      .def("install_plan", [](Replay& r, const py::dict& plan) { r.runner().plans().install(plan_from(plan)); })
      .def("snapshot", [](Replay& r) { return to_dict(r.snapshot()); })
      .def_property_readonly("planned", [](Replay& r) { return r.runner().counters().planned_iterations; });
}

}  // namespace vt
