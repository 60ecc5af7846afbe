#include "torch/torch_calls.h"

#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "iteration/thread_state.h"
#include "recipes/kept_bytes.h"
#include "torch/torch_free_later.h"

namespace vt {

namespace {

constexpr Bytes kMostCopied = Bytes{1} << 20;  // of an argument that is not managed

// A plain tensor: what it is, is in its storage, its sizes and its strides.
bool plain(const c10::TensorImpl& impl) {
  static constexpr c10::DispatchKeySet kOthers({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                                c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
                                                c10::DispatchKey::Functionalize, c10::DispatchKey::ZeroTensor});
  return impl.has_storage() && impl.layout() == c10::kStrided && !impl.has_symbolic_sizes_strides() && !impl.is_nested() &&
         !impl.key_set().has_any(kOthers) && !at::isQIntType(c10::typeMetaToScalarType(impl.dtype())) &&
         (impl.device().is_cpu() || impl.device().is_cuda());
}

Address storage_of(const c10::TensorImpl& impl) {
  return reinterpret_cast<Address>(impl.unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
}

bool pinned(Address address) {
  return at::detail::getCUDAHooks().isPinnedPtr(reinterpret_cast<const void*>(address));
}

bool is_plain_value(const c10::IValue& value) {
  return value.isNone() || value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble() || value.isString() ||
         value.isDevice() || value.isIntList() || value.isDoubleList() || value.isBoolList();
}

// Managed however small it is, as what it stands for was.
at::Tensor managed_empty(Bytes bytes, c10::Device device) {
  const Manage all_sizes(Managing::all);
  return at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(device));
}

}  // namespace

TorchCall::~TorchCall() {
  for (Tensor& tensor : tensors_) {
    if (tensor.device_bytes.defined()) free_later(std::move(tensor.device_bytes));
  }
}

TorchCall::Access TorchCall::access_to(const Traits& traits, std::size_t argument) {
  const std::uint64_t bit = std::uint64_t{1} << std::min<std::size_t>(argument, 63);
  if ((traits.written & bit) != 0) return Access::overwrites;
  return (traits.may_write & bit) != 0 ? Access::may_write : Access::reads;
}

// Whether its bytes may be copied: what is overwritten lives on.
bool TorchCall::may_copy(const c10::TensorImpl& tensor, Access access) {
  return static_cast<Bytes>(reach(tensor)) * tensor.itemsize() <= kMostCopied && access != Access::overwrites;
}

Range* TorchCall::filled(const at::RecordFunction& function, const Traits& traits, Engine& engine) {
  if (!traits.fills) return nullptr;
  Range* whole = nullptr;
  for (const c10::IValue& input : function.inputs()) {
    if (!input.isTensor() || !input.toTensor().defined()) continue;
    const c10::TensorImpl& impl = *input.toTensor().unsafeGetTensorImpl();
    if (!plain(impl)) return nullptr;
    Range* range = engine.find(reinterpret_cast<const void*>(storage_of(impl)));
    if (whole != nullptr) {
      if (range == whole) return nullptr;  // it is read, too
      continue;
    }
    const auto bytes = static_cast<Bytes>(impl.numel()) * impl.itemsize();
    if (range == nullptr || range->exported || storage_of(impl) != range->base || impl.storage_offset() != 0 ||
        bytes != range->bytes || bytes != impl.unsafe_storage().nbytes() || !impl.is_non_overlapping_and_dense()) {
      return nullptr;
    }
    whole = range;
  }
  return whole;
}

bool TorchCall::could_keep(const at::RecordFunction& function, const Traits& traits, Engine& engine) {
  std::size_t index = 0;
  for (const c10::IValue& input : function.inputs()) {
    if (index == traits.generator) {
      ++index;
      continue;
    }
    const Access access = access_to(traits, index++);
    const auto fits = [&](const c10::IValue& value) {
      if (!value.isTensor() || !value.toTensor().defined()) return value.isTensor() || is_plain_value(value);
      const c10::TensorImpl& impl = *value.toTensor().unsafeGetTensorImpl();
      if (!plain(impl)) return false;
      const Range* range = engine.find(reinterpret_cast<const void*>(storage_of(impl)));
      if (range != nullptr && access != Access::may_write) return !range->exported;
      return may_copy(impl, access);
    };
    const bool one = !input.isList() || is_plain_value(input);
    if (one ? !fits(input) : !std::all_of(input.toListRef().begin(), input.toListRef().end(), fits)) return false;
  }
  return true;
}

std::unique_ptr<TorchCall> TorchCall::keep(const at::RecordFunction& function, const Traits& traits, Engine& engine,
                                           std::vector<Range*>* sources, Range** written) {
  free_what_is_left();
  const auto handle = c10::Dispatcher::singleton().findOp(*function.operator_name());
  if (!handle) return nullptr;
  std::unique_ptr<TorchCall> call(new TorchCall(*handle));
  *written = filled(function, traits, engine);
  if (*written != nullptr) call->fills = (*written)->bytes;
  if (traits.generator != kNone) {
    call->generator_ = generator_now(function, traits);
    if (!call->generator_.defined()) return nullptr;
  }
  std::size_t index = 0;
  for (const c10::IValue& input : function.inputs()) {
    if (index == traits.generator) {
      call->arguments_.push_back({Argument::Kind::generator, {}, {}});
    } else if (!call->keep(input, access_to(traits, index), engine, *written, sources)) {
      return nullptr;
    }
    ++index;
  }
  if (call->overwrites != kNone) *written = (*sources)[call->overwrites];
  return call;
}

bool TorchCall::keep(const c10::IValue& value, Access access, Engine& engine, const Range* filled, std::vector<Range*>* sources) {
  Argument argument{Argument::Kind::value, {}, {}};
  if (value.isTensor()) {
    argument.kind = Argument::Kind::tensor;
    argument.tensors.push_back(kNone);
    if (!keep_tensor(value.toTensor(), access, engine, filled, sources, &argument.tensors[0])) return false;
  } else if (is_plain_value(value)) {
    argument.value = value.isList() ? value.deepcopy() : value;  // TorchScript's are the program's own
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    argument.kind = value.isTensorList() ? Argument::Kind::tensors : Argument::Kind::optional_tensors;
    for (const c10::IValue& item : value.toListRef()) {
      argument.tensors.push_back(kNone);
      if (!item.isNone() && !keep_tensor(item.toTensor(), access, engine, filled, sources, &argument.tensors.back())) {
        return false;
      }
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (!is_plain_value(item)) return false;
    }
    argument.value = value.deepcopy();
  } else {
    return false;  // storages, objects
  }
  arguments_.push_back(std::move(argument));
  return true;
}

bool TorchCall::keep_tensor(const at::Tensor& given, Access access, Engine& engine, const Range* filled,
                            std::vector<Range*>* sources, std::uint32_t* index) {
  if (!given.defined()) return true;
  const c10::TensorImpl& impl = *given.unsafeGetTensorImpl();
  if (!plain(impl)) return false;
  Tensor tensor;
  tensor.sizes = impl.sizes().vec();
  tensor.strides = impl.strides().vec();
  tensor.offset = impl.storage_offset();
  tensor.dtype = impl.dtype();
  tensor.device = impl.device();
  tensor.conjugate = given.is_conj();
  tensor.negative = given.is_neg();
  tensor.wrapped_number = impl.is_wrapped_number();
  tensor.requires_grad = given.requires_grad();
  const Address storage = storage_of(impl);
  Range* const range = engine.find(reinterpret_cast<const void*>(storage));
  if (range != nullptr && range == filled) {
    tensor.filled = true;
    tensor.storage_bytes = range->bytes;
  } else if (range != nullptr && access != Access::may_write) {
    tensor.source = sources->size();
    tensor.storage_at = storage - range->base;
    tensor.storage_bytes = impl.unsafe_storage().nbytes();
    sources->push_back(range);
    if (access == Access::overwrites) overwrites = static_cast<std::uint32_t>(tensor.source);
  } else {
    const Bytes item = impl.itemsize();
    const Bytes bytes = static_cast<Bytes>(reach(impl)) * item;
    const Address from = storage + static_cast<Bytes>(tensor.offset) * item;
    // An asynchronous copy may be writing it: its bytes now are not those that the operation will read.
    if (impl.device().is_cpu() && engine.streams() != nullptr && pinned(from)) return false;
    if (!may_copy(impl, access) || from + bytes > storage + impl.unsafe_storage().nbytes()) return false;
    tensor.align = from % kBytesAlign;
    tensor.storage_bytes = bytes;
    tensor.offset = 0;
    if (impl.device().is_cpu()) {
      tensor.bytes = copied(from, bytes);
    } else {
      const Manage nothing(Managing::none);  // it is freed where the engine's lock is held
      const at::DisableRecordFunctionGuard unseen;
      const at::NoGradGuard no_graph;
      const auto options = at::TensorOptions().dtype(at::kByte).device(impl.device());
      tensor.device_bytes = at::empty({static_cast<std::int64_t>(bytes)}, options);
      tensor.device_bytes.copy_(at::from_blob(reinterpret_cast<void*>(from), {static_cast<std::int64_t>(bytes)}, options));
    }
  }
  *index = static_cast<std::uint32_t>(tensors_.size());
  tensors_.push_back(std::move(tensor));
  return true;
}

at::Tensor TorchCall::make(const Tensor& tensor, const std::function<Address(std::size_t)>& address_of,
                           std::vector<c10::Storage>* memory) const {
  c10::DataPtr data;
  c10::Storage storage;
  if (tensor.filled) {
    storage = managed_empty(tensor.storage_bytes, tensor.device).storage();
  } else if (tensor.source != kNone) {
    data = c10::DataPtr(reinterpret_cast<void*>(address_of(tensor.source) + tensor.storage_at), tensor.device);
  } else if (tensor.bytes != nullptr) {  // fresh ones each time: some kernels write what they do not say
    auto copy = std::make_unique<std::shared_ptr<std::byte[]>>(aligned(tensor.storage_bytes, tensor.align));
    std::memcpy(copy->get(), tensor.bytes.get(), tensor.storage_bytes);
    void* at = copy->get();
    data = c10::DataPtr(at, copy.release(), [](void* p) { delete static_cast<std::shared_ptr<std::byte[]>*>(p); }, tensor.device);
  } else {
    const Manage nothing(Managing::none);
    const at::DisableRecordFunctionGuard unseen;
    auto copy = std::make_unique<at::Tensor>(tensor.device_bytes.clone());
    const auto here = c10::impl::VirtualGuardImpl(tensor.device.type()).getStream(tensor.device);
    tensor.device_bytes.record_stream(here);  // it may have been kept on another, which would have its memory back at once
    void* at = copy->data_ptr();
    data = c10::DataPtr(at, copy.release(), [](void* p) { delete static_cast<at::Tensor*>(p); }, tensor.device);
  }
  // Arguments that shared one share one again: kernels ask whether they overlap.
  for (const c10::Storage& known : *memory) {
    if (tensor.source != kNone && known.data() == data.get() && known.nbytes() == tensor.storage_bytes) storage = known;
  }
  if (!storage) {
    storage = c10::Storage(c10::Storage::use_byte_size_t(), tensor.storage_bytes, std::move(data));
    memory->push_back(storage);
  }
  const auto key = tensor.device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), tensor.dtype);
  c10::TensorImpl& impl = *made.unsafeGetTensorImpl();
  impl.set_sizes_and_strides(tensor.sizes, tensor.strides, tensor.offset);
  if (tensor.conjugate) made._set_conj(true);
  if (tensor.negative) made._set_neg(true);
  if (tensor.wrapped_number) impl.set_wrapped_number(true);
  if (tensor.requires_grad) impl.set_requires_grad(true);
  return made;
}

std::vector<c10::IValue> TorchCall::arguments(const std::function<Address(std::size_t)>& address_of,
                                              std::vector<c10::Storage>* memory) const {
  const auto tensor = [&](std::uint32_t index) {
    return index == kNone ? at::Tensor() : make(tensors_[index], address_of, memory);
  };
  std::vector<c10::IValue> made;
  for (const Argument& argument : arguments_) {
    switch (argument.kind) {
      case Argument::Kind::value:
        made.push_back(argument.value);
        break;
      case Argument::Kind::tensor:
        made.emplace_back(tensor(argument.tensors[0]));
        break;
      case Argument::Kind::generator:
        made.emplace_back(copy_of(generator_));
        break;
      case Argument::Kind::tensors: {
        c10::List<at::Tensor> list;
        for (const std::uint32_t index : argument.tensors) list.push_back(tensor(index));
        made.emplace_back(std::move(list));
        break;
      }
      case Argument::Kind::optional_tensors: {
        c10::List<std::optional<at::Tensor>> list;
        for (const std::uint32_t index : argument.tensors) {
          list.push_back(index == kNone ? std::optional<at::Tensor>() : std::optional(tensor(index)));
        }
        made.emplace_back(std::move(list));
        break;
      }
    }
  }
  return made;
}

}  // namespace vt
