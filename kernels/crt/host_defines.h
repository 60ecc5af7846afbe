// What CUDA's own headers include and no CUDA package of torch's brings: <crt/...> comes with the toolkit's compiler alone,
// and of those who installed torch with pip few have one. Where there is one, its files lie beside CUDA's and are found first.
//
// Covers: the marks nvcc knows, which mean nothing to another compiler, and how the types of vectors are aligned.
// Leaves: where CUDA's headers are (vtensor/native/cuda_headers.py).
#pragma once

#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __cudart_builtin__
#define CUDARTAPI
#define CUDARTAPI_CDECL

#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)
#define __forceinline__ inline __attribute__((always_inline))
