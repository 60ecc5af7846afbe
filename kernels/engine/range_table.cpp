#include "engine/range_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

namespace vt {

namespace {
// 2 Mi entries: 4 TiB of addresses with chunks of 2 MiB, 8 GiB with chunks of a page. The table's pages are
// touched as ranges are made, so its size costs nothing.
constexpr std::size_t kWindowChunks = std::size_t{1} << 21;
constexpr Bytes kWindowBytes = Bytes{4} << 40;  // a GPU has fewer addresses than a processor
constexpr std::size_t kLeast = 2;               // chunks of window for each of the budget, where no more can be had
constexpr std::size_t kLeft = 3;                // times as many addresses stay for the program, where they are limited
}  // namespace

RangeTable::RangeTable(Ground& ground)
    : ground_(ground), entries_(std::min(kWindowChunks, kWindowBytes >> ground.shift)) {
  Status status = ground_.driver.reserve(window(), &base_);
  bool left = status.ok();
  while (!left && entries_ / 2 >= kLeast * ground_.config.budget_chunks) {
    if (status.ok()) (void)ground_.driver.release(base_);
    entries_ /= 2;
    status = ground_.driver.reserve(window(), &base_);
    Address rest = 0;
    left = status.ok() && ground_.driver.reserve(kLeft * window(), &rest).ok();
    if (left) (void)ground_.driver.release(rest);
  }
  if (!status.ok()) {
    throw InvalidUse("cannot reserve " + format_bytes(window()) + " of addresses: " + describe(status) +
                     "; where they are limited (ulimit -v), a smaller budget= or host= may do");
  }
  void* table = mmap(nullptr, entries_ * sizeof(*table_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                     -1, 0);
  if (table == MAP_FAILED) throw InvalidUse("cannot reserve the address table: " + describe({Code::failed, "mmap", errno}));
  table_ = static_cast<std::atomic<Range*>*>(table);  // zero pages are null pointers
  space_ = std::make_unique<AddressSpace>(base_, entries_, ground_.chunk_bytes);
  window_bytes_ = window();
}

RangeTable::~RangeTable() { munmap(table_, entries_ * sizeof(*table_)); }

Range* RangeTable::make(std::uint32_t chunks) {
  const Address base = space_->acquire(chunks);
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

void RangeTable::retire(Range& range) {
  space_->release(range.base, range.chunks);
  range.life = Life::unused;
  range.parts.reset();
  unused_.push_back(&range);
}

void RangeTable::fill(const Range& range, Range* entry) {
  const std::size_t first = (range.base - base_) >> ground_.shift;
  for (std::size_t i = 0; i < range.chunks; ++i) table_[first + i].store(entry, std::memory_order_relaxed);
}

std::vector<Range*> RangeTable::living() const {
  std::vector<Range*> live;
  for (const auto& range : records_) {
    if (range->life == Life::live) live.push_back(range.get());
  }
  std::sort(live.begin(), live.end(), [](const Range* a, const Range* b) { return a->serial < b->serial; });
  return live;
}

Status RangeTable::close() {
  window_bytes_ = 0;
  return ground_.driver.release(base_);
}

std::string RangeTable::validate(bool whole) const {
  if (std::string broken = space_->validate(); !broken.empty()) return broken;
  std::size_t addresses = space_->free_chunks();
  for (const auto& range : records_) {
    if (range->life == Life::unused) continue;
    addresses += range->chunks;
    if (range->life != Life::live) continue;
    for (std::uint32_t i = 0; i < range->chunks; ++i) {
      if (find(reinterpret_cast<const void*>(ground_.address_of(*range, i))) != range.get()) return "the address table is wrong";
    }
  }
  return whole && addresses != entries_ ? "addresses are lost" : "";
}

}  // namespace vt
