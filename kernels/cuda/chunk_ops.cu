// Kernels on the bytes of chunks: many pieces into one run of bytes and back, a pattern written and checked.
//
// Covers: one launch for any number of pieces, of any size and alignment.
// Leaves: loading and launching (vtensor/native/chunk_ops.py, through CuPy). The engine calls none of this: one copy of the copy engine
// moves a whole chunk, and a kernel beside the program's own takes processors from it.
//
// Plain C++ but for the words of CUDA, so that tests/native/chunk_ops_programs.cpp runs it on a processor.

extern "C" {

struct Piece {
  unsigned char* at;            // device address
  unsigned long long offset;    // of its copy in the packed run
  unsigned long long bytes;
};

// Sixteen bytes at a time where both ends allow it. All threads of a block share one piece.
__device__ inline void move(unsigned char* to, const unsigned char* from, unsigned long long bytes) {
  struct alignas(16) Word {
    unsigned long long low, high;
  };
  unsigned long long done = 0;
  if ((reinterpret_cast<unsigned long long>(to) | reinterpret_cast<unsigned long long>(from)) % sizeof(Word) == 0) {
    done = bytes / sizeof(Word) * sizeof(Word);
    for (unsigned long long i = threadIdx.x; i < bytes / sizeof(Word); i += blockDim.x) {
      reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
    }
  }
  for (unsigned long long i = done + threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}

__global__ void gather(const Piece* pieces, unsigned long long count, unsigned char* packed) {
  for (unsigned long long p = blockIdx.x; p < count; p += gridDim.x) move(packed + pieces[p].offset, pieces[p].at, pieces[p].bytes);
}

__global__ void scatter(const Piece* pieces, unsigned long long count, const unsigned char* packed) {
  for (unsigned long long p = blockIdx.x; p < count; p += gridDim.x) move(pieces[p].at, packed + pieces[p].offset, pieces[p].bytes);
}

// What word `index` of a pattern is: neighbours, and patterns of neighbouring seeds, have little in common (the finalizer of
// MurmurHash3, A. Appleby).
__device__ inline unsigned long long pattern(unsigned long long seed, unsigned long long index) {
  unsigned long long x = seed * 0x9e3779b97f4a7c15ull + index + 1;
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

__global__ void fill(unsigned long long* words, unsigned long long count, unsigned long long seed) {
  const unsigned long long all = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += all) {
    words[i] = pattern(seed, i);
  }
}

// Adds the number of words that are not the pattern's to *wrong.
__global__ void verify(const unsigned long long* words, unsigned long long count, unsigned long long seed,
                       unsigned long long* wrong) {
  const unsigned long long all = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  unsigned long long found = 0;
  for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += all) {
    found += words[i] != pattern(seed, i);
  }
  if (found != 0) atomicAdd(wrong, found);
}

}  // extern "C"
