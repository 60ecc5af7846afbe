#include "torch/torch_kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

namespace vt {

namespace {

// Where torch chooses among kernels of its own, in Python: from 2.13 on, for a few operators and where Triton is there.
constexpr std::string_view kChooses = "/torch/_native/registry.py:";

// Where a kernel was compiled, by the line that the dispatcher has of it.
std::string source_of(const std::string& line) {
  constexpr std::string_view kAt = "registered at ";
  const std::size_t at = line.find(kAt);
  return at == std::string::npos ? "" : line.substr(at + kAt.size());
}

// Of a source of torch's the folders that torch has it in, without those around; all of it, if there are none.
std::string_view in_torch(std::string_view source) {
  const std::size_t at = std::min(source.find("aten/src/ATen/"), source.find("torch/csrc/"));
  return at == std::string_view::npos ? source : source.substr(at);
}

// The directories in which torch was compiled, by the kernels of an operator that nobody else has one for: its own, and that of
// what it generated. Others have folders of torch's names, too.
const std::set<std::string>& homes_of_torch() {
  static const std::set<std::string> homes = [] {
    std::set<std::string> found;
    const auto known = c10::Dispatcher::singleton().findOp({"aten::digamma", ""});
    std::istringstream kernels(known ? known->dumpState() : "");
    for (std::string line; std::getline(kernels, line);) {
      const std::string source = source_of(line);
      if (const std::size_t around = source.size() - in_torch(source).size(); around < source.size()) {
        found.insert(source.substr(0, around));
      }
    }
    return found;
  }();
  return homes;
}

bool is_compiled_into_torch(const std::string& source) {
  const std::string_view within = in_torch(source);
  const bool is_one = within.starts_with("aten/src/ATen/") || within.starts_with("torch/csrc/");
  return is_one && homes_of_torch().contains(source.substr(0, source.size() - within.size()));
}

}  // namespace

// Nobody but the dispatcher's own list says whose they are.
Kernels kernels_of(const c10::FunctionSchema& schema, const std::optional<c10::OperatorHandle>& handle) {
  const std::string& name = schema.name();
  if (!handle || !(name.starts_with("aten::") || name.starts_with("_native::"))) return Kernels::foreign;
  Kernels found = Kernels::torchs;
  std::istringstream kernels(handle->dumpState());
  for (std::string line; std::getline(kernels, line);) {
    const bool runs = line.starts_with("CPU") || line.starts_with("CUDA") || line.starts_with("Autograd") ||
                      line.starts_with("Composite");
    if (!runs || line.find("(inactive)") != std::string::npos) continue;
    const std::string source = source_of(line);
    if (source.find(kChooses) != std::string::npos) {
      found = Kernels::chosen;
    } else if (!is_compiled_into_torch(source)) {
      return Kernels::foreign;
    }
  }
  return found;
}

}  // namespace vt
