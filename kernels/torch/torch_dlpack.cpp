#include "torch/torch_dlpack.h"

#include <ATen/dlpack.h>

namespace vt {

namespace {

const DLPackExchangeAPI* g_torchs = nullptr;
Told g_told = nullptr;

bool told(const DLTensor& tensor) { return g_told(static_cast<const char*>(tensor.data) + tensor.byte_offset); }

int give_tensor(void* object, DLManagedTensorVersioned** out) {
  const int failed = g_torchs->managed_tensor_from_py_object_no_sync(object, out);
  if (failed != 0 || told((*out)->dl_tensor)) return failed;
  (*out)->deleter(*out);
  *out = nullptr;
  return -1;
}

int look_at_tensor(void* object, DLTensor* out) {
  const int failed = g_torchs->dltensor_from_py_object_no_sync(object, out);
  return failed != 0 || told(*out) ? failed : -1;
}

}  // namespace

void* telling_table(void* torchs, Told told) {
  static DLPackExchangeAPI table;
  if (torchs == &table) return &table;
  g_torchs = static_cast<const DLPackExchangeAPI*>(torchs);
  g_told = told;
  table = *g_torchs;
  table.managed_tensor_from_py_object_no_sync = give_tensor;
  if (table.dltensor_from_py_object_no_sync != nullptr) table.dltensor_from_py_object_no_sync = look_at_tensor;
  return &table;
}

}  // namespace vt
