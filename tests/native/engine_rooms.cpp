// The engine's rooms by themselves: what each header says, where it does not depend on the kind of device (kind_contract.cpp has
// that).

#include <unistd.h>

#include "rooms.h"

using namespace vt;

namespace {

const void* pointer(Address at) { return reinterpret_cast<const void*>(at); }
PlannedMove all_of(Range& range) { return {&range, range.serial, 0, range.chunks}; }

}  // namespace

// --- range_table.h --------------------------------------------------------------------------------------------

TEST(an_address_leads_to_its_range_while_it_is_shown) {
  Rooms r(immediate_device);
  Range* range = r.ranges.make(3);
  CHECK(r.ranges.contains(pointer(range->base)) && r.ranges.find(pointer(range->base)) == nullptr);
  r.ranges.show(*range);
  for (const Bytes offset : {Bytes{0}, kPiece, 3 * kPiece - 1}) {
    CHECK(r.ranges.find(pointer(range->base + offset)) == range);
  }
  CHECK(r.ranges.find(pointer(range->base + 3 * kPiece)) == nullptr && r.ranges.find(&r) == nullptr);
  CHECK(r.ranges.find_live(pointer(range->base)) == nullptr);
  range->life = Life::live;
  CHECK(r.ranges.find_live(pointer(range->base + kPiece)) == range);
  r.ranges.hide(*range);
  r.ranges.retire(*range);
  CHECK(range->life == Life::unused && r.ranges.validate(true).empty());
  CHECK(r.ranges.make(3) == range);  // the record is used again
}

TEST(tensors_are_listed_in_the_order_of_their_birth) {
  Rooms r(immediate_device, 8);
  Range& first = r.tensor(1);
  Range& second = r.tensor(2);
  r.freed.bury(first, true);
  Range& third = r.tensor(1);  // the same record, another tensor
  CHECK(&third == &first && third.serial > second.serial);
  CHECK((r.ranges.living() == std::vector<Range*>{&second, &third}));
  r.close();
}

// --- roster.h -------------------------------------------------------------------------------------------------

TEST(counts_follow_every_event) {
  Rooms r(immediate_device);
  Range& range = r.tensor(2);
  const Amount& absent = r.ground.counters.absent_bytes;
  const Amount& borrowed = r.ground.counters.borrowed_bytes;
  CHECK(r.roster.live() == 1 && r.ground.counters.tensor_bytes.current == 2 * kPiece);
  CHECK(r.roster.ranges().size() == 1 && range.resident == 2 && range.missing == 0);
  r.send(range, 0);
  CHECK(absent.current == kPiece && range.resident == 1 && range.missing == 1);
  r.send(range, 1);
  CHECK(absent.current == 2 * kPiece && r.roster.ranges().empty());
  CHECK(r.slots.borrow(range, 1).ok() && absent.current == 2 * kPiece && borrowed.current == kPiece);
  CHECK(r.slots.withdraw(range, 1).ok() && borrowed.current == 0);
  r.fetch(range, 0);
  CHECK(absent.current == kPiece && r.roster.ranges().size() == 1);
  r.close();
  CHECK(absent.current == 0);
}

TEST(a_wrong_count_is_noticed) {
  Rooms r(immediate_device);
  Range& range = r.tensor(2);
  CHECK(r.roster.validate(range).empty());
  const auto broken_by = [&](auto breaks, auto mends) {
    breaks();
    CHECK(!r.roster.validate(range).empty());
    mends();
    CHECK(r.roster.validate(range).empty());
  };
  broken_by([&] { ++range.resident; }, [&] { --range.resident; });
  broken_by([&] { ++range.missing; }, [&] { --range.missing; });
  broken_by([&] { ++range.clean; }, [&] { --range.clean; });
  broken_by([&] { ++range.part_pins; }, [&] { --range.part_pins; });
  broken_by([&] { range.parts[0].state = State::absent; }, [&] { range.parts[0].state = State::resident; });
  r.close();
}

// --- chunks.h -------------------------------------------------------------------------------------------------

TEST(who_left_a_chunk_is_told_to_the_next) {
  Rooms r(immediate_device, 1);
  Range& first = r.tensor(1);
  CHECK(first.parts[0].took_from == 0);
  r.send(first, 0);
  Range& second = r.tensor(1);
  CHECK(second.parts[0].took_from == first.base);
  r.freed.bury(second, false);
  r.fetch(first, 0);
  CHECK(first.parts[0].took_from == 0);  // of a tensor that died there is no more to tell
  r.close();
}

TEST(cached_chunks_are_held_but_not_used) {
  Rooms r(immediate_device);
  Range& range = r.tensor(3);
  CHECK(r.chunks.used() == 3 && r.chunks.peak_used() == 3);
  r.freed.bury(range, true);
  CHECK(r.pool.held() == 3 && r.chunks.idle() == 3 && r.chunks.used() == 0 && r.chunks.peak_used() == 3);
  r.chunks.reset_peak();
  CHECK(r.chunks.peak_used() == 0);
  CHECK(r.freed.give_up_oldest() && r.pool.held() == 0 && r.chunks.idle() == 0 && !r.freed.give_up_oldest());
  r.close();
}

// --- pins.h, demand.h -----------------------------------------------------------------------------------------

TEST(pins_of_parts_are_counted_and_dated) {
  Rooms r(immediate_device);
  Range& range = r.tensor(3);
  const Use part{&range, 1, 3, false, false};
  r.ground.clock = 40;
  r.pins.pin(part);
  CHECK(range.part_pins == 2 && range.parts[0].pins == 0 && range.parts[2].pins == 1 && range.pinned());
  CHECK((range.part_use == std::vector<Tick>{0, 40, 40}));
  r.pins.unpin(part);
  CHECK(range.part_pins == 0 && !range.pinned());
  r.close();
}

TEST(graces_end_one_by_one_all_at_once_or_with_their_tensor) {
  Rooms r(immediate_device);
  Range& range = r.tensor(3);
  Range& other = r.tensor(1);
  const auto grace = [&](Range& of, std::uint32_t index) {
    const Use use{&of, index, index + 1, false, false};
    r.pins.pin(use);
    r.pins.keep(use, 2);
  };
  grace(range, 0);
  grace(range, 1);
  grace(other, 0);
  CHECK(range.parts[0].pins == 0 && range.parts[1].pins == 1 && other.parts[0].pins == 1);  // two are kept
  r.pins.forget(other);
  CHECK(other.part_pins == 0 && range.part_pins == 1);
  CHECK(r.pins.release_graces() && range.part_pins == 0 && !r.pins.release_graces());
  r.close();
}

TEST(planned_arrivals_stand_back_while_somebody_needs_a_chunk) {
  Rooms r(immediate_device);
  Range& range = r.tensor(2, 'a');
  r.send(range, 0);
  r.send(range, 1);
  {
    const Demand::Taking taking(r.demand);
    const PlannedMove in = all_of(range);
    r.arrivals.move({}, {&in, 1});
    CHECK(r.copies.under_way(Lane::in) == 0 && r.arrivals.waits());
  }
  r.arrivals.pump();
  CHECK(!r.arrivals.waits() && r.ground.counters.arrivals == 2);
  r.finish();
  CHECK(range.missing == 0 && r.holds(range, 'a'));
  r.close();
}

// --- eviction.h -----------------------------------------------------------------------------------------------

TEST(the_longest_unused_leaves_first) {
  Rooms r(immediate_device);
  Range& first = r.tensor(1);
  Range& second = r.tensor(2);
  first.last_use = r.ground.now() + 1;
  r.ground.clock = r.ground.now() + 2;
  CHECK(r.eviction.evict_some(1).ok());
  r.finish();
  CHECK(first.resident == 1 && second.resident == 1);  // exactly as many as are needed
  r.close();
}

TEST(size_and_staleness_weigh_against_each_other) {
  EngineConfig config;
  config.order = VictimOrder::size_staleness;
  Rooms r(immediate_device, 8, 64, config);
  Range& small = r.tensor(1);
  Range& large = r.tensor(4);
  small.last_use = 10;
  large.last_use = 30;
  r.ground.clock = 50;  // staleness 41 and 21, times one and four chunks
  CHECK(r.eviction.evict_some(1).ok());
  r.finish();
  CHECK(small.resident == 1 && large.resident == 3);
  r.close();
}

namespace {
struct Nobody final : Remaker {
  void run(const Recipes::Run&, const Take&, bool) override { CHECK(!"nothing is recomputed here"); }
};

// Rooms in which things can be recomputed.
struct Makers : Rooms {
  Makers(Leaving way, std::size_t budget) : Rooms(immediate_device, budget, 64, leaving_by(way)) {
    lock.unlock();
    remake.use(std::make_unique<Nobody>());
    lock.lock();
  }
  static EngineConfig leaving_by(Leaving way) {
    EngineConfig config;
    config.leaving = way;
    return config;
  }
  // Its content was made in so many nanoseconds, of nothing.
  void made_in(Range& range, std::uint64_t ns) {
    lock.unlock();
    const auto step = remake.begin(std::make_unique<Operation>(), {});
    step->ns = ns;
    Range* const made = &range;
    remake.end(step, {&made, 1});
    lock.lock();
  }
  // Nothing is lost at the end: what is dropped is nobody's any more.
  void close() {
    for (Range* range : ranges.living()) CHECK(!remake.outlives(*range));
    Rooms::close();
  }
};
}  // namespace

TEST(without_copies_what_took_the_least_leaves_first) {
  Makers r(Leaving::drop, 8);
  Range& given = r.tensor(2);
  Range& dear = r.tensor(2);
  Range& cheap = r.tensor(2);
  r.made_in(dear, 1'000'000);
  r.made_in(cheap, 1'000);
  CHECK(r.eviction.evict_some(1).ok());
  CHECK(cheap.resident == 0 && dear.resident == 2);  // all of it at once, though one piece was asked for
  CHECK(r.eviction.evict_some(1).ok());
  CHECK(dear.resident == 0);
  CHECK(r.eviction.evict_some(1).code == Code::nothing_leaves);  // nothing makes this one
  CHECK(given.resident == 2 && r.ground.counters.evictions == 0);
  r.close();
}

TEST(what_plans_lack_is_in_place_at_once_but_no_more_than_had_to_be) {
  Makers r(Leaving::drop, 4);
  r.tensor(3);
  Range& first = r.tensor(1);
  r.made_in(first, 1'000);
  Range& large = r.tensor(2);
  CHECK(first.resident == 0 && large.resident == 1 && r.store->held() == 1);  // nothing else could be dropped
  r.freed.bury(large, false);
  r.remake.expect_shortfall(2);
  Range& second = r.tensor(1);
  r.made_in(second, 1'000);
  Range& another = r.tensor(2);
  CHECK(second.resident == 0 && another.resident == 1 && r.store->held() == 1);  // two in place would be more than ever
  r.freed.bury(another, false);
  Range& third = r.tensor(1);
  r.made_in(third, 1'000);
  Range& beside = r.tensor(1);
  CHECK(third.resident == 1 && beside.resident == 0 && r.store->held() == 1);
  CHECK(r.slots.stays_borrowed(beside, 0, {}));
  r.remake.expect_shortfall(0);
  CHECK(!r.slots.stays_borrowed(beside, 0, {}));
  r.remake.expect_shortfall(2);
  Range& fourth = r.tensor(1);
  CHECK(third.resident == 0 && fourth.resident == 1 && r.store->held() == 1);
  CHECK(r.eviction.evict_some(1).code == Code::nothing_leaves);
  r.made_in(beside, 1'000);
  CHECK(r.remake.leave(beside, 0, 1).ok() && beside.parts[0].state == State::dropped && r.store->held() == 0);
  r.close();
}

TEST(what_is_cheaper_than_its_copies_leaves_without) {
  Makers r(Leaving::cheaper, 16);
  Range& first = r.tensor(2);
  r.made_in(first, 1);
  CHECK(r.eviction.evict_some(1).ok());
  r.finish();
  CHECK(r.ground.counters.evictions == 1);  // no copy was measured by then
  r.fetch(first, first.parts[0].state == State::absent ? 0 : 1);
  const auto one = [&](std::uint64_t ns) {
    Range& range = r.tensor(1);
    r.made_in(range, ns);
    range.last_use = 0;
    const std::uint64_t drops = r.ground.counters.drops;
    CHECK(r.eviction.evict_some(1).ok());
    r.finish();
    CHECK(range.resident == 0);
    return r.ground.counters.drops > drops;
  };
  r.ground.clock = 1'000'000;
  CHECK(one(1));
  CHECK(!one(std::uint64_t{1} << 50));
  CHECK(!one(0));  // not known
  r.close();
}

TEST(whole_tensors_leave_where_that_is_asked_for) {
  EngineConfig config;
  config.granularity = Granularity::tensor;
  Rooms r(immediate_device, 4, 64, config);
  Range& range = r.tensor(3);
  CHECK(r.eviction.evict_some(1).ok());
  r.finish();
  CHECK(range.resident == 0);
  r.close();
}

TEST(an_operation_that_pins_first_keeps_its_range) {
  Rooms r(immediate_device);
  Range& range = r.tensor(2);
  range.pins = 1;
  bool pinned = false;
  CHECK(r.eviction.leave(range, 0, &pinned).ok() && pinned);
  CHECK(range.missing == 0 && range.resident == 2);  // the mark is taken back
  CHECK(r.eviction.evict_some(1).code == Code::nothing_leaves);
  range.pins = 0;
  r.close();
}

// --- seats.h --------------------------------------------------------------------------------------------------

struct Seated : Rooms {
  explicit Seated(std::size_t budget) : Rooms(ordered_device, budget), seats(mutex, closed, ranges, pool, chunks, freed, moves) {
    number({0, 1, 2, 3, 4, 5, 6, 7}, 8);
  }
  // All chunks there are have been made, and are free.
  void make_chunks() {
    for (std::size_t i = 0; i < pool.capacity(); ++i) tensor(1);
    for (Range* range : ranges.living()) freed.bury(*range, true);
    finish();
  }
  // From now on those are nobody's whose number is not below `given`.
  void number(std::vector<std::uint32_t> of, std::uint32_t given) {
    lock.unlock();
    seats.begin(64, {std::move(of), given});
    lock.lock();
  }
  Range& sit(const std::vector<ChunkId>& chunks, Range* before = nullptr) {
    Range* range = nullptr;
    CHECK(allocation.make(lock, chunks.size() * kPiece, "test", stream, {chunks, before}, &range).ok());
    range->seen.store(true);
    return *range;
  }
  // It is freed, and nothing on the device uses it any more.
  void leave(Range& range) {
    freed.bury(range, true);
    mappings.wait_until_unused(range);
    finish();
  }
  std::vector<ChunkId> in(const Range& range) {
    lock.unlock();
    auto held = seats.held(range, range.serial);
    lock.lock();
    return held;
  }
  void want(Range& range, const std::vector<ChunkId>& chunks) {
    lock.unlock();
    seats.want(range, range.serial, chunks);
    lock.lock();
  }

  Seats seats;
};

TEST(who_finds_its_seats_free_takes_them_and_the_next_time_nothing_is_mapped) {
  Seated r(6);
  r.make_chunks();
  Range* first = &r.sit({4, 1});
  Range* second = &r.sit({0, 5, 2});
  CHECK((r.in(*first) == std::vector<ChunkId>{4, 1}) && (r.in(*second) == std::vector<ChunkId>{0, 5, 2}));
  for (int turn = 0; turn < 5; ++turn) {
    CHECK(first->in_seat && second->in_seat);
    r.freed.bury(*first, true);
    r.freed.bury(*second, true);
    const auto remaps = r.ground.counters.remaps;
    second = &r.sit({0, 5, 2}, second);  // in another order, too
    first = &r.sit({4, 1}, first);
    CHECK(r.ground.counters.remaps == remaps);
    r.check();
  }
  r.close();
}

TEST(who_has_no_seat_sits_where_nobody_does) {
  Seated r(6);
  r.make_chunks();
  r.number({5, 0, 4, 1, 2, 3}, 4);  // chunks 0 and 2 are nobody's
  Range* range = &r.sit({kNone, kNone});
  CHECK((r.in(*range) == std::vector<ChunkId>{0, 2}));
  Range& third = r.sit({kNone});
  CHECK(r.in(third) == std::vector<ChunkId>{5});  // that of the highest number
  r.leave(*range);
  r.leave(third);
  const auto remaps = r.ground.counters.remaps;
  Range& again = r.tensor(1);  // of addresses that were in use once, those that led to nobody's seat
  CHECK((r.in(again) == std::vector<ChunkId>{0} || r.in(again) == std::vector<ChunkId>{2}) && r.ground.counters.remaps == remaps);
  r.check();
  r.close();
}

TEST(who_has_no_seat_finds_its_addresses_behind_those_of_many_who_have) {
  Seated r(6);
  r.make_chunks();
  r.number({5, 0, 4, 1, 2, 3}, 4);  // chunks 0 and 2 are nobody's
  r.leave(r.tensor(1));
  for (int i = 0; i < 40; ++i) r.leave(r.sit({1}));
  const auto remaps = r.ground.counters.remaps;
  r.tensor(1);
  CHECK(r.ground.counters.remaps == remaps);
  r.check();
  r.close();
}

TEST(who_was_here_before_may_have_no_seat_by_now) {
  Seated r(4);
  r.make_chunks();
  Range& before = r.sit({1});
  r.leave(before);
  r.freed.give_up_addresses();
  Range* other = nullptr;
  while (other != &before) other = &r.tensor(1);  // the same record, of a tensor without a seat
  const ChunkId chunk = other->parts[0].chunk;
  r.leave(*other);
  Range& again = r.sit({chunk}, &before);
  CHECK(&again == &before && again.in_seat == 1);
  r.leave(again);
  CHECK(&r.tensor(1) != &again);  // it is kept for the next of its kind
  r.check();
  r.close();
}

TEST(who_finds_most_of_its_seats_free_maps_the_rest_only) {
  Seated r(8);
  r.make_chunks();
  Range* range = &r.sit({0, 1, 2});
  r.leave(*range);
  Range& stranger = r.sit({1});
  auto remaps = r.ground.counters.remaps;
  Range* again = &r.sit({0, 1, 2}, range);
  CHECK(again == range && again->in_seat == 2 && r.ground.counters.remaps == remaps + 1);
  r.check();
  r.leave(*again);
  r.leave(stranger);
  remaps = r.ground.counters.remaps;
  again = &r.sit({0, 1, 2}, range);  // and goes home when it can
  CHECK(again == range && again->in_seat == 3 && r.ground.counters.remaps == remaps + 1);
  r.leave(*again);
  r.sit({1, 2});  // most are taken
  again = &r.sit({0, 1, 2}, range);
  CHECK(again != range && again->in_seat == 1);
  r.check();
  r.close();
}

TEST(who_finds_its_seat_taken_takes_that_of_who_sits_there) {
  Seated r(6);
  for (int i = 0; i < 6; ++i) r.tensor(1);
  for (Range* range : r.ranges.living()) r.freed.bury(*range, true);
  Range& stranger = r.sit({3});
  r.want(stranger, {0});  // it should sit at 0, which is free
  Range& late = r.sit({3});
  CHECK((r.in(late) == std::vector<ChunkId>{0}) && !late.in_seat);  // and nobody else is disturbed
  Range& other = r.sit({1});
  CHECK(other.in_seat);
  Range& any = r.sit({kNone, kNone});
  CHECK((r.in(any) == std::vector<ChunkId>{5, 4}));  // the highest
  r.close();
}

TEST(what_comes_back_goes_home) {
  Seated r(4);
  Range& range = r.tensor(2, 'a');
  const std::vector<ChunkId> had = r.in(range);
  for (int i = 0; i < 2; ++i) r.tensor(1);
  for (Range* other : r.ranges.living()) {
    if (other != &range) r.freed.bury(*other, true);
  }
  std::vector<ChunkId> others;
  for (const ChunkId chunk : {0U, 1U, 2U, 3U}) {
    if (std::find(had.begin(), had.end(), chunk) == had.end()) others.push_back(chunk);
  }
  r.want(range, others);
  CHECK(r.in(range) == had);  // nothing moves for that
  for (std::uint32_t i = 0; i < 2; ++i) r.send(range, i);
  for (std::uint32_t i = 0; i < 2; ++i) r.fetch(range, i);
  CHECK(r.in(range) == others && r.holds(range, 'a'));
  r.close();
}

TEST(without_seats_what_is_freed_is_cached) {
  Seated r(4);
  r.make_chunks();
  r.freed.bury(r.sit({2, 3}), true);
  CHECK(r.chunks.idle() == 0);
  r.lock.unlock();
  r.seats.pause();  // the plan will be followed again
  r.lock.lock();
  r.freed.bury(r.tensor(2), true);
  CHECK(r.chunks.idle() == 0);
  r.lock.unlock();
  r.seats.end();
  r.lock.lock();
  r.freed.bury(r.tensor(2), true);
  CHECK(r.chunks.idle() == 2);
  r.check();
  r.close();
}

TEST(a_wish_of_another_size_or_for_chunks_that_are_not_there_is_no_wish) {
  Seated r(4);
  Range* range = nullptr;
  const std::vector<ChunkId> one{0};
  CHECK(r.allocation.make(r.lock, 2 * kPiece, "test", r.stream, {one, nullptr}, &range).ok() && !range->seated);
  Range& far = r.sit({77, 2000000});
  CHECK(far.resident == 2 && !far.in_seat);
  r.lock.unlock();
  CHECK((r.seats.chunks() == std::vector<ChunkId>{0, 1, 2, 3}));
  r.lock.lock();
  r.close();
}

// --- supply.h, allocation.h, freed.h --------------------------------------------------------------------------

TEST(what_freed_tensors_keep_is_taken_before_anything_leaves) {
  Rooms r(immediate_device);
  Range& dead = r.tensor(2);
  Range& alive = r.tensor(2);
  r.freed.bury(dead, true);
  Range& larger = r.tensor(1);  // of another size, so the cached one is given up
  CHECK(alive.resident == 2 && larger.resident == 1 && r.ground.counters.evictions == 0 && r.chunks.idle() == 0);
  r.close();
}

TEST(the_budget_changes_as_far_as_it_can) {
  Rooms r(immediate_device);
  Range& range = r.tensor(4, 'a');
  r.supply.resize(r.lock, 2);
  r.check();
  CHECK(r.pool.capacity() == 2 && range.resident == 2);
  range.pins = 1;
  bool refused = false;
  try {
    r.supply.resize(r.lock, 1);
  } catch (const OutOfMemory&) {
    refused = true;
  }
  CHECK(refused && r.pool.capacity() == 2 && range.resident == 2);
  range.pins = 0;
  r.supply.resize(r.lock, 6);
  r.fetch(range, 0);
  r.fetch(range, 1);
  CHECK(r.holds(range, 'a') && !r.demand.any());
  r.close();
}

TEST(everything_that_is_not_pinned_leaves_when_asked) {
  Rooms r(immediate_device);
  Range& first = r.tensor(2);
  Range& second = r.tensor(1);
  first.pins = 1;
  r.supply.evict_all(r.lock);
  r.check();
  CHECK(first.resident == 2 && second.resident == 0 && r.pool.held() == 2);
  first.pins = 0;
  r.close();
}

TEST(an_allocation_that_fails_changes_nothing) {
  EngineConfig config;
  config.oversize = Oversize::raise;
  Rooms r(immediate_device, 4, 64, config);
  Range& pinned = r.tensor(2, 'a');
  pinned.pins = 1;
  Range* none = nullptr;
  CHECK(r.allocation.make(r.lock, 3 * kPiece, "test", Lane::none, {}, &none).code == Code::nothing_leaves);
  CHECK(none == nullptr && r.pool.held() == 2 && r.roster.live() == 1);
  CHECK(r.allocation.make(r.lock, r.ranges.window() + 1, "test", Lane::none, {}, &none).code == Code::failed);
  r.check();
  pinned.pins = 0;
  r.close();
}

// --- slots.h --------------------------------------------------------------------------------------------------

TEST(clean_pieces_give_up_their_slots_before_anything_fails) {
  Rooms r(immediate_device, 4, 2);
  Range& range = r.tensor(2, 'a');
  r.send(range, 0);
  r.send(range, 1);
  r.fetch(range, 0);
  r.fetch(range, 1);
  CHECK(range.clean == 2 && r.store->held() == 2);
  int swept = 0;
  r.slots.when_full([&] { ++swept; });
  Range& other = r.tensor(1, 'b');
  r.send(other, 0);
  CHECK(swept == 1 && range.clean == 0 && r.store->held() == 1 && r.holds(range, 'a'));
  r.close();
}

TEST(a_full_store_fails_no_operation_that_has_begun) {
  Rooms r(immediate_device, 4, 1);
  r.send(r.tensor(1, 'a'), 0);
  SlotId slot = kNone;
  CHECK(r.slots.acquire(&slot).code == Code::host_full);
  CHECK(r.slots.acquire(&slot, true).ok());
  r.slots.give_back(slot);
  ++r.ground.remaking;
  CHECK(r.slots.acquire(&slot).ok() && r.store->held() == 2);
  --r.ground.remaking;
  r.slots.give_back(slot);
  r.close();
}

// --- uses.h ---------------------------------------------------------------------------------------------------

TEST(what_an_operation_uses_is_there_or_borrowed) {
  Rooms r(immediate_device, 2);
  Range& first = r.tensor(2, 'a');
  Range& second = r.tensor(2, 'b');  // first leaves
  CHECK(first.resident == 0);
  const Use uses[] = {{&first, 0, 2, false, false}, {&second, 0, 2, true, false}};
  for (const Use& use : uses) r.pins.pin(use);
  r.uses.fetch(r.lock, uses, "test");
  CHECK(r.holds(first, 'a') && r.holds(second, 'b') && r.ground.counters.borrowed_bytes.current == 2 * kPiece);
  for (const Use& use : uses) r.pins.unpin(use);
  r.check();
  r.uses.fetch(r.lock, {uses, 1}, "test");  // alone it fits
  CHECK(first.missing == 0 && r.ground.counters.borrowed_bytes.current == 0);
  r.close();
}

TEST(a_touch_brings_one_piece_and_tells_a_write) {
  Rooms r(immediate_device, 8);
  Range& range = r.tensor(3, 'a');
  r.send(range, 1);
  CHECK(r.uses.on_fault(r.lock, range.base + kPiece + 5) == FaultOutcome::served);
  CHECK(range.missing == 0 && r.ground.counters.faults == 1 && range.parts[1].clean() && range.parts[1].pins == 1);
  CHECK(r.uses.on_fault(r.lock, range.base + kPiece) == FaultOutcome::served && !range.parts[1].clean());
  CHECK(r.uses.on_fault(r.lock, range.base) == FaultOutcome::idle);
  CHECK(r.uses.on_fault(r.lock, range.base + 3 * kPiece) == FaultOutcome::foreign);
  r.pins.release_graces();
  r.close();
}

// --- arrivals.h -----------------------------------------------------------------------------------------------

TEST(a_plan_is_advice) {
  Rooms r(immediate_device);
  Range& range = r.tensor(2, 'a');
  PlannedMove stale = all_of(range), pinned = all_of(range);
  ++stale.serial;
  range.pins = 1;
  const PlannedMove useless[] = {stale, pinned};
  r.arrivals.move(useless, useless);
  r.finish();
  CHECK(range.resident == 2 && !r.arrivals.waits() && r.ground.counters.arrivals == 0);
  range.pins = 0;
  const PlannedMove real = all_of(range);
  r.arrivals.move({&real, 1}, {});
  r.finish();
  CHECK(range.resident == 0);
  r.close();
}

TEST(the_pump_starts_what_waits_as_chunks_get_free) {
  Rooms r(immediate_device, 2);
  Range& first = r.tensor(2, 'a');
  Range& second = r.tensor(2, 'b');
  const PlannedMove out = all_of(second), in = all_of(first);
  r.arrivals.move({&out, 1}, {&in, 1});  // first waits until second has left
  for (int i = 0; i < 50'000 && first.missing != 0; ++i) {
    r.lock.unlock();
    usleep(100);
    r.lock.lock();
    r.moves.reap();
  }
  r.finish();
  CHECK(first.missing == 0 && r.holds(first, 'a') && second.resident == 0);
  r.close();
}

// --- inspector.h ----------------------------------------------------------------------------------------------

TEST(what_is_lost_is_noticed) {
  Rooms r(immediate_device);
  r.tensor(1);
  const auto broken = [&] {
    r.lock.unlock();
    const std::string words = r.inspector.validate();
    r.lock.lock();
    return words;
  };
  ChunkId chunk = kNone;
  CHECK(r.pool.acquire(&chunk).ok() && broken() == "chunks held by vTensors and by the pool differ");
  r.pool.release(chunk);
  SlotId slot = kNone;
  CHECK(r.slots.acquire(&slot).ok() && broken() == "slots held by vTensors and by the store differ");
  r.slots.give_back(slot);
  r.ground.counters.absent_bytes.add(1);
  CHECK(broken() == "absent_bytes is wrong");
  r.ground.counters.absent_bytes.sub(1);
  CHECK(broken().empty());
  r.close();
}

int main() { return run_native_tests(); }
