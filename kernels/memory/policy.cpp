#include "memory/policy.h"

namespace vt {

Order order_from(const std::string& name) {
  if (name == "lru" || name == "plan") return Order::lru;  // what no plan says, the longest unused decides
  if (name == "size_staleness") return Order::size_staleness;
  throw InvalidUse("unknown policy '" + name + "'; choose 'plan', 'lru' or 'size_staleness'");
}

Granularity granularity_from(const std::string& name) {
  if (name == "chunk") return Granularity::chunk;
  if (name == "tensor") return Granularity::tensor;
  throw InvalidUse("unknown granularity '" + name + "'; choose 'chunk' or 'tensor'");
}

}  // namespace vt
