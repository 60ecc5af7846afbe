// The managed tensors among an operation's arguments.
//
// Covers: those in lists, tuples and dicts, those that sparse ones consist of; which part of its memory one can reach.
// Leaves: what an operation does with them (torch_observer.h).
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/ivalue.h>

#include "engine/engine.h"
#include "torch/torch_traits.h"

namespace vt {

// The part of its storage a dense tensor can reach; the whole range where that is not known.
inline Use extent(Engine& engine, Range& range, const c10::TensorImpl& tensor, const void* storage, bool write) {
  if (tensor.has_symbolic_sizes_strides() || tensor.is_nested()) return all_parts(range, write);
  const std::int64_t elements = reach(tensor);
  if (elements == 0) return engine.part(range, 0, 0, write);
  const Bytes item = tensor.itemsize();
  const Bytes start = reinterpret_cast<Address>(storage) - range.base;
  return engine.part(range, start + static_cast<Bytes>(tensor.storage_offset()) * item,
                     start + static_cast<Bytes>(tensor.storage_offset() + elements) * item, write);
}

// Calls `found(range, tensor, storage)` for each managed tensor there.
template <typename Found>
void each_managed(Engine& engine, const at::Tensor& tensor, const Found& found) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->has_storage()) {
    if (!tensor.defined()) return;
    if (tensor.is_sparse()) {
      const auto* sparse = static_cast<const at::SparseTensorImpl*>(impl);
      each_managed(engine, sparse->indices(), found);
      each_managed(engine, sparse->values(), found);
    } else if (impl->is_sparse_compressed()) {
      const auto* sparse = static_cast<const at::SparseCsrTensorImpl*>(impl);
      each_managed(engine, sparse->compressed_indices(), found);
      each_managed(engine, sparse->plain_indices(), found);
      each_managed(engine, sparse->values(), found);
    }
    return;
  }
  const void* storage = impl->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  if (!engine.contains(storage)) return;
  if (Range* range = engine.find(storage)) found(*range, *impl, storage);
}

template <typename Found>
void each_managed(Engine& engine, const c10::IValue& value, const Found& found) {
  if (value.isTensor()) {
    each_managed(engine, value.toTensor(), found);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isInt() || item.isDouble() || item.isBool()) return;  // a list of numbers
      each_managed(engine, item, found);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) each_managed(engine, item, found);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) each_managed(engine, entry.value(), found);
  }
}

}  // namespace vt
