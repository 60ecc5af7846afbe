#include "engine/fences.h"

#include "store/lent.h"

namespace vt {

namespace {
constexpr unsigned kLaneBits = 8;

std::uint64_t pack(Ticket ticket) { return ticket.number << kLaneBits | static_cast<std::uint64_t>(ticket.lane); }
Ticket unpack(std::uint64_t packed) {
  if (packed == 0) return {};
  return {static_cast<Lane>(packed & ((1u << kLaneBits) - 1)), packed >> kLaneBits};
}
}  // namespace

bool Fences::used_on(Lane stream, Range& range) noexcept {
  const std::uint64_t now = pack(order_.so_far(stream));
  std::uint64_t before = range.used.load();
  while (before == 0 || unpack(before).lane == stream) {
    if (before >= now || range.used.compare_exchange_weak(before, now)) return true;  // never backwards
  }
  return false;
}

void Fences::note_use(Lane stream, Range& range) {
  if (stream == Lane::none) return;
  const Ticket now = order_.so_far(stream);
  const Ticket before = unpack(range.used.exchange(pack(now)));
  if (before.lane != stream || before.number > now.number) range.others.add(before);
}

void Fences::begin(Range& range, Lane stream) {
  const Fence former = uses_of(range);  // of the tensor that had its addresses before
  order_.after(stream, former);
  range.before.add(former);
  range.home = stream;
  range.others.clear();
  range.recorded.clear();
  range.seen.store(false);
  range.made.store(0);
  range.used.store(pack(order_.so_far(stream)));
}

void Fences::end(Range& range) {
  note_use(range.home, range);
  for (const Lane stream : range.recorded) note_use(stream, range);
  range.recorded.clear();  // what they are asked for from now on does not use it
  range.before.clear();
}

void Fences::made(const Range& from, Range& to) {
  to.others.add(uses_of(from));
  to.made.store(from.used.load());
}

void Fences::to_follow(Lane stream, Range& range) noexcept { range.made.store(pack(order_.so_far(stream))); }

Ticket Fences::maker(const Range& range) noexcept { return unpack(range.made.load()); }

Fence Fences::uses_of(const Range& range) const {
  Fence fence = range.others;
  fence.add(unpack(range.used.load()));
  fence.add({Lane::in, range.ready.load()});
  // Until it is freed, whatever they were asked for.
  for (const Lane stream : range.recorded) fence.add(order_.now(stream));
  return fence;
}

Fence Fences::touched_by(const Range& range) const {
  Fence fence = uses_of(range);
  for (std::uint32_t i = 0; i < range.chunks; ++i) fence.add({Lane::out, range.parts[i].gone});
  return fence;
}

void Fences::add_to_slot(const Range& range, const VTensor& part) {
  if (Lent::holds(part.slot)) return;  // nobody writes there
  Fence& fence = at(slot_after_, part.slot);
  fence.add({Lane::out, part.gone});
  fence.add({Lane::in, range.ready.load()});
}

}  // namespace vt
