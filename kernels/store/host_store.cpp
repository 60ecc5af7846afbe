#include "store/host_store.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "device/host_file.h"
#include "device/pages.h"

namespace vt {

std::size_t HostStore::slots_in(Bytes capacity_bytes, Bytes slot_bytes) {
  return std::min<std::size_t>(capacity_bytes / slot_bytes, Lent::kFirst / 4);
}

Status HostStore::acquire_beyond(SlotId* slot) {
  return beyond_.take(slot) ? kOk : Status{Code::host_full, "mmap", errno};
}

void HostStore::release(SlotId slot) {
  if (Lent::holds(slot)) return lent_.give_back(slot);
  beyond_.holds(slot) ? beyond_.give_back(slot) : release_own(slot);
}

HostPlace HostStore::place(SlotId slot) const {
  if (Lent::holds(slot)) return {const_cast<void*>(lent_.memory(slot)), -1, 0};
  return beyond_.holds(slot) ? HostPlace{beyond_.memory(slot), -1, 0} : place_own(slot);
}

void HostStore::take(SlotId slot) {
  if (is_new(slot)) {
    ++opened_;
    links_.emplace_back();  // so that give() never allocates
  } else {
    const Link link = std::exchange(links_[slot], {});
    (link.newer == kNone ? newest_ : links_[link.newer].older) = link.older;
    if (link.older != kNone) links_[link.older].newer = link.newer;
  }
  ++used_;
}

void HostStore::give(SlotId slot) {
  if (newest_ != kNone) links_[newest_].newer = slot;
  links_[slot] = {newest_, kNone, true};
  newest_ = slot;
  --used_;
}

Status write_copy(const HostPlace& from, const HostPlace& to, Bytes bytes) {
  if ((from.memory == nullptr && !still_there(from)) || (to.memory == nullptr && !still_there(to))) {
    return {Code::failed, "fstat", errno};
  }
  std::vector<char> buffer(64 << 10);  // not on the stack: this may run on the small one of a signal handler
  for (Bytes moved = 0; moved < bytes;) {
    const Bytes piece = std::min(buffer.size(), bytes - moved);
    const auto at = static_cast<off_t>(moved);
    if (from.memory != nullptr) {
      std::memcpy(buffer.data(), static_cast<const char*>(from.memory) + moved, piece);
    } else if (pread(from.file, buffer.data(), piece, from.offset + at) != static_cast<ssize_t>(piece)) {
      return {Code::failed, "pread", errno};
    }
    if (to.memory != nullptr) {
      std::memcpy(static_cast<char*>(to.memory) + moved, buffer.data(), piece);
    } else if (pwrite(to.file, buffer.data(), piece, to.offset + at) != static_cast<ssize_t>(piece)) {
      return {Code::failed, "pwrite", errno};
    }
    moved += piece;
  }
  return kOk;
}

namespace {

constexpr Bytes kPinnedAtOnce = Bytes{256} << 20;  // pinning costs the device's driver milliseconds, whatever the size

class RamStore final : public HostStore {
 public:
  RamStore(Bytes slot_bytes, std::size_t capacity, Pinning pinning)
      : HostStore(slot_bytes, capacity), bytes_(slot_bytes * capacity), pinning_(std::move(pinning)) {
    const Bytes align = std::max(slot_bytes, pages::kHuge);
    reserved_ = bytes_ + align;
    // NORESERVE: pages are taken as slots are first written, not now.
    void* raw = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
      throw InvalidUse("cannot reserve " + format_bytes(bytes_) + " of addresses for the host store: " +
                       std::strerror(errno) + "; pass a smaller host=");
    }
    raw_ = raw;
    base_ = (reinterpret_cast<Address>(raw) + align - 1) / align * align;
    if (slot_bytes % pages::kHuge == 0) madvise(reinterpret_cast<void*>(base_), bytes_, MADV_HUGEPAGE);
  }

  ~RamStore() override {
    unpin(0, bytes_);
    munmap(raw_, reserved_);
  }

  Status acquire(SlotId* slot, SlotId before) override {
    if (full()) return {Code::host_full, "host store", 0};
    *slot = next_slot(before);
    if (pinning_.pin && is_new(*slot)) pin_up_to(Bytes{*slot + 1} * slot_bytes());
    take(*slot);
    return kOk;
  }

  void trim() override {
    trimmed_ = true;
    each_free_run([this](SlotId first, SlotId last) {
      Bytes from = Bytes{first} * slot_bytes(), to = Bytes{last} * slot_bytes();
      if (pinning_.pin) {  // by the pieces that it was pinned in
        from = (from + at_once() - 1) / at_once() * at_once();
        if (to < bytes_) to = to / at_once() * at_once();
        unpin(from, to);
      }
      if (from < to) madvise(memory(from), to - from, MADV_DONTNEED);
    });
  }

  Bytes pinned() const noexcept override { return pinned_bytes_; }
  std::string name() const override { return "RAM"; }

 private:
  void release_own(SlotId slot) override {
    if (trimmed_ && !pinning_.pin) madvise(memory(Bytes{slot} * slot_bytes()), slot_bytes(), MADV_DONTNEED);
    give(slot);
  }
  HostPlace place_own(SlotId slot) const override {
    const Bytes from = Bytes{slot} * slot_bytes();
    const auto piece = static_cast<std::uint32_t>(from / at_once() + 1);
    return {memory(from), -1, 0, 0, 0, pinning_.pin ? piece : 0};
  }
  void* memory(Bytes from) const noexcept { return reinterpret_cast<void*>(base_ + from); }
  Bytes at_once() const noexcept { return std::max(kPinnedAtOnce, slot_bytes()); }
  Bytes piece_at(Bytes from) const noexcept { return std::min(at_once(), bytes_ - from); }

  // Whole slots, and once only: where pinning was refused the memory stays as it is.
  void pin_up_to(Bytes end) {
    while (tried_ < end) {
      const Bytes piece = piece_at(tried_);
      if (pinning_.pin(memory(tried_), piece)) {
        madvise(memory(tried_), piece, MADV_DONTFORK);  // a fork would copy all that is pinned
        pinned_.push_back(tried_);
        pinned_bytes_ += piece;
      }
      tried_ += piece;
    }
  }

  // Pieces that begin there.
  void unpin(Bytes from, Bytes to) {
    std::erase_if(pinned_, [&](Bytes piece) {
      if (piece < from || piece >= to) return false;
      pinning_.unpin(memory(piece));
      madvise(memory(piece), piece_at(piece), MADV_DOFORK);
      pinned_bytes_ -= piece_at(piece);
      return true;
    });
  }

  Bytes bytes_;
  Pinning pinning_;
  Bytes tried_ = 0, pinned_bytes_ = 0;
  std::vector<Bytes> pinned_;  // pieces, by where they begin
  bool trimmed_ = false;
  Bytes reserved_ = 0;
  void* raw_ = nullptr;
  Address base_ = 0;
};

}  // namespace

std::unique_ptr<HostStore> make_ram_store(Bytes slot_bytes, Bytes capacity_bytes, Pinning pinning) {
  return std::make_unique<RamStore>(slot_bytes, HostStore::slots_in(capacity_bytes, slot_bytes), std::move(pinning));
}

}  // namespace vt
