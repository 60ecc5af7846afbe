#include "memory/policy.h"

namespace vt {

VictimOrder victim_order_from(const std::string& name) {
  if (name == "lru" || name == "plan") return VictimOrder::lru;  // what no plan says, the longest unused decides
  if (name == "size_staleness" || name == "delta") return VictimOrder::size_staleness;
  throw InvalidUse("unknown policy '" + name + "'; choose 'plan', 'lru', 'size_staleness' or 'delta'");
}

Granularity granularity_from(const std::string& name) {
  if (name == "chunk") return Granularity::chunk;
  if (name == "tensor") return Granularity::tensor;
  throw InvalidUse("unknown granularity '" + name + "'; choose 'chunk' or 'tensor'");
}

Leaving leaving_from(const std::string& name) {
  if (name == "copy") return Leaving::copy;
  if (name == "cheaper") return Leaving::cheaper;
  if (name == "drop") return Leaving::drop;
  throw InvalidUse("unknown way to leave '" + name + "'; choose 'copy', 'cheaper' or 'drop'");
}

}  // namespace vt
