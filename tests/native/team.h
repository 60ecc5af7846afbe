// A team of threads that copy (Team in kernels/device/host_lane.h): what torch's OpenMP is to the product.
#pragma once

#include <thread>
#include <vector>

inline void team_of_three(void (*work)(void*), void* data, unsigned, unsigned) {
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) others.emplace_back(work, data);
  work(data);
  for (std::thread& other : others) other.join();
}
