// What an NVIDIA GPU's virtual memory and its bus cost, for benchmarks. Compiled only against a torch that was built with CUDA.

#include <algorithm>

#include "base/clock.h"
#include "cuda/cuda_slab.h"
#include "cuda/driver_cuda.h"
#include "python/module.h"

namespace py = pybind11;

namespace vt {
namespace {

// Microseconds a call, bytes a second.
py::dict measure(Bytes chunk_bytes, std::size_t chunks, int ordinal) {
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

void bind_cuda_costs(py::module_& m) {
  m.def("measure_cuda", &measure, py::arg("chunk"), py::arg("chunks"), py::arg("ordinal"));
}

}  // namespace vt
