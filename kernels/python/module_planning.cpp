// Traces and plans as NumPy arrays.
//
// Covers: ending an iteration, reading what was recorded, installing a plan, the runner's figures.
// Leaves: what the arrays mean (recorder.h, plan_runner.h); the Python side (vtensor/planning: recordings.py, plans.py).

#include <pybind11/numpy.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "python/module.h"
#include "process/registry.h"
#include "iteration/operators.h"
#include "iteration/recording.h"
#include "torch/torch_observer.h"

namespace py = pybind11;

namespace vt {
namespace {

using Ints = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

template <typename Items, typename Get>
Ints column(const Items& items, Get get) {
  Ints array(static_cast<py::ssize_t>(items.size()));
  auto* data = array.mutable_data();
  for (const auto& item : items) *data++ = static_cast<std::int64_t>(get(item));
  return array;
}

constexpr const char* kMisfit = "a plan's arrays do not fit together";

template <typename T>
std::vector<T> vector_of(const Ints& array) {
  std::vector<T> values(static_cast<std::size_t>(array.size()));
  const auto* data = array.data();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(data[i]);
  return values;
}

// Throws InvalidUse if one is of no tensor.
std::vector<Plan::Part> parts_of(const py::dict& given, const char* side, std::size_t tensors) {
  const std::string prefix(side);
  const auto tensor = vector_of<std::uint32_t>(given[(prefix + "_tensor").c_str()].cast<Ints>());
  const auto first = vector_of<std::uint32_t>(given[(prefix + "_first").c_str()].cast<Ints>());
  const auto last = vector_of<std::uint32_t>(given[(prefix + "_last").c_str()].cast<Ints>());
  if (first.size() != tensor.size() || last.size() != tensor.size()) throw InvalidUse(kMisfit);
  std::vector<Plan::Part> parts(tensor.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (tensor[i] >= tensors) throw InvalidUse(kMisfit);
    parts[i] = {tensor[i], first[i], last[i]};
  }
  return parts;
}

std::vector<Plan::Tensor> tensors_of(const py::dict& given) {
  const auto bytes = vector_of<Bytes>(given["tensor_bytes"].cast<Ints>());
  const auto serial = vector_of<std::uint64_t>(given["serial"].cast<Ints>());
  const auto previous = vector_of<std::uint32_t>(given["previous"].cast<Ints>());
  const auto flag = [&](const char* name) { return vector_of<std::uint8_t>(given[name].cast<Ints>()); };
  const auto lasting = flag("lasting"), keep = flag("keep"), used = flag("used");
  const std::size_t count = bytes.size();
  for (const std::size_t size : {serial.size(), previous.size(), lasting.size(), keep.size(), used.size()}) {
    if (size != count) throw InvalidUse(kMisfit);
  }
  std::vector<Plan::Tensor> tensors(count);
  for (std::size_t t = 0; t < count; ++t) {
    tensors[t] = {bytes[t], serial[t], previous[t], lasting[t] != 0, keep[t] != 0, used[t] != 0};
  }
  return tensors;
}

Seating seating_of(const py::dict& given, std::size_t tensors) {
  const auto first = vector_of<std::uint32_t>(given["seat_first"].cast<Ints>());
  const auto number = vector_of<std::uint32_t>(given["seat_chunk"].cast<Ints>());
  if (first.empty()) return {};
  if (first.size() != tensors + 1 || first.back() != number.size() || !std::ranges::is_sorted(first)) {
    throw InvalidUse("a plan's seats do not fit its tensors");
  }
  return {first, number};
}

// Who hears of rounds that end. That happens within an operation, in any thread, where no Python may run: it is told between two
// lines of the program's, in its main thread. Never destroyed: it may outlive the interpreter.
py::object* g_listener = nullptr;  // needs the interpreter's lock
std::atomic<bool> g_waits{false}, g_telling{false};

int tell_of_rounds(void*) noexcept {
  g_waits = false;
  const bool telling = g_telling.exchange(false);
  if (g_listener == nullptr || g_listener->is_none() || in_forked_child()) return 0;
  const py::object listener = *g_listener;  // it may be replaced meanwhile
  const Stall stall(this_thread());         // it is no computing of the round that has begun
  PyObject* result = PyObject_CallFunctionObjArgs(listener.ptr(), telling ? Py_True : Py_False, nullptr);
  if (result == nullptr) return -1;
  Py_DECREF(result);
  return 0;
}

void round_ended(Finding finding) noexcept {
  if (finding == Finding::telling) g_telling = true;
  if (!g_waits.exchange(true) && Py_AddPendingCall(&tell_of_rounds, nullptr) != 0) g_waits = false;
}

}  // namespace

py::dict to_dict(const Recorder& recorder) {
  py::dict d;
  const auto& rows = recorder.all_rows();
  std::unordered_map<OpId, std::size_t> number;
  py::list names;
  Ints op_name(static_cast<py::ssize_t>(rows.size()));
  auto* out = op_name.mutable_data();
  for (const auto& row : rows) {
    const auto [found, fresh] = number.emplace(row.op, number.size());
    if (fresh) names.append(operator_name(row.op));
    *out++ = static_cast<std::int64_t>(found->second);
  }
  d["names"] = names;
  d["op_name"] = op_name;
  d["op_begin"] = column(rows, [](const auto& r) { return r.begin_ns; });
  d["op_last"] = column(rows, [](const auto& r) { return r.last; });
  d["end"] = recorder.end_ns();
  d["took"] = recorder.whole().took_ns;
  d["stalls"] = recorder.stalls();
  d["followed"] = recorder.whole().planned;
  const auto& tensors = recorder.tensors();
  d["tensor_bytes"] = column(tensors, [](const auto& t) { return t.bytes; });
  d["tensor_born"] = column(tensors, [](const auto& t) { return t.born; });
  d["tensor_died"] = column(tensors, [](const auto& t) { return t.died; });
  d["tensor_previous"] = column(tensors, [](const auto& t) { return t.previous == kNone ? -1 : std::int64_t{t.previous}; });
  d["tensor_serial"] = column(tensors, [](const auto& t) { return t.serial; });
  d["births"] = column(recorder.births(), [](std::uint32_t t) { return t; });
  const auto& uses = recorder.uses();
  d["use_op"] = column(uses, [](const auto& u) { return u.row; });
  d["use_tensor"] = column(uses, [](const auto& u) { return u.tensor; });
  d["use_first"] = column(uses, [](const auto& u) { return u.first; });
  d["use_last"] = column(uses, [](const auto& u) { return u.last; });
  d["use_away"] = column(uses, [](const auto& u) { return u.away; });
  const auto& calls = recorder.calls();
  d["call_first"] = column(calls, [](const auto& c) { return c.first; });
  d["call_last"] = column(calls, [](const auto& c) { return c.last; });
  d["call_again"] = column(calls, [](const auto& c) { return static_cast<int>(c.again); });
  d["use_write"] = column(uses, [](const auto& u) { return u.write; });
  return d;
}

std::unique_ptr<Plan> plan_from(const py::dict& given) {
  auto plan = std::make_unique<Plan>();
  plan->tensors = tensors_of(given);
  const std::size_t tensors = plan->tensors.size();
  plan->seating = seating_of(given, tensors);
  plan->second_look = {given["computing_ns"].cast<std::uint64_t>(), given["followed"].cast<bool>()};
  for (const Plan::Tensor& tensor : plan->tensors) plan->settled = plan->settled && (!tensor.lasting || tensor.serial != 0);

  std::vector<OpId> ids, operations;
  for (const std::string& name : given["names"].cast<std::vector<std::string>>()) ids.push_back(operator_id(name));
  for (const std::size_t name : vector_of<std::size_t>(given["op_name"].cast<Ints>())) operations.push_back(ids.at(name));
  if (operations.empty()) throw InvalidUse(kMisfit);
  plan->births = vector_of<std::uint32_t>(given["births"].cast<Ints>());
  const auto born = vector_of<std::int64_t>(given["tensor_born"].cast<Ints>());
  std::vector<std::uint32_t> births_in(operations.size(), 0);
  for (const std::uint32_t tensor : plan->births) {
    if (tensor >= tensors) throw InvalidUse(kMisfit);
    if (born.at(tensor) >= 0) ++births_in.at(static_cast<std::size_t>(born[tensor]));
  }
  plan->set_rows(operations, births_in);

  plan->at = vector_of<std::uint32_t>(given["at"].cast<Ints>());
  plan->sees = vector_of<std::uint8_t>(given["sees"].cast<Ints>());
  for (const std::size_t size : {plan->at.size(), plan->sees.size()}) {
    if (size != 0 && size != operations.size()) throw InvalidUse(kMisfit);
  }
  plan->away = parts_of(given, "away", tensors);
  const std::size_t planned = plan->at.empty() ? operations.size() : std::size_t{plan->at.back()} + 1;
  const auto by_row = [&](const char* side) {
    const auto rows = vector_of<std::uint32_t>(given[(std::string(side) + "_op").c_str()].cast<Ints>());
    auto parts = parts_of(given, side, tensors);
    if (rows.size() != parts.size() || !std::ranges::is_sorted(rows) || (!rows.empty() && rows.back() >= planned)) {
      throw InvalidUse(kMisfit);
    }
    return Plan::ByRow(std::move(parts), rows, planned);
  };
  plan->out = by_row("out");
  plan->in = by_row("in");
  plan->drop = by_row("drop");
  plan->make = by_row("make");
  return plan;
}

void bind_planning(py::module_& m) {
  m.def("boundary", [](bool timing) {
    Engine* engine = current_engine();
    if (engine == nullptr || !observing() || in_forked_child()) return false;
    py::gil_scoped_release unlocked;
    return end_iteration(*engine, timing) == Finding::telling;
  });
  // `listener(telling)` is called soon after an iteration ended of which nobody told, or several did; None: none is looked for.
  // `timing`: as of boundary().
  m.def(
      "hear_of_rounds",
      [](py::object listener, bool timing) {
        if (g_listener == nullptr) g_listener = new py::object(py::none());
        *g_listener = std::move(listener);
        g_telling = false;
        const bool on = !g_listener->is_none();
        py::gil_scoped_release unlocked;
        look_for_rounds(on ? &round_ended : nullptr, timing);
      },
      py::arg("listener"), py::arg("timing") = false);
  m.def("recorded_iteration", [] { return to_dict(last_iteration()); });
  m.def("install_plan", [](const py::dict& plan) { install_plan(plan_from(plan)); });
  m.def("forget_plans", &forget_plans);
  m.def("expect_shortfall", [](std::size_t chunks) {
    if (Engine* engine = current_engine(); engine != nullptr) engine->remake().expect_shortfall(chunks);
  });
  m.def("observe", [] { observe(); });
  m.def("plan_counters", [] {
    const PlanCounters c = plan_counters();
    py::dict d;
    d["iterations"] = c.iterations;
    d["planned_iterations"] = c.planned_iterations;
    d["deviations"] = c.deviations;
    d["left_at"] =
        c.left_row == kNone ? py::object(py::none()) : py::object(py::make_tuple(c.left_row, operator_name(c.left_op)));
    d["rejoined"] = c.rejoined;
    d["operations"] = c.operations;
    d["planned_operations"] = c.planned_operations;
    d["plans"] = c.plans;
    return d;
  });
}

}  // namespace vt
