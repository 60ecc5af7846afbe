// What a test sees of the CUDA driver that stands in for a GPU's: standin_cuda.cpp.
#pragma once

#include "late_work.h"

struct StandinCuda {
  LateWork work;
  std::size_t limit = std::size_t{1} << 30;  // bytes of device memory
  int virtual_memory = 1, integrated = 0;
  std::uint64_t calls = 0;    // of functions that can fail
  std::uint64_t fail_at = 0;  // the call of this number fails; 0 for none
  std::size_t events = 0;     // alive

  virtual ~StandinCuda() = default;  // virtual calls reach into the library without linking it
  virtual void begin(std::uint32_t seed);
  virtual std::size_t handles() const;
  virtual std::size_t mappings() const;
  virtual std::size_t reservations() const;
};
