#include "torch/torch_shelves.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "iteration/managed.h"
#include "process/registry.h"

namespace vt {

namespace {

Bytes room_for(const c10::TensorImpl& tensor) {
  return (tensor.unsafe_storage().nbytes() + kShelfAlign - 1) / kShelfAlign * kShelfAlign;
}

// A thread that began to work just now may have found the old address.
void wait_until_unused(const Range& range) {
  while (range.pins.load() != 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

at::Tensor bytes_of(const c10::Storage& storage) {
  const auto bytes = static_cast<std::int64_t>(storage.nbytes());
  return at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device())).set_(storage, 0, {bytes}, {1});
}

}  // namespace

bool may_move(const c10::TensorImpl& tensor) {
  if (!tensor.has_storage() || tensor.layout() != c10::kStrided) return false;
  const c10::Storage& storage = tensor.unsafe_storage();
  void* const address = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  Engine* const engine = current_engine();
  if (engine == nullptr || !engine->contains(address) || storage.use_count() != 1) return false;
  const Range* const range = engine->find(address);
  return range != nullptr && working_threads() == 1 && !range->pinned() && range->base == reinterpret_cast<Address>(address) &&
         range->bytes == storage.nbytes() && tensor.storage_offset() == 0 && !range->exported && range->tenants.load() == 0 &&
         storage.data_ptr().get_context() == address;
}

Whose whose_memory(const c10::TensorImpl& tensor) {
  static const auto ends_a_loan = c10::InefficientStdFunctionContext::makeDataPtr(nullptr, [](void*) {}, c10::kCPU).get_deleter();
  const c10::DataPtr& memory = tensor.unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (memory.get() == memory.get_context()) return Whose::allocator;
  return memory.get_deleter() == ends_a_loan ? Whose::lender : Whose::other;
}

void swap_memory(const c10::TensorImpl& one, const c10::TensorImpl& other) {
  c10::StorageImpl* const a = one.unsafe_storage().unsafeGetStorageImpl();
  c10::StorageImpl* const b = other.unsafe_storage().unsafeGetStorageImpl();
  std::swap(a->_mutable_data_ptr_no_checks(), b->_mutable_data_ptr_no_checks());
  c10::Allocator* const allocator = a->allocator();
  const bool resizable = a->resizable();
  a->set_allocator(b->allocator());
  a->set_resizable(b->resizable());
  b->set_resizable(false);  // what can be resized must have an allocator
  b->set_allocator(allocator);
  b->set_resizable(resizable);
}

void put_on_shelf(std::span<c10::TensorImpl* const> tensors) {
  const at::NoGradGuard no_graph;
  std::vector<c10::TensorImpl*> moved;
  Bytes bytes = 0;
  for (c10::TensorImpl* tensor : tensors) {
    if (!may_move(*tensor)) continue;
    moved.push_back(tensor);
    bytes += room_for(*tensor);
  }
  if (moved.empty()) return;
  const auto options = at::TensorOptions().dtype(at::kByte).device(moved.front()->device());
  const at::Tensor shelf = at::empty({static_cast<std::int64_t>(bytes)}, options);  // a tenant itself, as long as this takes
  Engine* const engine = engine_of(shelf.data_ptr());
  if (engine == nullptr) return;  // the session ended meanwhile
  std::int64_t at = 0;
  for (c10::TensorImpl* tensor : moved) {
    c10::Storage storage = tensor->unsafe_storage();
    at::Tensor place = shelf.narrow(0, at, static_cast<std::int64_t>(storage.nbytes()));
    place.copy_(bytes_of(storage));
    void* const address = place.data_ptr();
    share_managed(*engine, address);
    const c10::DataPtr before =
        storage.set_data_ptr({address, address, shelf.storage().data_ptr().get_deleter(), storage.device()});
    wait_until_unused(*engine->find(before.get()));
    at += static_cast<std::int64_t>(room_for(*tensor));
  }
}

}  // namespace vt
