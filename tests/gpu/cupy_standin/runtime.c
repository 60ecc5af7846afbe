/* The CUDA runtime as CuPy's memory pools need it, in ordinary memory: one device of 1 GiB, every call done at once. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { ok = 0, out_of_memory = 2 };
static size_t used = 0;
static const size_t total = (size_t)1 << 30;

int cudaGetDeviceCount(int* count) { return *count = 1, ok; }
int cudaGetDevice(int* device) { return *device = 0, ok; }
int cudaSetDevice(int device) { return device == 0 ? ok : 101; }
int cudaDriverGetVersion(int* version) { return *version = 13000, ok; }
int cudaRuntimeGetVersion(int* version) { return *version = 13000, ok; }
int cudaDeviceGetAttribute(int* value, int what, int device) { return *value = 0, ok; }
int cudaDeviceSynchronize(void) { return ok; }
int cudaGetLastError(void) { return ok; }
const char* cudaGetErrorName(int error) { return error == out_of_memory ? "cudaErrorMemoryAllocation" : "cudaErrorStandin"; }
const char* cudaGetErrorString(int error) { return cudaGetErrorName(error); }

int cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = total - used;
  *total_bytes = total;
  return ok;
}
int cudaMalloc(void** at, size_t bytes) {
  if (used + bytes > total) return out_of_memory;
  size_t* block = malloc(bytes + 64);
  *block = bytes;
  used += bytes;
  *at = (char*)block + 64;
  return ok;
}
int cudaFree(void* at) {
  if (at == NULL) return ok;
  size_t* block = (size_t*)((char*)at - 64);
  used -= *block;
  free(block);
  return ok;
}
int cudaHostAlloc(void** at, size_t bytes, unsigned flags) { return *at = malloc(bytes), ok; }
int cudaFreeHost(void* at) { return free(at), ok; }
int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) { return memcpy(to, from, bytes), ok; }
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) { return memcpy(to, from, bytes), ok; }
int cudaMemset(void* at, int value, size_t bytes) { return memset(at, value, bytes), ok; }
int cudaMemsetAsync(void* at, int value, size_t bytes, void* stream) { return memset(at, value, bytes), ok; }

int cudaStreamCreate(void** stream) { return *stream = malloc(1), ok; }
int cudaStreamCreateWithFlags(void** stream, unsigned flags) { return cudaStreamCreate(stream); }
int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) { return cudaStreamCreate(stream); }
int cudaStreamDestroy(void* stream) { return free(stream), ok; }
int cudaStreamSynchronize(void* stream) { return ok; }
int cudaStreamQuery(void* stream) { return ok; }
int cudaStreamWaitEvent(void* stream, void* event, unsigned flags) { return ok; }
int cudaStreamIsCapturing(void* stream, int* status) { return *status = 0, ok; }
int cudaEventCreate(void** event) { return *event = malloc(1), ok; }
int cudaEventCreateWithFlags(void** event, unsigned flags) { return cudaEventCreate(event); }
int cudaEventDestroy(void* event) { return free(event), ok; }
int cudaEventRecord(void* event, void* stream) { return ok; }
int cudaEventQuery(void* event) { return ok; }
int cudaEventSynchronize(void* event) { return ok; }

#include "stubs.inc"
