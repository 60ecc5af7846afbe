// The Python face of the CUDA device. See module.h. Compiled only against a torch that was built with CUDA.

#include <algorithm>
#include <chrono>

#include "cuda/cuda_slab.h"
#include "cuda/driver_cuda.h"
#include "python/module.h"
#include "process/registry.h"
#include "torch/torch_cuda.h"
#include "torch/torch_seen.h"

namespace py = pybind11;

namespace vt {
namespace {

CudaDriver* g_driver = nullptr;  // the current engine's; nullptr without one

// Fewer chunks for the engine: what it let go of is its owner's again. As many as can be had now.
std::vector<Address> give_chunks_back(std::size_t chunks) {
  std::vector<Address> given;
  Engine* engine = current_engine();
  if (engine == nullptr || g_driver == nullptr) return given;
  const std::size_t budget = engine->inspect().snapshot().budget_chunks;
  for (std::size_t want = std::min(chunks, budget - 1); want > 0 && given.empty(); --want) {
    try {
      engine->resize(budget - want);
    } catch (const OutOfMemory&) {
      continue;  // so many are in use right now
    }
    for (std::size_t i = 0; i < want; ++i) {
      if (const Address home = g_driver->take_back()) given.push_back(home);
    }
    if (given.empty()) engine->resize(budget);  // they were the engine's own: nobody would gain
  }
  return given;
}

// What the device's virtual memory and its bus cost: microseconds a call, bytes a second.
py::dict measure(Bytes chunk_bytes, std::size_t chunks, int ordinal) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); };
  const auto need = [](const Status& status) {
    if (!status.ok()) throw InvalidUse("measuring failed: " + describe(status));
  };
  py::dict d;
  CudaDriver driver(chunk_bytes, ordinal);
  const auto store = make_ram_store(chunk_bytes, chunks * chunk_bytes, cuda_pinning(ordinal));
  need(driver.set_capacity(chunks));
  std::vector<ChunkId> made(chunks);
  std::vector<SlotId> slots(chunks);
  Address base = 0;
  need(driver.reserve(chunks * chunk_bytes, &base));
  const auto each = [&](const char* name, const auto& call) {
    const auto begun = Clock::now();
    for (std::size_t i = 0; i < chunks; ++i) need(call(i));
    d[name] = seconds(begun) / static_cast<double>(chunks) * 1e6;
  };
  each("create_us", [&](std::size_t i) { return driver.create(&made[i]); });
  each("pin_us", [&](std::size_t i) { return store->acquire(&slots[i]); });
  each("map_us", [&](std::size_t i) { return driver.map(base + i * chunk_bytes, made[i], Access::write); });
  each("unmap_us", [&](std::size_t i) { return driver.unmap(base + i * chunk_bytes); });
  each("map_again_us", [&](std::size_t i) { return driver.map(base + i * chunk_bytes, made[i], Access::write); });
  each("unmap_again_us", [&](std::size_t i) { return driver.unmap(base + i * chunk_bytes); });
  const std::size_t run = std::min<std::size_t>(chunks, 16);
  const auto timed = [&](const char* name, const auto& call) {
    const auto begun = Clock::now();
    need(call());
    d[name] = seconds(begun) * 1e6;
  };
  timed("map_run_of_16_us", [&] { return driver.map_run(base, {made.data(), run}); });
  timed("unmap_run_of_16_us", [&] { return driver.unmap_run(base, run); });
  const auto race = [&](const char* name, std::size_t outs, std::size_t ins) {
    Ticket out, in;
    const auto begun = Clock::now();
    for (std::size_t i = 0; i < chunks / 2; ++i) {
      if (outs > 0) need(driver.copy_out(made[i], store->place(slots[i]), chunk_bytes, &out));
      if (ins > 0) need(driver.copy_in(store->place(slots[chunks - 1 - i]), made[chunks - 1 - i], chunk_bytes, &in));
    }
    if (out.number > 0) driver.wait(out);
    if (in.number > 0) driver.wait(in);
    d[name] = static_cast<double>(chunks / 2 * chunk_bytes) / seconds(begun);
  };
  race("warm_up", 1, 1);
  race("out_bytes_per_second", 1, 0);
  race("in_bytes_per_second", 0, 1);
  race("each_of_both_bytes_per_second", 1, 1);
  Ticket busy;
  for (std::size_t i = 0; i < chunks / 2; ++i) need(driver.copy_out(made[i], store->place(slots[i]), chunk_bytes, &busy));
  timed("map_while_copying_us", [&] { return driver.map(base, made[chunks - 1], Access::write); });
  timed("unmap_while_copying_us", [&] { return driver.unmap(base); });
  driver.wait(busy);
  HostPlace place;  // memory of the host that the device uses in place, where it can
  d["in_from_place_bytes_per_second"] = 0.0;
  const auto begun = Clock::now();
  if (driver.make_place(&place).ok()) {
    d["make_place_us"] = seconds(begun) * 1e6;
    timed("map_place_us", [&] { return driver.map_host(base, place); });
    timed("unmap_place_us", [&] { return driver.unmap_host(base); });
    const auto asked = Clock::now();
    for (std::size_t i = 0; i < chunks / 2; ++i) need(driver.copy_in(place, made[i], chunk_bytes, &busy));
    driver.wait(busy);
    d["in_from_place_bytes_per_second"] = static_cast<double>(chunks / 2 * chunk_bytes) / seconds(asked);
    need(driver.drop_place(place));
  }
  d["pinned_bytes"] = store->pinned();
  for (const ChunkId chunk : made) need(driver.destroy(chunk));
  return d;
}

}  // namespace

void bind_cuda(py::module_& m) {
  m.def("probe_cuda", [](int ordinal) {
    const CudaDevice device = probe_cuda(ordinal);
    py::dict d;
    d["name"] = device.name;
    d["total_bytes"] = device.total_bytes;
    d["granularity"] = device.granularity;
    d["virtual_memory"] = device.virtual_memory;
    d["integrated"] = device.integrated;
    d["host_in_place"] = device.host_node >= 0;
    d["driver_version"] = device.driver_version;
    return d;
  });
  m.def(
      "start_cuda",
      [](std::size_t budget_chunks, Bytes chunk, Bytes host, const std::string& policy, const std::string& granularity,
         const std::string& leaving, bool raise_oversize, Bytes min_size, int ordinal, const std::vector<Address>& donated,
         bool places, bool strict) {
        if (current_engine() != nullptr) throw InvalidUse("vtensor is already enabled");
        auto driver = std::make_unique<CudaDriver>(chunk, ordinal, nullptr, places);
        for (const Address home : donated) (void)driver->donate(home);
        CudaDriver* made = driver.get();
        EngineConfig config = config_of(budget_chunks, policy, granularity, leaving, raise_oversize);
        config.strict = strict;
        adopt(std::make_unique<Engine>(std::move(driver), make_ram_store(chunk, host, cuda_pinning(ordinal)), config));
        g_driver = made;
        attach_torch_cuda(min_size, ordinal);
      },
      py::arg("budget_chunks"), py::arg("chunk"), py::arg("host"), py::arg("policy"), py::arg("granularity"),
      py::arg("leaving"), py::arg("raise_oversize"), py::arg("min_size"), py::arg("ordinal"), py::arg("donated"),
      py::arg("places"), py::arg("strict"));
  m.def("stop_cuda", [] {
    py::gil_scoped_release unlocked;
    Engine* engine = current_engine();
    if (engine == nullptr) return true;
    engine->detach();  // throws if what is absent cannot come back; then nothing changed
    stop_seeing(*engine);
    g_driver = nullptr;
    detach_torch_cuda();
    retire_current();
    return engine->drained();  // else live tensors still use its chunks
  });
  m.def("measure_cuda", &measure, py::arg("chunk"), py::arg("chunks"), py::arg("ordinal"));
  // For vtensor/devices/pools.py.
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  m.def("make_slab", &make_slab, py::arg("bytes"), py::arg("chunk"), py::arg("ordinal"), Unlocked());
  m.def("free_slab", &free_slab, py::arg("address"), py::arg("bytes"), py::arg("chunk"), py::arg("ordinal"), Unlocked());
  m.def("donate", [](const std::vector<Address>& homes) {
    for (const Address home : homes) (void)g_driver->donate(home);
  });
  m.def("unused_chunks", [] {  // donated, and not in use: their owner's again
    std::vector<Address> homes;
    while (const Address home = g_driver->take_back()) homes.push_back(home);
    return homes;
  });
  m.def("give_chunks_back", &give_chunks_back, py::arg("chunks"), Unlocked());
}

}  // namespace vt
