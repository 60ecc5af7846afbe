#include "iteration/managed.h"

#include <algorithm>
#include <iterator>

#include "iteration/recording.h"
#include "process/registry.h"

namespace vt {

namespace {
// Where a plan wants what is allocated next.
Wish wish_of(Thread& thread, Engine& engine, Bytes bytes, const Recording& recording) {
  if (engine.seats() == nullptr) return {};
  if (thread.remaking > 0) {
    const std::size_t nth = thread.seen_call.births.size();  // if what is made now outlives the operation, as all before it did
    const Range* whose = nth < thread.making.size() ? thread.making[nth] : nullptr;
    return whose != nullptr && whose->bytes == bytes ? engine.seats()->again(*whose, &thread.wished) : Wish{};
  }
  if (!recording) return {};
  Wish wish = recording->wish();
  thread.wished.assign(wish.chunks.begin(), wish.chunks.end());  // plans may be forgotten as soon as the recording is let go of
  wish.chunks = thread.wished;
  return wish;
}

void pin_for(Thread& thread, Engine& engine, std::span<Range* const> ranges, bool write) {
  if (thread.kept_engine != &engine) thread.kept.clear();  // an earlier session's, whose engine may be gone
  thread.kept_engine = &engine;
  const auto first = static_cast<std::ptrdiff_t>(thread.kept.size());
  for (Range* const range : ranges) thread.kept.push_back(all_parts(*range, write));
  const std::span<const Use> uses(thread.kept.begin() + first, thread.kept.end());
  if (uses.empty()) return;
  engine.pin_and_fetch(uses, "a backward written in Python");
  const Lane stream = current_stream(engine);
  for (const Use& use : uses) {
    if (stream != Lane::none) engine.streams()->ready_on(stream, *use.range);
  }
}
}  // namespace

void* allocate_managed(Engine& engine, Bytes bytes, Lane stream) {
  Thread& thread = this_thread();
  works(thread);
  const bool newborn = thread.solid > 0 && thread.engine == &engine;
  void* address = nullptr;
  Wish wish;
  {
    const Recording recording{thread};
    if (recording) begin_row(recording, thread, engine, stream);
    wish = wish_of(thread, engine, bytes, recording);
  }
  {
    const Stall stall(thread);
    address = engine.allocate(bytes, operation_name(thread), stream, newborn, wish);
  }
  if (address == nullptr) return nullptr;
  Range* range = engine.find(address);
  if (thread.given != nullptr) {
    try {
      Given::made(thread.given, range->base);
    } catch (...) {
      if (newborn) range->pins.fetch_sub(1);
      engine.free(address, false);
      throw;
    }
  }
  if (const Recording recording{thread}) recording->born(*range);
  if (newborn) thread.newborns.push_back(range);
  if (thread.seen_call.counts) thread.seen_call.births.push_back(range);
  return address;
}

void share_managed(Engine& engine, const void* address) {
  std::atomic<std::uint32_t>& tenants = engine.find(address)->tenants;
  std::uint32_t none = 0;
  if (!tenants.compare_exchange_strong(none, 2)) tenants.fetch_add(1);
}

void free_managed(Engine& engine, void* address) {
  if (Range* shelf = engine.find(address); shelf->tenants.load() != 0) {
    if (shelf->tenants.fetch_sub(1) > 1) return;
    address = reinterpret_cast<void*>(shelf->base);
  }
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
  if (auto& births = thread.seen_call.births; !births.empty()) std::erase(births, engine.find(address));
  bool keep = true;
  if (&engine == current_engine()) {  // not a tensor of an earlier session
    if (const Recording recording{thread}) keep = recording->died(*engine.find(address));
  }
  engine.free(address, keep);
}

void keep(Engine& engine, std::span<const Address> addresses, bool unseen) {
  Thread& thread = this_thread();
  std::vector<Range*> ranges;
  for (const Address address : addresses) {
    Range* const range = engine.find(reinterpret_cast<const void*>(address));
    if (range != nullptr) ranges.push_back(range);
  }
  if (engine.streams() != nullptr) pin_for(thread, engine, ranges, unseen);
  if (!unseen || thread.remaking > 0) return;
  for (Range* const range : ranges) {
    if (range->known.load()) engine.remake().before_write(*range);
  }
}

std::size_t kept(const Engine& engine) noexcept {
  const Thread& thread = this_thread();
  return thread.kept_engine == &engine ? thread.kept.size() : 0;
}

void release_kept(Engine& engine, std::size_t but) {
  Thread& thread = this_thread();
  if (thread.kept_engine != &engine) return;
  const Lane stream = thread.kept.size() > but ? current_stream(engine) : Lane::none;
  if (stream != Lane::none) engine.streams()->used(stream);
  for (; thread.kept.size() > but; thread.kept.pop_back()) {
    if (stream != Lane::none) engine.streams()->used_on(stream, *thread.kept.back().range);
    engine.unpin(thread.kept.back());
  }
  if (stream != Lane::none) engine.streams()->pulse(stream);
}

}  // namespace vt
