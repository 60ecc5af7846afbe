#include "cuda/cuda_api.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <vector>

#include "cuda/cuda_status.h"

namespace vt {

namespace {

#define VT_TEXT_OF(text) #text
#define VT_SYMBOL(name) VT_TEXT_OF(name)  // after cuda.h has renamed it

CudaApi open(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw InvalidUse("no NVIDIA driver: " + library + " cannot be loaded (" + dlerror() +
                     "). Install the driver, or use device=\"cpu\".");
  }
  CudaApi api;
#define VT_FIND(name)                                                                                               \
  api.name##_ = reinterpret_cast<decltype(api.name##_)>(dlsym(handle, VT_SYMBOL(name)));                             \
  if (api.name##_ == nullptr) throw InvalidUse(library + " is too old: it has no " VT_SYMBOL(name) "; update the NVIDIA driver.");
  VT_CUDA_FUNCTIONS(VT_FIND)
#undef VT_FIND
  if (const CUresult result = api.cuInit_(0); result != CUDA_SUCCESS) {
    throw InvalidUse("the NVIDIA driver does not start: " + api.describe(result) +
                     ". `nvidia-smi` should list a GPU; in a container, pass --gpus all.");
  }
  return api;
}

}  // namespace

const CudaApi& CudaApi::load(const char* library) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::string, CudaApi>();  // never destroyed: tensors of the program's may outlive it
  const std::string name = library != nullptr ? library : "libcuda.so.1";
  std::lock_guard lock(mutex);
  const auto found = loaded.find(name);
  return found != loaded.end() ? found->second : loaded.emplace(name, open(name)).first->second;
}

std::string CudaApi::describe(CUresult result) const {
  const char* name = nullptr;
  if (cuGetErrorName_(result, &name) == CUDA_SUCCESS && name != nullptr) return name;
  return "CUDA error " + std::to_string(static_cast<int>(result));
}

CUresult CudaApi::map(CUdeviceptr at, Bytes each, std::span<const CUmemGenericAllocationHandle> handles,
                      std::span<const CUmemLocation> users) const {
  CUresult result = CUDA_SUCCESS;
  std::size_t mapped = 0;
  while (mapped < handles.size() && (result = cuMemMap_(at + mapped * each, each, 0, handles[mapped], 0)) == CUDA_SUCCESS) {
    ++mapped;
  }
  if (result == CUDA_SUCCESS) {
    std::vector<CUmemAccessDesc> access;
    for (const CUmemLocation& user : users) access.push_back({user, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    result = cuMemSetAccess_(at, mapped * each, access.data(), access.size());
  }
  if (result == CUDA_SUCCESS) return result;
  while (mapped-- > 0) {
    const Status undone = status_if_not_lost("cuMemUnmap", cuMemUnmap_(at + mapped * each, each));
    if (!undone.ok()) fatal("a mapping that was not finished cannot be taken back");
  }
  return result;
}

namespace {
CUmemAllocationProp memory_at(CUmemLocationType type, int id) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = type;
  properties.location.id = id;
  return properties;
}
}  // namespace

CUmemAllocationProp memory_of(int ordinal) { return memory_at(CU_MEM_LOCATION_TYPE_DEVICE, ordinal); }
CUmemAllocationProp memory_of_host(int node) { return memory_at(CU_MEM_LOCATION_TYPE_HOST_NUMA, node); }

}  // namespace vt
