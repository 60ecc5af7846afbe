// The contract of kernels/device/driver.h, run against every implementation of it. A new driver adds one line to kDrivers.

#include <cstring>
#include <memory>
#include <thread>

#include "check.h"
#include "device/driver_host.h"
#include "testing/driver_inject.h"
#include "store/host_store.h"
#include "team.h"

using namespace vt;

namespace {

constexpr Bytes kChunk = 64 << 10;

using MakeDriver = std::unique_ptr<Driver> (*)();
std::unique_ptr<Driver> host() { return std::make_unique<HostDriver>(kChunk, 0); }
std::unique_ptr<Driver> team() { return std::make_unique<HostDriver>(kChunk, 0, team_of_three); }
std::unique_ptr<Driver> injected() { return std::make_unique<InjectDriver>(host()); }
std::unique_ptr<Driver> linked_team() { return std::make_unique<HostDriver>(kChunk, 10e9, team_of_three); }
constexpr MakeDriver kDrivers[] = {host, team, linked_team, injected};

using MakeStore = std::unique_ptr<HostStore> (*)();
std::unique_ptr<HostStore> ram() { return make_ram_store(kChunk, 8 * kChunk); }
std::unique_ptr<HostStore> file() { return make_file_store(kChunk, 8 * kChunk, "/tmp"); }
constexpr MakeStore kStores[] = {ram, file};

char* memory(Address at) { return reinterpret_cast<char*>(at); }
bool illegal(const Status& status) { return status.code == Code::illegal; }

struct Fixture {
  std::unique_ptr<Driver> driver;
  Address base = 0;

  explicit Fixture(MakeDriver make, std::size_t capacity = 4) : driver(make()) {
    CHECK(driver->set_capacity(capacity).ok());
    CHECK(driver->reserve(8 * kChunk, &base).ok());
  }
  ChunkId chunk() {
    ChunkId made = kNone;
    CHECK(driver->create(&made).ok());
    return made;
  }
};

void for_each(void (*body)(Fixture)) {
  for (MakeDriver make : kDrivers) body(Fixture(make));
}

}  // namespace

TEST(capacity_is_enforced) {
  for_each([](Fixture f) {
    ChunkId chunks[4], extra = kNone;
    for (ChunkId& c : chunks) c = f.chunk();
    CHECK(f.driver->create(&extra).code == Code::out_of_budget);
    CHECK(illegal(f.driver->set_capacity(3)));
    CHECK(f.driver->set_capacity(5).ok());
    CHECK(f.driver->create(&extra).ok());
    for (ChunkId c : chunks) CHECK(f.driver->destroy(c).ok());
    CHECK(f.driver->destroy(extra).ok());
    CHECK(f.driver->live().chunks == 0);
  });
}

TEST(content_travels_with_the_chunk) {
  for_each([](Fixture f) {
    const ChunkId chunk = f.chunk();
    CHECK(f.driver->map(f.base, chunk, Access::write).ok());
    std::memset(memory(f.base), 7, kChunk);
    CHECK(f.driver->unmap(f.base).ok());
    const Address other = f.base + 5 * kChunk;
    CHECK(f.driver->map(other, chunk, Access::read).ok());
    for (Bytes i = 0; i < kChunk; i += 511) CHECK(memory(other)[i] == 7);
    CHECK(f.driver->protect(other, Access::write).ok());
    memory(other)[3] = 9;
    CHECK(f.driver->unmap(other).ok());
    CHECK(f.driver->live().mappings == 0);
  });
}

TEST(what_is_let_go_can_be_used_for_anything) {
  for_each([](Fixture f) {
    const auto fill = [&](Address at, ChunkId chunk, int value) {
      CHECK(f.driver->map(at, chunk, Access::write).ok());
      std::memset(memory(at), value, kChunk);
    };
    const auto holds = [&](Address at, char value) {
      for (Bytes i = 0; i < kChunk; i += 511) CHECK(memory(at)[i] == value);
    };
    const ChunkId a = f.chunk(), b = f.chunk();
    const Address here = f.base, there = f.base + 3 * kChunk;
    fill(here, a, 1);
    CHECK(f.driver->unmap(here, Door::ajar).ok());
    CHECK(illegal(f.driver->unmap(here, Door::ajar)) && illegal(f.driver->unmap(here)) && f.driver->live().mappings == 0);
    fill(there, a, 2);  // the chunk elsewhere
    fill(here, b, 3);   // the address with another chunk
    holds(there, 2);
    CHECK(f.driver->unmap(there, Door::ajar).ok());
    fill(there, a, 4);  // both together again
    CHECK(f.driver->unmap(there, Door::ajar).ok());
    CHECK(f.driver->unmap(here).ok());
    CHECK(f.driver->map(there, b, Access::read).ok());  // another chunk where one was let go, which goes home
    holds(there, 3);
    CHECK(f.driver->unmap(there, Door::ajar).ok());  // mapped for reading
    fill(here, b, 5);
    CHECK(f.driver->unmap(here, Door::ajar).ok());
    auto store = ram();
    SlotId slot = kNone;
    Ticket out, in;
    CHECK(store->acquire(&slot).ok());
    CHECK(f.driver->copy_out(b, store->place(slot), kChunk, &out).ok());
    f.driver->wait(out);
    f.driver->retire(out);
    fill(here, a, 6);  // while b's bytes are at home
    CHECK(f.driver->copy_in(store->place(slot), b, kChunk, &in).ok());
    f.driver->wait(in);
    f.driver->retire(in);
    CHECK(f.driver->map(there, b, Access::write).ok());
    holds(there, 5);
    holds(here, 6);
    CHECK(f.driver->unmap(here, Door::ajar).ok() && f.driver->unmap(there, Door::ajar).ok());
    CHECK(f.driver->map_host(here, store->place(slot)).ok());
    holds(here, 5);
    CHECK(f.driver->unmap_host(here).ok());
    CHECK(f.driver->destroy(b).ok());
    ChunkId c = f.chunk();
    fill(there, c, 7);
    CHECK(f.driver->unmap(there, Door::ajar).ok());
    CHECK(f.driver->release(f.base).ok());  // with what was let go in it
    CHECK(f.driver->destroy(a).ok() && f.driver->destroy(c).ok() && f.driver->live().chunks == 0);
  });
}

TEST(illegal_orders_are_refused_and_change_nothing) {
  for_each([](Fixture f) {
    const ChunkId a = f.chunk(), b = f.chunk();
    CHECK(illegal(f.driver->map(f.base + 1, a, Access::write)));           // not aligned
    CHECK(illegal(f.driver->map(f.base + 8 * kChunk, a, Access::write)));  // outside
    CHECK(illegal(f.driver->map(f.base, 99, Access::write)));              // no such chunk
    CHECK(illegal(f.driver->map(f.base, a, Access::none)));
    CHECK(illegal(f.driver->unmap(f.base)));
    CHECK(illegal(f.driver->protect(f.base, Access::read)));
    CHECK(f.driver->map(f.base, a, Access::write).ok());
    CHECK(illegal(f.driver->map(f.base, b, Access::write)));               // over a mapping
    CHECK(illegal(f.driver->map(f.base + kChunk, a, Access::write)));      // mapped twice
    CHECK(illegal(f.driver->unmap(f.base + kChunk)));
    CHECK(illegal(f.driver->destroy(a)));                                  // mapped
    CHECK(illegal(f.driver->release(f.base)));
    Ticket ticket;
    auto store = ram();
    SlotId slot = kNone;
    CHECK(store->acquire(&slot).ok());
    CHECK(illegal(f.driver->copy_out(a, store->place(slot), kChunk, &ticket)));      // mapped
    CHECK(illegal(f.driver->copy_out(b, store->place(slot), 0, &ticket)));
    CHECK(illegal(f.driver->copy_out(b, store->place(slot), kChunk + 1, &ticket)));
    const LiveHandles live = f.driver->live();
    CHECK(live.chunks == 2 && live.mappings == 1 && live.copies == 0);
    CHECK(f.driver->unmap(f.base).ok());
    CHECK(f.driver->release(f.base).ok());
    CHECK(illegal(f.driver->release(f.base)));
  });
}

TEST(copies_go_out_and_come_back) {
  for (MakeStore make_store : kStores) {
    for (MakeDriver make : kDrivers) {
      Fixture f(make);
      auto store = make_store();
      SlotId slot = kNone;
      CHECK(store->acquire(&slot).ok());
      const ChunkId from = f.chunk(), to = f.chunk();
      CHECK(f.driver->map(f.base, from, Access::write).ok());
      for (Bytes i = 0; i < kChunk; ++i) memory(f.base)[i] = static_cast<char>(i * 31);
      CHECK(f.driver->unmap(f.base).ok());
      Ticket out, in;
      CHECK(f.driver->copy_out(from, store->place(slot), kChunk, &out).ok());
      f.driver->wait(out);
      CHECK(f.driver->poll(out, nullptr) == CopyState::done);
      f.driver->retire(out);
      f.driver->wait(out);  // waiting for a retired copy returns
      CHECK(f.driver->copy_in(store->place(slot), to, kChunk, &in).ok());
      f.driver->wait(in);
      CHECK(f.driver->poll(in, nullptr) == CopyState::done);
      f.driver->retire(in);
      CHECK(f.driver->map(f.base, to, Access::read).ok());
      for (Bytes i = 0; i < kChunk; ++i) CHECK(memory(f.base)[i] == static_cast<char>(i * 31));
      CHECK(f.driver->unmap(f.base).ok());
      CHECK(f.driver->live().copies == 0);
    }
  }
}

TEST(a_team_shares_the_pieces_of_copies) {
  constexpr Bytes kLarge = Bytes{1} << 20;  // four pieces
  constexpr std::size_t kCopies = 6;
  HostDriver driver(kLarge, 0, team_of_three);
  CHECK(driver.hands() == Hands::in_wait);
  auto store = make_ram_store(kLarge, kCopies * kLarge);
  Address base = 0;
  CHECK(driver.set_capacity(kCopies).ok() && driver.reserve(kLarge, &base).ok());
  ChunkId chunks[kCopies];
  SlotId slots[kCopies];
  Ticket out[kCopies], in;
  for (std::size_t k = 0; k < kCopies; ++k) {
    CHECK(driver.create(&chunks[k]).ok() && store->acquire(&slots[k]).ok());
    CHECK(driver.map(base, chunks[k], Access::write).ok());
    for (Bytes i = 0; i < kLarge; ++i) memory(base)[i] = static_cast<char>(i * 31 + k);
    CHECK(driver.unmap(base).ok());
    CHECK(driver.copy_out(chunks[k], store->place(slots[k]), kLarge, &out[k]).ok());
  }
  CHECK(driver.poll(out[0], nullptr) == CopyState::pending);        // nobody waits yet
  CHECK(driver.cancel(out[2]) == CopyState::cancelled);
  std::thread other([&] { driver.wait(out[1]); });
  driver.wait(out[3]);
  other.join();
  for (std::size_t k : {0, 4, 5}) CHECK(driver.poll(out[k], nullptr) == CopyState::done);  // what was under way went along
  for (std::size_t k = 0; k < kCopies; ++k) {
    CHECK(driver.poll(out[k], nullptr) == (k == 2 ? CopyState::cancelled : CopyState::done));
    driver.retire(out[k]);
  }
  for (std::size_t k : {0, 1, 3, 4, 5}) {
    CHECK(driver.copy_in(store->place(slots[k]), chunks[2], kLarge, &in).ok());
    driver.wait(in);
    driver.retire(in);
    CHECK(driver.map(base, chunks[2], Access::read).ok());
    for (Bytes i = 0; i < kLarge; ++i) CHECK(memory(base)[i] == static_cast<char>(i * 31 + k));
    CHECK(driver.unmap(base).ok());
  }
  CHECK(driver.live().copies == 0);
}

TEST(hands_move_bytes_and_the_link_ends_copies_in_its_own_time) {
  constexpr Bytes kLarge = Bytes{1} << 20;
  constexpr std::size_t kCopies = 3;
  HostDriver driver(kLarge, 10e6, team_of_three);  // a tenth of a second a copy
  CHECK(driver.hands() == Hands::between);
  auto store = make_ram_store(kLarge, kCopies * kLarge);
  Address base = 0;
  CHECK(driver.set_capacity(1).ok() && driver.reserve(kLarge, &base).ok());
  ChunkId chunk = 0;
  CHECK(driver.create(&chunk).ok() && driver.map(base, chunk, Access::write).ok());
  for (Bytes i = 0; i < kLarge; ++i) memory(base)[i] = static_cast<char>(i * 31);
  CHECK(driver.unmap(base).ok());
  SlotId slot = 0;
  Ticket out;
  const auto begun = std::chrono::steady_clock::now();
  for (std::size_t k = 0; k < kCopies; ++k) {
    CHECK(store->acquire(&slot).ok() && driver.copy_out(chunk, store->place(slot), kLarge, &out).ok());
    const auto* copied = static_cast<const char*>(store->place(slot).memory);
    if (k != 1) driver.lend_hands();  // the second one's bytes move when its time is up
    for (Bytes i = 0; k != 1 && i < kLarge; ++i) CHECK(copied[i] == static_cast<char>(i * 31));
    CHECK(driver.poll(out, nullptr) == CopyState::pending);
    if (k == 2) {
      CHECK(driver.cancel(out) == CopyState::cancelled);
    } else {
      driver.wait(out);
      CHECK(driver.poll(out, nullptr) == CopyState::done);
    }
    for (Bytes i = 0; i < kLarge; ++i) CHECK(copied[i] == static_cast<char>(i * 31));
    driver.retire(out);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  CHECK(took.count() > 0.2);
  CHECK(static_cast<double>(driver.times(Lane::out).busy_ns) > 0.2e9);
  CHECK(driver.live().copies == 0);
}

TEST(a_busy_chunk_can_be_neither_mapped_nor_destroyed_and_a_copy_can_be_cancelled) {
  // A link of 64 KiB a second: the copy takes a second unless somebody gives it up.
  HostDriver driver(kChunk, static_cast<double>(kChunk));
  Address base = 0;
  CHECK(driver.set_capacity(2).ok() && driver.reserve(2 * kChunk, &base).ok());
  auto store = ram();
  SlotId slots[2];
  for (SlotId& s : slots) CHECK(store->acquire(&s).ok());
  ChunkId running = kNone, queued = kNone;
  CHECK(driver.create(&running).ok() && driver.create(&queued).ok());
  Ticket first, second;
  CHECK(driver.copy_out(running, store->place(slots[0]), kChunk, &first).ok());
  CHECK(driver.copy_out(queued, store->place(slots[1]), kChunk, &second).ok());
  CHECK(illegal(driver.map(base, running, Access::write)));
  CHECK(illegal(driver.destroy(queued)));
  CHECK(illegal(driver.copy_out(running, store->place(slots[0]), kChunk, &first)));
  CHECK(driver.cancel(second) == CopyState::cancelled);  // before it began
  CHECK(driver.cancel(first) == CopyState::cancelled);   // while it ran
  CHECK(driver.poll(first, nullptr) == CopyState::cancelled);
  driver.retire(second);
  driver.retire(first);
  CHECK(driver.map(base, running, Access::write).ok());
  CHECK(driver.unmap(base).ok());
  CHECK(driver.live().copies == 0);
}

TEST(a_finished_copy_cannot_be_cancelled_any_more) {
  for_each([](Fixture f) {
    auto store = ram();
    SlotId slot = kNone;
    CHECK(store->acquire(&slot).ok());
    Ticket ticket;
    CHECK(f.driver->copy_out(f.chunk(), store->place(slot), kChunk, &ticket).ok());
    f.driver->wait(ticket);
    CHECK(f.driver->cancel(ticket) == CopyState::done);
    f.driver->retire(ticket);
  });
}

TEST(host_places_can_be_used_in_place) {
  for (MakeStore make_store : kStores) {
    for (MakeDriver make : kDrivers) {
      Fixture f(make);
      auto store = make_store();
      SlotId slot = kNone;
      CHECK(store->acquire(&slot).ok());
      CHECK(f.driver->map_host(f.base, store->place(slot)).ok());
      std::memset(memory(f.base), 5, kChunk);
      CHECK(illegal(f.driver->map_host(f.base, store->place(slot))));
      CHECK(illegal(f.driver->unmap(f.base)));
      CHECK(f.driver->live().host_mappings == 1);
      CHECK(f.driver->unmap_host(f.base).ok());
      const ChunkId chunk = f.chunk();
      Ticket in;
      CHECK(f.driver->copy_in(store->place(slot), chunk, kChunk, &in).ok());
      f.driver->wait(in);
      f.driver->retire(in);
      CHECK(f.driver->map(f.base, chunk, Access::read).ok());
      CHECK(memory(f.base)[kChunk - 1] == 5);
      CHECK(f.driver->unmap(f.base).ok());
      store->release(slot);
      CHECK(store->used() == 0);
    }
  }
}

TEST(a_full_store_gives_more_to_who_cannot_do_without) {
  for (MakeStore make_store : kStores) {
    for (MakeDriver make : kDrivers) {
      Fixture f(make);
      auto store = make_store();
      std::vector<SlotId> slots;
      for (SlotId slot = kNone; store->acquire(&slot).ok();) slots.push_back(slot);
      CHECK(slots.size() == store->capacity());
      SlotId beyond = kNone;
      for (int round = 0; round < 2; ++round) {  // its memory is used again
        CHECK(store->acquire_beyond(&beyond).ok() && store->writable(beyond) && store->used() == slots.size() + 1);
        CHECK(f.driver->map_host(f.base, store->place(beyond)).ok());
        std::memset(memory(f.base), 6, kChunk);
        CHECK(f.driver->unmap_host(f.base).ok());
        store->release(beyond);
      }
      CHECK(store->acquire_beyond(&beyond).ok());
      store->release(slots.back());
      CHECK(store->acquire(&slots.back()).code == Code::host_full);  // not before there is room for all
      store->release(beyond);
      CHECK(store->acquire(&slots.back()).ok());
      for (const SlotId slot : slots) store->release(slot);
      CHECK(store->used() == 0 && store->held() == 0);
    }
  }
}

TEST(a_store_gives_back_what_nobody_has_and_nothing_else) {
  for (MakeStore make_store : kStores) {
    for (MakeDriver make : kDrivers) {
      Fixture f(make);
      auto store = make_store();
      std::array<SlotId, 5> slots{};
      for (SlotId& slot : slots) {
        CHECK(store->acquire(&slot).ok() && f.driver->map_host(f.base, store->place(slot)).ok());
        std::memset(memory(f.base), 7, kChunk);
        CHECK(f.driver->unmap_host(f.base).ok());
      }
      for (const int k : {0, 2, 3}) store->release(slots[k]);
      store->trim();
      CHECK(store->used() == 2);
      store->release(slots[4]);
      for (const int k : {0, 2, 3, 4}) {  // pages that the system took back are zero when they are looked at
        const auto* bytes = static_cast<const char*>(store->place(slots[k]).memory);
        CHECK(bytes == nullptr || (bytes[0] == 0 && bytes[kChunk - 1] == 0));
      }
      CHECK(f.driver->map_host(f.base, store->place(slots[1])).ok());
      CHECK(memory(f.base)[0] == 7 && memory(f.base)[kChunk - 1] == 7);
      CHECK(f.driver->unmap_host(f.base).ok());
      std::size_t more = 0;
      for (SlotId slot = kNone; store->acquire(&slot).ok();) ++more;
      CHECK(more == store->capacity() - 1);
    }
  }
}

TEST(a_file_that_cannot_be_read_is_a_failed_copy) {
  for_each([](Fixture f) {
    const ChunkId chunk = f.chunk();
    Ticket ticket;
    CHECK(f.driver->copy_in({nullptr, -1, 0}, chunk, kChunk, &ticket).ok());
    f.driver->wait(ticket);
    int error = 0;
    CHECK(f.driver->poll(ticket, &error) == CopyState::failed && error != 0);
    f.driver->retire(ticket);
  });
}

TEST(stores_enforce_their_capacity_and_reuse_slots) {
  for (MakeStore make : kStores) {
    auto store = make();
    SlotId slots[8], extra = kNone;
    for (SlotId& s : slots) CHECK(store->acquire(&s).ok());
    CHECK(store->acquire(&extra).code == Code::host_full);
    store->release(slots[3]);
    CHECK(store->acquire(&extra).ok() && extra == slots[3]);
  }
}

TEST(bad_sizes_are_refused) {
  for (const Bytes bad : {Bytes{0}, Bytes{1000}, Bytes{3 << 20}}) {
    bool thrown = false;
    try {
      HostDriver driver(bad, 0);
    } catch (const InvalidUse&) {
      thrown = true;
    }
    CHECK(thrown);
  }
}

TEST(injected_faults_hit_the_call_they_name) {
  InjectDriver driver(host());
  driver.fail("create", 2, 1);
  CHECK(driver.set_capacity(4).ok());
  ChunkId chunk = kNone;
  CHECK(driver.create(&chunk).ok());
  CHECK(driver.create(&chunk).code == Code::failed);
  CHECK(driver.create(&chunk).ok());
  CHECK(driver.live().chunks == 2 && driver.calls("create") == 3);
}

int main() { return run_native_tests(); }
