#include "engine/roster.h"

namespace vt {

namespace {
bool in_host(State state) { return state == State::absent || state == State::arriving || state == State::borrowed; }
}  // namespace

std::uint32_t Roster::begin(Range& range, Bytes bytes) {
  range.bytes = bytes;
  range.life = Life::live;
  range.exported = range.given_away = range.fixed = range.orphaned = false;
  range.exported_for = range.touches = 0;
  range.serial = ++serials_;
  range.tag = {};
  range.part_use.clear();
  range.last_use.store(ground_.now(), std::memory_order_relaxed);
  ++live_;
  ground_.counters.tensor_bytes.add(bytes);
  ground_.counters.wanted_bytes.add(ground_.bytes_of(range.chunks));
  range.resident = 0;
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    if (range.parts[i].state == State::resident) {
      ++range.resident;
      continue;
    }
    ground_.counters.absent_bytes.add(ground_.bytes_in(range, i));
    ground_.counters.borrowed_bytes.add(ground_.bytes_in(range, i));
  }
  const std::uint32_t missing = range.chunks - range.resident;
  // Mostly none is, and none was: no fence then, on the way of every allocation.
  if (range.missing.load(std::memory_order_relaxed) != missing) range.missing.store(missing);
  if (range.resident > 0) enroll(range);
  return missing;
}

void Roster::end(Range& range) {
  if (range.roster_at != kNone) strike(range);
  range.freed_at = ground_.now();
  --live_;
  ground_.counters.tensor_bytes.sub(range.bytes);
  ground_.counters.wanted_bytes.sub(ground_.bytes_of(range.chunks));
}

void Roster::forget(const Range& range, std::uint32_t index) {
  const State state = range.parts[index].state;
  if (in_host(state)) ground_.counters.absent_bytes.sub(ground_.bytes_in(range, index));
  if (state == State::borrowed) ground_.counters.borrowed_bytes.sub(ground_.bytes_in(range, index));
  if (state == State::dropped) ground_.counters.dropped_bytes.sub(ground_.bytes_in(range, index));
}

void Roster::enter(Range& range, std::uint32_t index, Event event) {
  VTensor& part = range.parts[index];
  const State before = part.state;
  const auto after = next_state(before, event);
  if (!after) fatal(std::string("event ") + name_of(event) + " in state " + name_of(before));
  part.state = *after;
  Counters& counters = ground_.counters;
  const Bytes bytes = ground_.bytes_in(range, index);
  if (in_host(*after) && !in_host(before)) counters.absent_bytes.add(bytes);
  if (!in_host(*after) && in_host(before)) counters.absent_bytes.sub(bytes);
  if (*after == State::borrowed) counters.borrowed_bytes.add(bytes);
  if (before == State::borrowed) counters.borrowed_bytes.sub(bytes);
  if (*after == State::dropped) counters.dropped_bytes.add(bytes);
  if (before == State::dropped) counters.dropped_bytes.sub(bytes);
  if (before == State::resident && --range.resident == 0) strike(range);
  if (*after == State::resident) {
    if (range.resident++ == 0) enroll(range);
    range.missing.fetch_sub(1);
  }
}

void Roster::enroll(Range& range) {
  range.roster_at = static_cast<std::uint32_t>(ranges_.size());
  ranges_.push_back(&range);
}

void Roster::strike(Range& range) {
  ranges_[range.roster_at] = ranges_.back();
  ranges_[range.roster_at]->roster_at = range.roster_at;
  ranges_.pop_back();
  range.roster_at = kNone;
}

std::string Roster::validate(const Range& range) const {
  std::uint32_t resident = 0, clean = 0, pins = 0;
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    const VTensor& part = range.parts[i];
    if (!consistent(part)) {
      return std::string("a vTensor in state ") + name_of(part.state) + " holds the wrong handles";
    }
    resident += part.state == State::resident;
    clean += part.clean();
    pins += part.pins;
    // An exported vTensor is unmapped only if the device once refused to map it; then the fault handler serves it.
    if (range.exported && (part.clean() || (part.state == State::absent && ground_.counters.failures == 0))) {
      return "an exported vTensor is clean or not mapped";
    }
  }
  if (resident != range.resident) return "the resident count of a range is wrong";
  if (clean != range.clean.load()) return "the clean count of a range is wrong";
  if (pins != range.part_pins) return "the pin count of a range is wrong";
  if (range.missing.load() != range.chunks - resident) return "the missing count of a range is wrong";
  const bool listed = range.roster_at < ranges_.size() && ranges_[range.roster_at] == &range;
  if (listed != (resident > 0)) return "the roster and a range disagree";
  return "";
}

}  // namespace vt
