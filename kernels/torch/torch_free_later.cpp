#include "torch/torch_free_later.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace vt {

namespace {

struct Left {
  std::atomic<bool> any{false};  // asked for each call that is kept
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
  left().any.store(true);
}

void free_what_is_left() {
  if (!left().any.load(std::memory_order_relaxed)) return;
  std::vector<at::Tensor> tensors;
  {
    const std::lock_guard lock(left().mutex);
    tensors.swap(left().tensors);
    left().any.store(false);
  }
}

}  // namespace vt
