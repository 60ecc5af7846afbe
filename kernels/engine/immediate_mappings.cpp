#include "engine/immediate_mappings.h"

namespace vt {

Status ImmediateMappings::back(Range& range, std::span<const ChunkId> chunks) {
  for (std::uint32_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i] == kNone) continue;
    const Status status = ground_.driver.map(ground_.address_of(range, i), chunks[i], Access::write);
    if (!status.ok()) {
      while (i-- > 0) {
        if (chunks[i] != kNone) take_away(range, i);
      }
      return status;
    }
    ++ground_.counters.remaps;
  }
  return kOk;
}

void ImmediateMappings::take_away(Range& range, std::uint32_t index) {
  ground_.must("unmapping a freed tensor", [&] { return ground_.driver.unmap(ground_.address_of(range, index), Door::ajar); });
}

}  // namespace vt
