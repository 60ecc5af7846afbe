#include "managed.h"

#include <algorithm>

#include "registry.h"

namespace vt {

void* allocate_managed(Engine& engine, Bytes bytes, Ticket::Lane stream) {
  Thread& thread = this_thread();
  const bool newborn = thread.solid > 0 && thread.engine == &engine;
  void* address = nullptr;
  if (const Recording recording{thread}) begin_row(recording, thread, engine, stream);
  {
    const Stall stall(thread);
    address = engine.allocate(bytes, operation_name(thread), stream, newborn);
  }
  if (address == nullptr) return nullptr;
  Range* range = engine.find(address);
  if (const Recording recording{thread}) recording->born(*range);
  if (newborn) thread.newborns.push_back(range);
  return address;
}

void free_managed(Engine& engine, void* address) {
  Thread& thread = this_thread();
  if (!thread.newborns.empty()) {
    // A temporary of a running operation: it needs no pin any more. It is among the newest, so search backwards.
    Range* range = engine.find(address);
    const auto found = std::find(thread.newborns.rbegin(), thread.newborns.rend(), range);
    if (found != thread.newborns.rend()) {
      range->pins.fetch_sub(1);
      thread.newborns.erase(std::next(found).base());
    }
  }
  bool keep = true;
  if (&engine == current_engine()) {  // not a tensor of an earlier session
    if (const Recording recording{thread}) keep = recording->died(*engine.find(address));
  }
  engine.free(address, keep);
}

}  // namespace vt
