// The Python face of the CUDA device. See module.h. Compiled only against a torch that was built with CUDA.

#include "driver_cuda.h"
#include "module.h"
#include "registry.h"
#include "torch_cuda.h"

namespace py = pybind11;

namespace vt {

void bind_cuda(py::module_& m) {
  m.def("probe_cuda", [](int ordinal) {
    const CudaDevice device = probe_cuda(ordinal);
    py::dict d;
    d["name"] = device.name;
    d["total_bytes"] = device.total_bytes;
    d["granularity"] = device.granularity;
    d["virtual_memory"] = device.virtual_memory;
    d["integrated"] = device.integrated;
    d["driver_version"] = device.driver_version;
    return d;
  });
  m.def(
      "start_cuda",
      [](std::size_t budget_chunks, Bytes chunk, Bytes host, const std::string& policy, const std::string& granularity,
         bool raise_oversize, Bytes min_size, int ordinal, const std::vector<Address>& donated) {
        if (current_engine() != nullptr) throw InvalidUse("vtensor is already enabled");
        auto driver = std::make_unique<CudaDriver>(chunk, ordinal);
        for (const Address home : donated) (void)driver->donate(home);
        EngineConfig config;
        config.budget_chunks = budget_chunks;
        config.order = order_from(policy);
        config.granularity = granularity_from(granularity);
        config.oversize = raise_oversize ? Oversize::raise : Oversize::borrow;
        adopt(std::make_unique<Engine>(std::move(driver), make_ram_store(chunk, host), config));
        attach_torch_cuda(min_size, ordinal);
      },
      py::arg("budget_chunks"), py::arg("chunk"), py::arg("host"), py::arg("policy"), py::arg("granularity"),
      py::arg("raise_oversize"), py::arg("min_size"), py::arg("ordinal"), py::arg("donated"));
  m.def("stop_cuda", [] {
    py::gil_scoped_release unlocked;
    detach_torch_cuda();
    retire_current();
  });
}

}  // namespace vt
