// What a test sees of the CUDA driver that stands in for a GPU's: standin_cuda.cpp.
#pragma once

#include <deque>

#include "testing/late_work.h"

using vt::LateWork;

struct StandinCuda {
  LateWork work;
  std::size_t limit = std::size_t{1} << 30;  // bytes of device memory
  int virtual_memory = 1, integrated = 0;
  int host_node = -1;         // whose memory it uses in place; -1 for none. Set before a driver begins
  std::size_t in_host = 0;    // bytes of that
  std::uint64_t calls = 0;    // of functions that can fail
  std::uint64_t fail_at = 0;  // the call of this number fails; 0 for none
  bool lost = false;          // every call fails from now on
  std::size_t events = 0;     // alive
  std::size_t records = 0;    // of them, asked for
  std::size_t copies = 0;     // asked for
  void* capturing = nullptr;  // the stream on which a graph is captured
  std::deque<float> elapsed;  // ms that cuEventElapsedTime tells next; when there are none, 1 between two events
  std::size_t pinned = 0, most_pinned = std::size_t{1} << 30;  // bytes of the host

  void begin(std::uint32_t seed);  // a fresh device, its work drawn from a seed
  std::size_t handles() const;
  std::size_t mappings() const;
};

extern "C" StandinCuda* standin_cuda();
