#include "torch/torch_free_later.h"

#include <ATen/core/Tensor.h>

#include <mutex>
#include <utility>
#include <vector>

namespace vt {

namespace {

struct Left {
  std::mutex mutex;
  std::vector<at::Tensor> tensors;
};

Left& left() {
  static Left* const all = new Left;  // never destroyed: threads outlive statics
  return *all;
}

}  // namespace

void free_later(at::Tensor tensor) {
  const std::lock_guard lock(left().mutex);
  left().tensors.push_back(std::move(tensor));
}

void free_what_is_left() {
  std::vector<at::Tensor> tensors;
  {
    const std::lock_guard lock(left().mutex);
    tensors.swap(left().tensors);
  }
}

}  // namespace vt
