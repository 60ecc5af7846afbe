#include "iteration/operators.h"

#include <mutex>
#include <unordered_map>

namespace vt {

namespace {
std::mutex g_mutex;
std::unordered_map<OpId, std::string>* g_names = new std::unordered_map<OpId, std::string>;  // never destroyed
}  // namespace

OpId operator_id(const std::string& name) {
  OpId id = kHashSeed;
  for (const char c : name) id = mix(id, static_cast<unsigned char>(c));
  std::lock_guard lock(g_mutex);
  g_names->emplace(id, name);
  return id;
}

std::string operator_name(OpId id) {
  std::lock_guard lock(g_mutex);
  const auto found = g_names->find(id);
  return found == g_names->end() ? "?" : found->second;
}

void hold_operators() { g_mutex.lock(); }

void let_operators_go() { g_mutex.unlock(); }

}  // namespace vt
