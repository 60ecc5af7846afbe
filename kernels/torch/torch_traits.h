// What an operator does with its arguments, looked up once per operator.
//
// Covers: how far arguments reach, which of them it reads and writes, whether it is made of others, whether it can be run again.
// Leaves: whose kernels it has (torch_kernels.h), what follows (torch_observer.cpp).
#pragma once

#include <ATen/record_function.h>

#include "iteration/recorder.h"

namespace vt {

// Whether an operation can be run again, bit for bit; else why not.
enum class Again : std::uint8_t {
  yes,
  unspecified,  // its result is memory to be filled (torch.empty, torch.zeros): whoever does, may do so unseen
  custom,       // not one of aten's, or with another's kernel, which may do anything, or with one that Python chooses
  random,       // it draws random numbers, from a generator that it cannot be given
  unrepeatable, // two runs may differ
  several,      // it writes more than one tensor
  reshapes,     // it changes what memory its arguments have, or goes by it
  parts,        // what it makes has no memory of its own
};
const char* why_not(Again again) noexcept;

struct Traits {
  // The operator's name and overload, told apart by address: both strings live inside its one schema.
  const char* name = nullptr;
  const char* overload = nullptr;
  // Its arguments are not read by it (a view), or only by the operators it is made of.
  bool skip_arguments = false;
  // It asks its arguments for their sizes only: they need not be there.
  bool only_sizes = false;
  // It is made of other operators wholly: it holds no memory between them, so it pins nothing for its length.
  // (One whole LSTM would otherwise keep all its steps in memory.)
  bool transparent = false;
  // A range of the program somebody named, no operation. A torch.autograd.Function is one with arguments, which its kernels may
  // read without telling.
  bool named = false;
  bool writes_seen = false;  // of such a range: it writes by operations only
  // It goes on using its arguments, and copies that it made of them, after it returned, on a stream of its own (NCCL) or by
  // system calls (gloo): they stay where they are.
  bool keeps_arguments = false;
  std::uint64_t written = 0;    // bit i: argument i is written, by the schema's word
  std::uint64_t may_write = 0;  // the same, and all of an operator whose schema may not say it
  OpId id = 0;
  Again again = Again::custom;
  bool fills = false;           // it overwrites the whole of its first argument, and does not read it
  bool adds_anyhow = false;     // on a GPU: two runs may differ, unless torch is to use deterministic algorithms
  bool draws = false;           // it draws random numbers
  std::uint32_t generator = kNone;  // the argument they come from
  bool fresh_lists = false;     // it returns lists of new tensors
  std::uint8_t fresh = 0;       // tensors it returns that are no views of its arguments
  // Under autocast for a device of its arguments it casts them and calls itself again.
  bool cast_on_cpu = false, cast_on_cuda = false;
};

// Elements from a dense tensor's first to behind the last that it can reach; 0 if it has none.
std::int64_t reach(const c10::TensorImpl& tensor);

// Of the operator whose operation begins. Stays until the thread observes another operation.
const Traits& traits_of(const at::RecordFunction& function);
// What is known of operators may not be so any more: they have other kernels.
void look_again() noexcept;

// Whether a torch.autograd.Function of that name writes by operations only.
bool writes_by_operations(const std::string& name);

}  // namespace vt
