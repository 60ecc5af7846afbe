#include "iteration/draws.h"

#include <atomic>

namespace vt {

namespace {
std::atomic<std::uint64_t> g_begun{0}, g_ended{0};
thread_local std::uint64_t t_begun = 0, t_ended = 0;
}  // namespace

void Draws::begin() noexcept {
  ++t_begun;
  g_begun.fetch_add(1);
}

void Draws::end() noexcept {
  ++t_ended;
  g_ended.fetch_add(1);
}

std::uint64_t Draws::begun_by_others() noexcept { return g_begun.load() - t_begun; }
std::uint64_t Draws::ended_by_others() noexcept { return g_ended.load() - t_ended; }

}  // namespace vt
