// Operations of torch as they were called, to be called again.
//
// A call keeps no tensor of the program: that would change when memory is freed, and what autograd does with who owns what. What
// lies in managed memory it knows by its place; what does not, by a copy of its bytes (such tensors are small).
//
// Covers: keeping a call's arguments, and making them again.
// Leaves: which calls (torch_traits.h), what its sources hold (recipes.h), running it (torch_remaker.cpp).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "iteration/thread_state.h"
#include "recipes/recipes.h"
#include "torch/torch_conditions.h"
#include "torch/torch_random.h"
#include "torch/torch_traits.h"

namespace vt {

class TorchCall final : public Operation {
 public:
  // The call that begins. What it reads of managed memory in order of `sources`, and what it overwrites. nullptr if an argument
  // is nothing that can be kept.
  static std::unique_ptr<TorchCall> keep(const at::RecordFunction& function, const Traits& traits, Engine& engine,
                                         std::vector<Range*>* sources, Range** written);

  // Under the engine's lock: see torch_free_later.h.
  ~TorchCall() override;

  // Whether it would be kept.
  static bool could_keep(const at::RecordFunction& function, const Traits& traits, Engine& engine);
  // The managed tensor of which it overwrites every byte and reads none; nullptr if there is none. It needs no such tensor to be
  // run again: memory of its own will do.
  static Range* filled(const at::RecordFunction& function, const Traits& traits, Engine& engine);

  // Its arguments: `address_of(i)` says where its i-th source lies. What they are made of lives as long as `memory`. What it
  // fills is allocated.
  std::vector<c10::IValue> arguments(const std::function<Address(std::size_t)>& address_of,
                                     std::vector<c10::Storage>* memory) const;
  const c10::OperatorHandle& op() const noexcept { return op_; }
  const Conditions& conditions() const noexcept { return conditions_; }
  // Which of its allocations were managed.
  Managing managing() const noexcept { return managing_; }
  const char* name() const noexcept { return op_.operator_name().name.c_str(); }

  // Which source it overwrites; kNone if none.
  std::uint32_t overwrites = kNone;
  // Bytes of what it fills.
  std::optional<Bytes> fills;
  // Bytes of what it fills and of what it allocated that outlived it, in order: its first results. What it overwrites is the
  // last.
  std::vector<Bytes> births;

 private:
  // One tensor argument: where it lies, and how it looks.
  struct Tensor {
    std::size_t source = kNone;           // which source; kNone: `bytes` are a copy of what it can reach
    bool filled = false;                  // new memory will do
    std::shared_ptr<std::byte[]> bytes;   // on the processor
    at::Tensor device_bytes;              // on a GPU
    Bytes align = 0;                      // kernels may ask how their memory is aligned
    Bytes storage_at = 0, storage_bytes = 0;  // where its storage begins in the source, and how long it is
    std::int64_t offset = 0;              // elements into its storage
    std::vector<std::int64_t> sizes, strides;
    caffe2::TypeMeta dtype;
    c10::Device device{c10::kCPU};
    bool conjugate = false, negative = false, wrapped_number = false, requires_grad = false;
  };
  struct Argument {
    enum class Kind : std::uint8_t { value, tensor, tensors, optional_tensors, generator } kind;
    c10::IValue value;
    std::vector<std::uint32_t> tensors;  // kNone: none
  };

  // What is written without a word may be written when the call is run again: it gets a copy.
  enum class Access : std::uint8_t { reads, may_write, overwrites };
  static Access access_to(const Traits& traits, std::size_t argument);
  static bool may_copy(const c10::TensorImpl& tensor, Access access);

  explicit TorchCall(const c10::OperatorHandle& op) : op_(op), conditions_(Conditions::now()) {}
  bool keep(const c10::IValue& value, Access access, Engine& engine, const Range* filled, std::vector<Range*>* sources);
  bool keep_tensor(const at::Tensor& tensor, Access access, Engine& engine, const Range* filled, std::vector<Range*>* sources,
                   std::uint32_t* index);
  at::Tensor make(const Tensor& tensor, const std::function<Address(std::size_t)>& address_of,
                  std::vector<c10::Storage>* memory) const;

  c10::OperatorHandle op_;
  Conditions conditions_;
  Managing managing_ = this_thread().managing;
  at::Generator generator_;  // as it was
  std::vector<Argument> arguments_;
  std::vector<Tensor> tensors_;
};

}  // namespace vt
