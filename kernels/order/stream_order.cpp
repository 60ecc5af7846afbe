#include "order/stream_order.h"

namespace vt {

namespace {
// Tries again, and stops the program: a device that can neither record nor wait has lost its context, and no data on it can be
// trusted any more.
template <typename Call>
void must(Call call) {
  Status status;
  for (int attempt = 0; attempt < 3; ++attempt) {
    status = call();
    if (status.ok()) return;
  }
  fatal("the device cannot keep the order of its work: " + describe(status));
}
}  // namespace

Ticket StreamOrder::make(Ticket ticket) {
  if (!is_stream(ticket.lane)) return ticket;  // copies are made with their tickets
  Stream& stream = at(ticket.lane);
  std::lock_guard lock(stream.making);
  const std::uint64_t marked = stream.marked.load();
  if (marked >= ticket.number) return ticket;
  stream.marked.store(marked + 1);  // before the device is told: see now()
  must([&] { return driver_.mark(ticket.lane, &ticket); });
  if (ticket.number != marked + 1) fatal("the device numbers its tickets in another way");
  return ticket;
}

Lane StreamOrder::adopt(void* stream, bool foreign) {
  Lane lane = Lane::none;
  must([&] { return driver_.adopt(stream, &lane); });
  at(lane).foreign.store(foreign);
  lanes_ = std::max(lanes_, static_cast<std::size_t>(lane) + 1);
  return lane;
}

void StreamOrder::used(Lane stream) noexcept {
  std::atomic<std::uint64_t>& asked = at(stream).asked;
  const std::uint64_t ticket = now(stream).number;
  for (auto before = asked.load(); before < ticket && !asked.compare_exchange_weak(before, ticket);) {
  }
}

void StreamOrder::pulse(Lane stream) {
  const std::uint32_t call = at(stream).calls.fetch_add(1, std::memory_order_relaxed);
  if (call % kPulse == 0 || at(stream).foreign.load()) make(so_far(stream));
}

void StreamOrder::mark_streams() {
  for (const Ticket& newest : streams()) make(newest);
}

void StreamOrder::after(Lane later, Ticket earlier) {
  if (earlier.number == 0 || earlier.lane == later) return;
  Stream& stream = at(later);
  const auto lane = static_cast<std::size_t>(earlier.lane);
  if (stream.known.size() <= lane) stream.known.resize(lane + 1, 0);
  if (stream.known[lane] >= earlier.number) return;
  earlier = make(earlier);
  const bool for_a_copy = is_stream(later) && !is_stream(earlier.lane);
  if (for_a_copy) stopwatch_.wait_begins(later);
  must([&] { return driver_.order(later, earlier); });
  if (for_a_copy) stopwatch_.wait_ends(later);
  stream.end = 0;
  if (stream.foreign.load()) return;
  stream.known[lane] = earlier.number;
  if (earlier.lane == Lane::in) stream.waited_in.store(earlier.number);
}

void StreamOrder::after(Lane later, const Fence& fence) {
  for (const Ticket& point : fence) after(later, point);
}

bool StreamOrder::passed(Ticket made) {
  const CopyState state = driver_.poll(made, nullptr);
  // Not "passed": memory would be handed on while nobody knows who still uses it.
  if (state == CopyState::failed) fatal("the device stopped answering; an earlier message of the program may say why");
  return state == CopyState::done;
}

bool StreamOrder::passed(const Fence& fence) {
  return std::all_of(fence.begin(), fence.end(), [&](const Ticket& point) { return passed(make(point)); });
}

void StreamOrder::wait(const Fence& fence) {
  for (const Ticket& point : fence) {
    const Ticket made = make(point);
    if (passed(made)) continue;
    ++waits_;
    while (!passed(made)) driver_.wait(made);
  }
}

Ticket StreamOrder::end_of(Lane copies) {
  Ticket ticket{copies, at(copies).end};
  if (ticket.number == 0) must([&] { return driver_.mark(copies, &ticket); });
  at(copies).end = ticket.number;
  return ticket;
}

Fence StreamOrder::operations() const {
  Fence fence;
  for (auto i = static_cast<std::size_t>(Lane::first_stream); i < lanes_; ++i) {
    fence.add({static_cast<Lane>(i), streams_[i].asked.load()});
  }
  return fence;
}

Fence StreamOrder::streams() const {
  Fence fence;
  for (auto i = static_cast<std::size_t>(Lane::first_stream); i < lanes_; ++i) fence.add(so_far(static_cast<Lane>(i)));
  return fence;
}

Fence StreamOrder::everything() {
  Fence fence = streams();
  fence.add(end_of(Lane::out));
  fence.add(end_of(Lane::in));
  return fence;
}

}  // namespace vt
