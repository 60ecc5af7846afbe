#include "replay/calls.h"

namespace vt {

void ModelRemaker::run(const Recipes::Run& run, const Take& take, bool) {
  Making making(run);
  for (std::size_t at = 0; at < run.entries.size(); ++at) {
    const auto& call = static_cast<const ModelCall&>(*run.entries[at].step->operation);
    std::vector<Use> uses;
    std::vector<Range*> spare;
    for (std::size_t i = 0; i < run.entries[at].step->sources.size(); ++i) {
      Range& source = making.source(at, i);
      uses.push_back({&source, 0, source.chunks, call.overwrites == i, false});
      engine_.pin_and_fetch({&uses.back(), 1}, "again");
    }
    const std::vector<Range*> owners = making.owners(at, [&](std::size_t entry) -> Making::Overwritten {
      const auto& later = static_cast<const ModelCall&>(*run.entries[entry].step->operation);
      if (!later.overwrites) return std::nullopt;
      return {{*later.overwrites, later.births.size()}};
    });
    for (std::size_t i = 0; i < call.births.size(); ++i) {
      Range& range = allocate(call.births[i], i < owners.size() ? owners[i] : nullptr);
      if (!making.put(at, i, range)) spare.push_back(&range);
      uses.push_back(whole(range, true));
      range.pins.fetch_add(1);
    }
    if (call.scratch > 0) spare.push_back(&allocate(call.scratch, nullptr));
    for (const Use& use : uses) engine_.streams()->ready_on(stream_, *use.range);
    device_.spend(launch_ns_);
    device_.compute(stream_, call.ns);
    engine_.streams()->used(stream_);
    for (const Use& use : uses) {
      engine_.streams()->used_on(stream_, *use.range);
      engine_.unpin(use);
    }
    for (Range* range : spare) release(*range);
    if (call.overwrites) making.overwrote(at, *call.overwrites, call.births.size());
    making.settle(at, take, [&](Range& made) { release(made); });
  }
}

Range& ModelRemaker::allocate(Bytes bytes, const Range* whose) {
  std::vector<ChunkId> chunks;
  const Wish wish = whose != nullptr ? engine_.seats()->again(*whose, &chunks) : Wish{};
  return *engine_.find(engine_.allocate(bytes, "again", stream_, true, wish));
}

void ModelRemaker::release(Range& range) {
  range.pins.fetch_sub(1);
  engine_.free(reinterpret_cast<void*>(range.base));
}

}  // namespace vt
