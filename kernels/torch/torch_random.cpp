#include "torch/torch_random.h"

#include <ATen/Context.h>

#include <mutex>

namespace vt {

namespace {
c10::Device device_of(const at::RecordFunction& function) {
  for (const c10::IValue& input : function.inputs()) {
    if (input.isTensor() && input.toTensor().defined()) return input.toTensor().device();
  }
  for (const c10::IValue& input : function.inputs()) {
    if (input.isDevice()) return input.toDevice();
  }
  return c10::kCPU;
}
}  // namespace

at::Generator generator_now(const at::RecordFunction& function, const Traits& traits) {
  const c10::IValue given = function.inputs()[traits.generator];
  if (given.isGenerator()) return copy_of(given.toGenerator());
  const c10::Device device = device_of(function);
  return device.is_cpu() || device.is_cuda() ? copy_of(at::globalContext().defaultGenerator(device)) : at::Generator();
}

at::Generator copy_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.clone();
}

}  // namespace vt
