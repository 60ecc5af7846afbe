// Engine: the beginning and the end of tensors. See engine.h.

#include "engine/engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>

namespace vt {

namespace {
// 2 Mi entries: 4 TiB of addresses with chunks of 2 MiB, 8 GiB with chunks of a page. The table's pages are
// touched as ranges are made, so its size costs nothing.
constexpr std::size_t kWindowChunks = std::size_t{1} << 21;
constexpr Bytes kWindowBytes = Bytes{4} << 40;  // a GPU has fewer addresses than a processor

// What is left of a vTensor when its tensor is gone: who still pins it, and where its address leads.
VTensor emptied(const VTensor& part) {
  VTensor empty;
  empty.pins = part.pins;
  empty.mapped = part.mapped;
  empty.gone = part.gone;
  return empty;
}
}  // namespace

Engine::Engine(std::unique_ptr<Driver> driver, std::unique_ptr<HostStore> store, const EngineConfig& config)
    : driver_(std::move(driver)),
      ordered_(driver_->ordered()),
      chunk_bytes_(driver_->chunk_bytes()),
      shift_(static_cast<unsigned>(std::countr_zero(chunk_bytes_))),
      table_entries_(std::min(kWindowChunks, kWindowBytes >> shift_)),
      store_(std::move(store)),
      config_(config),
      pool_(*driver_, config.budget_chunks),
      copies_(*driver_),
      order_(*driver_),
      in_place_(*driver_, order_) {
  Status status = driver_->reserve(table_entries_ << shift_, &base_);
  while (!status.ok() && table_entries_ / 2 >= 8 * config.budget_chunks) {
    table_entries_ /= 2;
    status = driver_->reserve(table_entries_ << shift_, &base_);
  }
  if (!status.ok()) {
    throw InvalidUse("cannot reserve " + format_bytes(table_entries_ << shift_) + " of addresses: " + describe(status));
  }
  void* table = mmap(nullptr, table_entries_ * sizeof(*table_), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED) throw InvalidUse("cannot reserve the address table: " + describe({Code::failed, "mmap", errno}));
  table_ = static_cast<std::atomic<Range*>*>(table);  // zero pages are null pointers
  space_ = std::make_unique<AddressSpace>(base_, table_entries_, chunk_bytes_);
  left_by_.resize(config.budget_chunks);
  if (ordered_) chunk_after_.resize(config.budget_chunks);
  window_bytes_ = table_entries_ << shift_;
}

Engine::~Engine() { munmap(table_, table_entries_ * sizeof(*table_)); }

void* Engine::allocate(Bytes bytes, const char* operation, Lane stream, bool pinned) {
  Lock lock(mutex_);
  if (detached_) return nullptr;
  if (bytes > table_entries_ << shift_) {
    throw OutOfMemory(out_of_memory({Code::failed, "more than all addresses", 0}, bytes, operation));
  }
  const auto chunks = static_cast<std::uint32_t>((bytes + chunk_bytes_ - 1) >> shift_);
  ++counters_.allocations;
  if (ordered_) {
    reap();
    restore_budget();
  }
  Range* range = cache_.take(chunks);
  if (range != nullptr) {
    ++counters_.reused;
  } else {
    range = build(lock, chunks, bytes, operation, stream);
  }
  if (ordered_) start_in_order(*range, stream);
  become_live(*range, bytes, operation);
  if (pinned) range->pins.fetch_add(1);
  note_use();
  return reinterpret_cast<void*>(range->base);
}

Range* Engine::new_range(std::uint32_t chunks) {
  sweep_limbo();
  Address base = space_->acquire(chunks);
  if (base == 0 && ordered_) {
    retire_formers();
    base = space_->acquire(chunks);
  }
  if (base == 0) return nullptr;
  if (unused_.empty()) {
    records_.push_back(std::make_unique<Range>());
    unused_.push_back(records_.back().get());
  }
  Range* range = unused_.back();
  unused_.pop_back();
  range->base = base;
  range->chunks = chunks;
  range->parts = std::make_unique<VTensor[]>(chunks);
  range->used.store(0);  // whatever it was before, its addresses were given back when nothing used them
  range->others.clear();
  return range;
}

void Engine::recycle(Range& range) {
  const std::size_t first = (range.base - base_) >> shift_;
  for (std::size_t i = 0; i < range.chunks; ++i) table_[first + i].store(nullptr, std::memory_order_relaxed);
  const bool lent = ordered_ && std::any_of(&range.parts[0], &range.parts[0] + range.chunks,
                                            [](const VTensor& part) { return part.state == State::borrowed; });
  if (ordered_ && !detached_ && !range.pinned() && !lent) {
    keep_former(range);
  } else if (range.pinned() || (ordered_ && !order_.passed(touched_by(range)))) {
    range.life = Life::limbo;
    limbo_.push_back(&range);
  } else {
    retire(range);
  }
}

void Engine::retire(Range& range) {
  if (ordered_) {
    forget_former(range, [](const VTensor&) { return true; });
    end_borrowing(range);
  }
  space_->release(range.base, range.chunks);
  range.life = Life::unused;
  range.parts.reset();
  unused_.push_back(&range);
}

void Engine::sweep_limbo() {
  bool older_waits = false;  // on ordered devices: those behind it wait too, most likely, and asking costs
  std::erase_if(limbo_, [&](Range* range) {
    if (range->pinned() || older_waits) return false;
    if (ordered_ && !order_.passed(touched_by(*range))) {
      older_waits = true;
      return false;
    }
    retire(*range);
    return true;
  });
}

Range* Engine::build(Lock& lock, std::uint32_t chunks, Bytes bytes, const char* operation, Lane stream) {
  Range* range = ordered_ ? reuse_former(chunks) : nullptr;
  if (range == nullptr) range = new_range(chunks);
  if (range == nullptr) throw OutOfMemory(out_of_memory({Code::failed, "no addresses left", 0}, bytes, operation));
  const std::size_t first = (range->base - base_) >> shift_;
  for (std::size_t i = 0; i < chunks; ++i) table_[first + i].store(range, std::memory_order_relaxed);
  range->home = stream;
  Status status = ordered_ ? back_in_order(*range, operation) : kOk;
  for (std::uint32_t index = 0; !ordered_ && status.ok() && index < chunks; ++index) status = back_part(lock, *range, index);
  if (!status.ok()) {
    unback(*range);
    recycle(*range);
    throw OutOfMemory(out_of_memory(status, bytes, operation));
  }
  return range;
}

Status Engine::back_part(Lock& lock, Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  ChunkId chunk = kNone;
  Status status = take_chunk(lock, range.chunks - index, &chunk);
  if (status.ok()) {
    status = driver_->map(address_of(range, index), chunk, Access::write);
    if (!status.ok()) {
      pool_.release(chunk);
      return status;
    }
    assign(part, chunk);
    part.state = State::resident;
    ++counters_.remaps;
    return kOk;
  }
  if (status.code != Code::nothing_leaves || config_.oversize == Oversize::raise) return status;
  return born_in_place(range, index);  // every chunk is pinned by running operations
}

void Engine::become_live(Range& range, Bytes bytes, const char* operation) {
  range.bytes = bytes;
  range.life = Life::live;
  range.exported = range.fixed = false;
  range.serial = ++serials_;
  range.tag = {};
  range.part_use.clear();
  range.last_use.store(clock_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  ++live_;
  range.resident = 0;
  std::uint32_t missing = 0;
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    if (range.parts[i].state == State::resident) {
      ++range.resident;
    } else {
      ++missing;
      counters_.absent_bytes.add(bytes_in(range, i));
      counters_.borrowed_bytes.add(bytes_in(range, i));
    }
  }
  range.missing.store(missing);
  if (range.resident > 0) enroll(range);
  counters_.tensor_bytes.add(bytes);
  counters_.wanted_bytes.add(Bytes{range.chunks} << shift_);
  // Three quarters: early enough that the first eviction finds its operations observed and their uses dated.
  if (counters_.wanted_bytes.current > (pool_.capacity() << shift_) / 4 * 3) {
    pressed_.store(true, std::memory_order_relaxed);
  }
  if (missing > 0) {
    pressed_.store(true, std::memory_order_relaxed);
    ++counters_.oversize;
    warn_oversize(operation);
  }
}

void Engine::free(void* address, bool keep) noexcept {
  Lock lock(mutex_);
  if (ordered_ && forked_) return;  // the device is the parent's, and cannot be asked here
  Range* range = find(address);
  if (range == nullptr || range->life != Life::live || range->base != reinterpret_cast<Address>(address)) {
    fatal("free of an address that is not the start of a live tensor");
  }
  if (ordered_) {  // what its streams were asked to do so far may still use it
    note_use_on(range->home, *range);
    for (const Lane stream : range->recorded) note_use_on(stream, *range);
    range->recorded.clear();  // what they are asked for from now on does not use it
  }
  std::erase_if(graces_, [&](const Use& use) {
    if (use.range != range) return false;
    unpin_parts(use);
    return true;
  });
  for (std::uint32_t i = 0; i < range->chunks; ++i) release_part(*range, i);
  if (range->roster_at != kNone) strike(*range);
  counters_.tensor_bytes.sub(range->bytes);
  counters_.wanted_bytes.sub(Bytes{range->chunks} << shift_);
  --live_;
  range->freed_at = clock_.load(std::memory_order_relaxed);
  if (keep && range->resident == range->chunks) {
    range->life = Life::cached;
    cache_.put(range);
  } else {
    unback(*range);
    recycle(*range);
  }
  if (!arrivals_.empty()) pump();
  if (ordered_ && detached_) sweep_limbo();  // no new tensor will
  finish_if_drained(lock);
}

// Takes from a dying vTensor what a new owner must not inherit; a resident one keeps its mapped chunk.
void Engine::release_part(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  const Bytes bytes = bytes_in(range, index);
  switch (part.state) {
    case State::resident:
      if (part.clean()) drop_slot(range, index);
      return;
    case State::arriving:
      counters_.absent_bytes.sub(bytes);
      [[fallthrough]];
    case State::leaving:
      exported_leaving_ -= range.exported && part.state == State::leaving;
      copies_.cancel(part);
      left_by_[part.chunk] = 0;
      pool_.release(part.chunk);
      break;
    case State::borrowed:
      counters_.borrowed_bytes.sub(bytes);
      if (ordered_) {  // the device may still use it: it ends with the addresses
        counters_.absent_bytes.sub(bytes);
        return;
      }
      must("unmapping a dead tensor", &Engine::unmap_borrowed, range, index);
      [[fallthrough]];
    case State::absent:
      counters_.absent_bytes.sub(bytes);
      break;
  }
  release_slot(range, part);
  part = emptied(part);
}

void Engine::unback(Range& range) {
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    VTensor& part = range.parts[i];
    if (part.chunk != kNone) {
      if (ordered_) {
        chunk_after_[part.chunk] = uses_of(range);
      } else {
        must("unmapping a freed tensor", &Engine::unmap_part, range, i);
      }
      left_by_[part.chunk] = 0;
      pool_.release(part.chunk);
    } else if (part.slot != kNone) {
      if (ordered_) continue;  // retire() ends it
      must("unmapping a freed tensor", &Engine::unmap_borrowed, range, i);
      store_->release(part.slot);
    }
    part = emptied(part);
  }
}

}  // namespace vt
