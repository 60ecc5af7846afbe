// The contract of mappings.h, slots.h and moves.h, run against every kind of device. A new kind adds one line to kKinds.

#include "rooms.h"

using namespace vt;

namespace {

constexpr MakeDevice kKinds[] = {immediate_device, ordered_device, ordered_device_with_places};
constexpr MakeDevice kBorrowing[] = {immediate_device, ordered_device_with_places};  // kinds that use the host's memory in place

template <std::size_t N>
void for_each(const MakeDevice (&kinds)[N], void (*body)(Rooms&), std::size_t budget = 4, std::size_t host_slots = 64) {
  for (MakeDevice make : kinds) {
    Rooms rooms(make, budget, host_slots);
    body(rooms);
    rooms.close();
  }
}

}  // namespace

// --- moves ----------------------------------------------------------------------------------------------------

TEST(what_leaves_comes_back_as_it_was_at_its_address) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(3, 'a');
    for (const std::uint32_t i : {1u, 0u, 2u}) r.send(range, i);
    CHECK(range.resident == 0 && range.missing == 3 && r.pool.held() == 0 && r.store->held() == 3);
    for (const std::uint32_t i : {2u, 1u, 0u}) r.fetch(range, i);
    CHECK(range.missing == 0 && r.holds(range, 'a'));
  });
}

TEST(what_comes_back_may_get_any_chunk) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(2, 'a');
    r.send(range, 0);
    r.send(range, 1);
    Range& other = r.tensor(3, 'b');  // takes both chunks, and a new one
    r.fetch(range, 1);
    CHECK(other.resident == 3 && range.parts[1].state == State::resident);
    const char* second = reinterpret_cast<const char*>(range.base) + kPiece;
    CHECK(std::all_of(second, second + kPiece, [](char byte) { return byte == 'a'; }) && r.holds(other, 'b'));
  });
}

TEST(strict_addresses_lead_nowhere_while_their_data_is_away) {
  for (const MakeDevice make : {ordered_device, ordered_device_with_places}) {
    EngineConfig config;
    config.strict = true;
    Rooms r(make, 5, 64, config);
    Range& range = r.tensor(3, 'a');
    const std::size_t mapped = r.driver->live().mappings;
    r.send(range, 1);  // by a copy
    r.fetch(range, 1);
    CHECK(r.driver->live().mappings == mapped && r.holds(range, 'a'));
    r.send(range, 1);  // clean, so without one
    r.drop(range, 2);
    CHECK(r.driver->live().mappings == mapped - 2);
    CHECK(range.parts[0].mapped != kNone && range.parts[1].mapped == kNone && range.parts[2].mapped == kNone);
    r.fetch(range, 1);
    CHECK(range.missing == 1);
    Range& made = r.tensor(3, 'a');
    r.moves.hand_over(made, range);
    r.freed.bury(made, true);
    r.finish();
    CHECK(range.missing == 0 && r.holds(range, 'a'));
    r.close();
  }
}

TEST(a_clean_piece_leaves_without_a_copy) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(1, 'a');
    r.send(range, 0);
    r.fetch(range, 0);
    CHECK(range.parts[0].clean() && range.clean == 1);
    const std::size_t copied = r.copies.done(Lane::out);
    r.send(range, 0);
    CHECK(r.copies.done(Lane::out) == copied && r.ground.counters.discards == 1 && range.clean == 0);
    r.fetch(range, 0);
    CHECK(r.holds(range, 'a'));
  });
}

TEST(what_is_written_is_copied_again) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(1, 'a');
    r.send(range, 0);
    r.fetch(range, 0);
    r.slots.make_dirty(range, 0);
    CHECK(!range.parts[0].clean() && r.store->held() == 0);
    r.fill(range, 'b');
    r.send(range, 0);
    r.fetch(range, 0);
    CHECK(r.holds(range, 'b'));
  });
}

TEST(what_arrives_to_be_written_keeps_no_slot) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(1, 'a');
    r.send(range, 0);
    range.parts[0].write_wanted = true;
    r.fetch(range, 0);
    CHECK(!range.parts[0].clean() && r.store->held() == 0);
  });
}

TEST(a_full_host_store_changes_nothing) {
  for_each(
      kKinds,
      [](Rooms& r) {
        Range& range = r.tensor(2, 'a');
        r.send(range, 0);
        bool pinned = true;
        const Status status = r.eviction.leave(range, 1, &pinned);
        CHECK(status.code == Code::host_full && !pinned);
        r.finish();
        CHECK(range.parts[1].state == State::resident && range.resident == 1 && range.missing == 1 && r.pool.held() == 1);
      },
      4, 1);
}

TEST(what_is_fixed_stays) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(1, 'a');
    CHECK(r.moves.may_leave(range));
    range.exported = range.fixed = true;
    CHECK(!r.moves.may_leave(range));
    CHECK(r.eviction.evict_some(1).code == Code::nothing_leaves);
  });
}

TEST(what_was_made_again_changes_hands) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(3, 'a');
    r.send(range, 0);
    for (const std::uint32_t i : {0u, 1u, 2u}) r.drop(range, i);
    CHECK(r.pool.held() == 0 && r.store->held() == 0 && range.missing == 3);
    CHECK(r.ground.counters.dropped_bytes.current == range.bytes && r.ground.counters.absent_bytes.current == 0);
    Range& made = r.tensor(3, 'b');
    const std::size_t copied = r.copies.done(Lane::in) + r.copies.done(Lane::out);
    r.moves.hand_over(made, range);
    CHECK(range.resident == 3 && range.missing == 0 && made.resident == 0 && r.pool.held() == 3);
    r.freed.bury(made, true);
    r.finish();
    CHECK(r.holds(range, 'b') && r.copies.done(Lane::in) + r.copies.done(Lane::out) == copied);
    CHECK(r.ground.counters.dropped_bytes.current == 0);
    r.send(range, 1);
    r.fetch(range, 1);
    CHECK(r.holds(range, 'b'));
  });
}

TEST(what_is_still_there_stays_when_the_rest_is_made_again) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(3, 'a');
    r.drop(range, 1);
    r.send(range, 2);
    Range& made = r.tensor(3, 'a');
    r.moves.hand_over(made, range);
    CHECK(range.parts[0].state == State::resident && range.parts[1].state == State::resident);
    CHECK(range.parts[2].state == State::absent && made.resident == 2);
    r.freed.bury(made, true);
    r.fetch(range, 2);
    CHECK(r.holds(range, 'a'));
  });
}

TEST(what_was_made_in_the_host_store_is_there) {
  for_each(kBorrowing, [](Rooms& r) {
    Range& range = r.tensor(1, 'a');
    r.drop(range, 0);
    Range& made = r.tensor(1, 'b');
    r.send(made, 0);
    CHECK(r.slots.borrow(made, 0).ok());
    r.moves.hand_over(made, range);
    CHECK(range.parts[0].state == State::absent && r.store->held() == 1);
    r.freed.bury(made, true);
    r.fetch(range, 0);
    CHECK(r.holds(range, 'b'));
  });
}

TEST(what_is_used_in_place_can_be_dropped) {
  for_each(kBorrowing, [](Rooms& r) {
    Range& range = r.tensor(1, 'a');
    r.send(range, 0);
    CHECK(r.slots.borrow(range, 0).ok());
    r.drop(range, 0);
    CHECK(r.store->held() == 0 && range.missing == 1);
    CHECK(r.ground.counters.borrowed_bytes.current == 0 && r.ground.counters.dropped_bytes.current == range.bytes);
    Range& made = r.tensor(1, 'b');
    r.moves.hand_over(made, range);
    r.freed.bury(made, true);
    r.finish();
    CHECK(r.holds(range, 'b'));
  });
}

TEST(several_arrive_side_by_side) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(3, 'a');
    for (std::uint32_t i = 0; i < 3; ++i) r.send(range, i);
    std::vector<ChunkId> chunks(3);
    for (std::uint32_t i = 0; i < 3; ++i) CHECK(r.supply.take_free(range, i, &chunks[i]).ok());
    CHECK(r.moves.before_arrivals(range, 0, chunks).ok());
    for (std::uint32_t i = 0; i < 3; ++i) CHECK(r.moves.arrive(range, i, chunks[i]).ok());
    r.finish();
    CHECK(range.missing == 0 && r.holds(range, 'a'));
  });
}

TEST(an_address_that_was_given_away_is_readable_and_never_clean) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(2, 'a');
    r.send(range, 0);
    r.send(range, 1);
    r.fetch(range, 1);
    CHECK(range.clean == 1);
    r.uses.give_away(r.lock, range);
    CHECK(range.exported && range.clean == 0 && r.holds(range, 'a'));
    r.finish();
    r.fill(range, 'b');
    CHECK(r.holds(range, 'b'));
  });
}

TEST(what_was_copied_when_its_address_was_given_away_is_not_clean) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(1, 'a');
    bool pinned = true;
    CHECK(r.eviction.leave(range, 0, &pinned).ok() && !pinned);
    if (const auto ticket = r.copies.oldest(Lane::out)) r.copies.wait(*ticket);
    r.uses.give_away(r.lock, range);
    CHECK(range.exported && range.clean == 0 && r.holds(range, 'a'));
    r.finish();
    r.fill(range, 'b');
    CHECK(r.holds(range, 'b'));
  });
}

TEST(what_calls_are_given_stays_until_the_last_of_them_ends) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(2, 'a');
    r.send(range, 0);
    for (int call = 0; call < 2; ++call) r.uses.give_away(r.lock, range, Export::for_a_call);
    r.finish();
    r.uses.end_call(range);
    CHECK(range.exported && range.stays() && !r.moves.may_leave(range) && r.holds(range, 'a'));
    r.uses.end_call(range);
    CHECK(!range.exported && !range.stays());
    for (std::uint32_t i = 0; i < 2; ++i) {
      if (range.parts[i].state == State::resident) r.send(range, i);
      CHECK(range.parts[i].state == State::absent);
    }
    r.uses.give_away(r.lock, range, Export::for_a_call);
    r.uses.give_away(r.lock, range);  // for good
    CHECK(range.stays());
    r.uses.end_call(range);
    r.finish();
    CHECK(range.exported && !range.stays() && r.holds(range, 'a'));
    r.uses.give_away(r.lock, range, Export::for_a_call);
    CHECK(range.stays());
    r.uses.end_call(range);
    CHECK(range.exported && !range.stays());
  });
}

TEST(nothing_is_away_when_managing_ends) {
  for_each(kKinds, [](Rooms& r) {
    Range& first = r.tensor(3, 'a');
    for (std::uint32_t i = 0; i < 3; ++i) r.send(first, i);
    Range& second = r.tensor(4, 'b');  // all of the budget
    r.moves.bring_all(r.lock, r.ranges, [&](Range& range, std::uint32_t i) { return r.supply.bring_beyond(range, i); });
    r.finish();
    CHECK(r.holds(first, 'a') && r.holds(second, 'b'));
    r.ground.detached = true;
  });
}

// --- slots ----------------------------------------------------------------------------------------------------

TEST(what_is_borrowed_is_used_where_it_waits) {
  for_each(kBorrowing, [](Rooms& r) {
    Range& range = r.tensor(1, 'a');
    r.send(range, 0);
    CHECK(r.slots.borrow(range, 0).ok() && range.parts[0].state == State::borrowed);
    CHECK(r.holds(range, 'a') && range.missing == 1);
    r.fill(range, 'b');
    r.check();
    CHECK(r.slots.withdraw(range, 0).ok() && range.parts[0].state == State::absent);
    r.fetch(range, 0);
    CHECK(r.holds(range, 'b'));
  });
}

TEST(a_tensor_may_begin_its_life_in_the_host_store) {
  for_each(kBorrowing, [](Rooms& r) {
    Range& pinned = r.tensor(4, 'a');
    pinned.pins = 1;
    Range& range = r.tensor(2, 'b');
    CHECK(range.resident == 0 && range.parts[0].state == State::borrowed && r.store->held() == 2);
    CHECK(r.holds(range, 'b') && r.holds(pinned, 'a'));
    pinned.pins = 0;
    r.freed.bury(pinned, false);
    r.fetch(range, 0);
    r.fetch(range, 1);
    CHECK(r.holds(range, 'b'));
  });
}

TEST(without_host_memory_in_place_an_operation_gets_more_than_the_budget) {
  Rooms r(ordered_device);
  CHECK(r.moves.may_overdraw());
  Range& pinned = r.tensor(4, 'a');
  pinned.pins = 1;
  Range& range = r.tensor(2, 'b');
  CHECK(range.resident == 2 && r.pool.overdrawn() == 2 && r.pool.held() == 6);
  pinned.pins = 0;
  r.supply.restore_budget();
  r.finish();
  r.supply.quiesce(r.lock);
  CHECK(r.pool.overdrawn() == 0 && r.pool.held() <= 4);
  r.close();
}

// --- memory of others -----------------------------------------------------------------------------------------

TEST(a_lent_tensor_has_what_lies_there_and_leaves_without_a_copy) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(3, 'a');
    r.send(range, 0);
    r.send(range, 1);
    r.fetch(range, 1);  // absent, clean, and never away
    const std::vector<char> memory(range.bytes, 'b');
    for (int round = 0; round < 2; ++round) {
      CHECK(r.lend(range, memory));
      r.finish();
      CHECK(range.missing == 3 && range.clean == 0 && r.pool.held() == 0 && r.store->held() == 0 && r.store->lent() == 3);
      for (std::uint32_t i = 0; i < 3; ++i) r.fetch(range, i);
      CHECK(range.missing == 0 && range.clean == 3 && r.holds(range, 'b'));
    }
    const std::size_t copied = r.copies.done(Lane::out);
    r.send(range, 2);
    CHECK(r.copies.done(Lane::out) == copied);
    r.fetch(range, 2);
    CHECK(r.holds(range, 'b'));
  });
}

TEST(what_is_written_is_not_lent_any_more) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(2, 'a');
    const std::vector<char> memory(range.bytes, 'b');
    CHECK(r.lend(range, memory));
    for (std::uint32_t i = 0; i < 2; ++i) r.fetch(range, i);
    r.slots.make_dirty(range, 0);
    r.slots.make_dirty(range, 1);
    CHECK(r.store->lent() == 0);
    r.fill(range, 'c');
    for (std::uint32_t i = 0; i < 2; ++i) r.send(range, i);
    CHECK(r.store->held() == 2);
    for (std::uint32_t i = 0; i < 2; ++i) r.fetch(range, i);
    CHECK(r.holds(range, 'c') && memory == std::vector<char>(range.bytes, 'b'));
  });
}

TEST(what_arrives_while_it_is_lent_is_not_what_was) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(2, 'a');
    r.send(range, 0);
    r.send(range, 1);
    ChunkId chunk = kNone;
    CHECK(r.supply.take_free(range, 1, &chunk).ok() && r.moves.arrive(range, 1, chunk).ok());
    const std::vector<char> memory(range.bytes, 'b');
    CHECK(r.lend(range, memory));
    for (std::uint32_t i = 0; i < 2; ++i) r.fetch(range, i);
    CHECK(r.holds(range, 'b'));
  });
}

TEST(what_leaves_while_it_is_lent_is_not_what_was) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(1, 'a');
    bool pinned = true;
    CHECK(r.eviction.leave(range, 0, &pinned).ok() && !pinned);
    const std::vector<char> memory(range.bytes, 'b');
    CHECK(r.lend(range, memory));
    r.finish();
    CHECK(r.store->held() == 0);
    r.fetch(range, 0);
    CHECK(r.holds(range, 'b'));
  });
}

TEST(lent_memory_is_not_used_in_place) {
  for_each(kBorrowing, [](Rooms& r) {
    Range& range = r.tensor(1, 'a');
    const std::vector<char> memory(range.bytes, 'b');
    CHECK(r.lend(range, memory) && r.slots.borrow(range, 0).ok());
    CHECK(r.holds(range, 'b'));
    r.fill(range, 'c');
    CHECK(memory == std::vector<char>(range.bytes, 'b'));
    CHECK(r.lend(range, memory) && range.parts[0].state == State::absent && r.store->held() == 0);
    r.fetch(range, 0);
    CHECK(r.holds(range, 'b'));
  });
}

TEST(memory_that_is_taken_back_is_read_no_more) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(3, 'a');
    Range& other = r.tensor(1, 'o');
    std::vector<char> memory(range.bytes, 'b');
    const std::vector<char> others(other.bytes, 'p');
    CHECK(r.lend(range, memory) && r.lend(other, others));
    r.fetch(range, 1);  // clean; and others absent
    r.take_back(memory);
    CHECK(r.store->lent() == 1);
    std::fill(memory.begin(), memory.end(), 'x');
    r.finish();
    for (std::uint32_t i = 0; i < 3; ++i) {
      if (range.parts[i].state != State::resident) r.fetch(range, i);
    }
    r.finish();
    CHECK(r.holds(range, 'b'));
    r.take_back(others);
  });
}

TEST(what_somebody_uses_cannot_be_lent_to) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(2, 'a');
    const std::vector<char> memory(range.bytes, 'b');
    CHECK(!r.lend(range, std::vector<char>(kPiece, 'b')));
    range.pins = 1;
    CHECK(!r.lend(range, memory));
    range.pins = 0;
    r.uses.give_away(r.lock, range);
    CHECK(!r.lend(range, memory) && r.store->lent() == 0 && range.missing == 0 && r.holds(range, 'a'));
  });
}

// --- mappings -------------------------------------------------------------------------------------------------

TEST(memory_of_a_dead_tensor_can_be_had_again_as_it_is) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(2, 'a');
    const Address base = range.base;
    const std::uint64_t remaps = r.ground.counters.remaps;
    r.freed.bury(range, true);
    r.check();
    CHECK(r.chunks.idle() == 2 && r.tensor(2, 'b').base == base && r.chunks.idle() == 0);
    CHECK(r.ground.counters.remaps == remaps && r.ground.counters.reused == 1);
  });
}

TEST(a_chunk_that_was_taken_and_not_used_is_free_again) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(4, 'a');
    r.send(range, 2);
    ChunkId chunk = kNone;
    CHECK(r.supply.take_free(range, 2, &chunk).ok() && r.pool.free() == 0);
    r.mappings.give_back(chunk);
    CHECK(r.pool.free() == 1);
    r.fetch(range, 2);
    CHECK(r.holds(range, 'a'));
  });
}

TEST(a_former_chunk_is_the_one_the_address_leads_to) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(1, 'a');
    const ChunkId had = range.parts[0].chunk;
    r.send(range, 0);
    ChunkId chunk = kNone;
    if (!r.mappings.take_former(range, 0, true, &chunk)) CHECK(r.supply.take_free(range, 0, &chunk).ok());
    CHECK(chunk == had);  // it is the only one there is
    CHECK(!r.mappings.take_former(range, 0, true, &chunk));
    CHECK(r.moves.arrive(range, 0, chunk).ok());
    r.finish();
    CHECK(r.holds(range, 'a'));
  });
}

TEST(addresses_of_the_dead_are_kept_or_given_back_but_never_lost) {
  for_each(kKinds, [](Rooms& r) {
    for (int round = 0; round < 40; ++round) {
      Range& first = r.tensor(1 + static_cast<std::uint32_t>(round % 3), 'a');
      Range& second = r.tensor(1, 'b');
      r.send(second, 0);
      r.freed.bury(round % 2 == 0 ? first : second, false);
      r.check();
      r.freed.bury(round % 2 == 0 ? second : first, false);
      r.check();
    }
    r.freed.give_up_addresses();
    r.check();
  });
}

TEST(a_pinned_range_outlives_its_tensor) {
  for_each(kKinds, [](Rooms& r) {
    Range& range = r.tensor(2, 'a');
    range.pins = 1;
    r.freed.bury(range, false);
    CHECK(range.life == Life::limbo);
    r.freed.sweep();
    CHECK(range.life == Life::limbo && range.parts != nullptr);
    range.pins = 0;
    r.finish();
    r.freed.sweep();
    CHECK(range.life == Life::unused);
  });
}

int main() { return run_native_tests(); }
