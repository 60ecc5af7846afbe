// The kernels of chunk_ops.cu on a processor: every thread of every block in turn. (atomicAdd is a plain addition then.)

#include <cstdint>
#include <cstring>
#include <random>

#include "check.h"

struct Index {
  unsigned x;
};
static Index threadIdx, blockIdx, blockDim{32}, gridDim{3};
static void atomicAdd(unsigned long long* to, unsigned long long value) { *to += value; }
#define __device__ [[maybe_unused]] static
#define __global__ [[maybe_unused]] static
#include "cuda/chunk_ops.cu"

template <class Kernel>
static void launch(Kernel kernel) {
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) kernel();
  }
}

TEST(pieces_of_any_size_and_place_are_packed_and_come_back) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<unsigned char> device(20000), packed(20000, 0xee);
    for (auto& byte : device) byte = static_cast<unsigned char>(random());
    const auto before = device;
    std::vector<Piece> pieces;
    unsigned long long at = 0, offset = 0;
    for (;;) {
      const unsigned long long bytes = random() % 3 == 0 ? 64 * (random() % 20) : random() % 700;
      const unsigned long long gap = random() % 2 == 0 ? (16 - at % 16) % 16 : random() % 40;
      if (at + gap + bytes > device.size()) break;
      pieces.push_back({device.data() + at + gap, offset, bytes});
      at += gap + bytes;
      offset += bytes;
    }
    launch([&] { gather(pieces.data(), pieces.size(), packed.data()); });
    for (const Piece& piece : pieces) CHECK(std::memcmp(packed.data() + piece.offset, piece.at, piece.bytes) == 0);
    CHECK(packed[offset] == 0xee);  // nothing is written behind the last
    for (const Piece& piece : pieces) std::memset(piece.at, 0, piece.bytes);
    launch([&] { scatter(pieces.data(), pieces.size(), packed.data()); });
    CHECK(device == before);
  }
}

TEST(a_pattern_is_known_again_and_nothing_else_is) {
  std::vector<unsigned long long> words(1000);
  const auto wrong = [&](unsigned long long seed) {
    unsigned long long found = 0;
    launch([&] { verify(words.data(), words.size(), seed, &found); });
    return found;
  };
  launch([&] { fill(words.data(), words.size(), 7); });
  CHECK(wrong(7) == 0);
  CHECK(wrong(8) == words.size());
  words[999] ^= 1;
  std::swap(words[3], words[4]);
  CHECK(wrong(7) == 3);
}

int main() { return run_native_tests(); }
