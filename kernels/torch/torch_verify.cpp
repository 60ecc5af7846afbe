#include "torch/torch_verify.h"

#include <ATen/ATen.h>

#include <map>

#include "torch/torch_remaker.h"

namespace vt {

namespace {
std::mutex g_mutex;
std::map<std::string, Verified>* g_verified = new std::map<std::string, Verified>;  // never destroyed: threads outlive statics
}  // namespace

std::mutex& verified_mutex() noexcept { return g_mutex; }

std::vector<Verified> verified() {
  const std::lock_guard lock(g_mutex);
  std::vector<Verified> found;
  for (const auto& [name, one] : *g_verified) found.push_back(one);
  return found;
}

void note_verified(const std::string& name, const std::optional<bool>& same, const char* why_not) {
  const std::lock_guard lock(g_mutex);
  Verified& one = (*g_verified)[name];
  one.name = name;
  if (same) {
    ++(*same ? one.same : one.different);
  } else {
    ++one.not_seen;
    one.why_not = why_not;
  }
}

void verify(Engine& engine, Range& range, const std::string& name) {
  if (const auto same = made_alike(engine, range)) note_verified(name, same, "");
}

void verify_due(Engine& engine) {
  for (const PlannedMove& due : engine.remake().take_doubted()) {
    if (due.alive()) verify(engine, *due.range, "(when it would have been dropped)");
  }
}

}  // namespace vt
