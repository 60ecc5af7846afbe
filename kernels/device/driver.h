// The port to the hardware: what the engine needs of a device, and nothing else.
//
// Covers: virtual addresses, physical chunks, mappings, copies to and from the host store, live-handle counts.
// Leaves: who owns which chunk (chunk_pool.h), when to copy (engine.h), where a slot lives (host_store.h).
// Implementations: driver_host.h (memory of this process), driver_inject.h (wraps it to fail or delay a named call in tests); and
// those of driver_ordered.h, which adds what only ordered devices have.
//
// Rules that hold for every implementation:
//   - A call that returns a status other than ok changed nothing.
//   - A chunk's content travels with it, from mapping to mapping.
//   - A device is of one of two kinds. On an *immediate* one an operation has ended when its call returns: there a chunk is
//     mapped at one address at most, a chunk with a copy under way can be neither mapped nor destroyed, and a mapped chunk can
//     not be copied. On an *ordered* one (a GPU) work goes on after the call that asked for it: there chunks may be mapped
//     at several addresses and copied while they are mapped, and the caller keeps the order of what touches them by tickets.
//     Nothing may be unmapped or destroyed there while work that was asked for may still touch it.
//   - All calls may come from any thread. map, unmap, protect, map_host, unmap_host are never called by two
//     threads for the same address at once: the engine's lock sees to that.
#pragma once

#include "base/types.h"

namespace vt {

// Where a slot of the host store lies: memory of this process, or a place in a file.
struct HostPlace {
  void* memory = nullptr;    // used when not null
  int file = -1;             // else this descriptor
  std::int64_t offset = 0;   // and this offset in bytes, a multiple of the chunk size
  std::uint64_t device = 0, inode = 0;  // of the file, which the descriptor may be no more (host_file.h)
  std::uint32_t piece = 0;   // of memory that was pinned at once, within which a device copies; 0: of no such
};

// What work is asked of, in order: each direction of copying is one, and each stream that computes, on devices that have any.
enum class Lane : std::uint8_t { out, in, first_stream, none = 255 };

// Names a point in the work of a lane: passed when all that was asked of the lane before it is done. Those of copying lanes are
// their copies.
struct Ticket {
  Lane lane = Lane::out;
  std::uint64_t number = 0;  // 1, 2, 3 ... within the lane; 0 names no point
};

enum class CopyState : std::uint8_t { pending, done, failed, cancelled };

// How the threads that compute move the bytes of copies, where there is no copy engine.
enum class Hands : std::uint8_t {
  none,     // not at all: copies move by themselves
  in_wait,  // only while somebody waits for one: there is no lane to hide them in
  between,  // between two operations, when they come by (lend_hands)
};

struct LaneTimes {
  std::uint64_t busy_ns = 0;       // from the beginning of a copy to its end, as the device's user sees it, or as others took
  std::uint64_t processor_ns = 0;  // taken from the processors that compute, of all of them; 0 where copy engines are their own
};

// Handles alive now; all but `reservations` return to zero when every tensor is gone.
struct LiveHandles {
  std::size_t reservations = 0;
  std::size_t chunks = 0;
  std::size_t mappings = 0;       // chunks mapped
  std::size_t host_mappings = 0;  // host places mapped at device addresses
  std::size_t copies = 0;         // tickets not retired
  std::size_t places = 0;         // made by make_place
};

// While one exists in a thread, its waits call no other threads for help. For handlers: in that of a signal no thread should
// be made, and around a fork none may be, as the child would count on it (OpenMP does).
class WaitsAlone {
 public:
  WaitsAlone() noexcept { ++count_; }
  ~WaitsAlone() { --count_; }
  WaitsAlone(const WaitsAlone&) = delete;
  WaitsAlone& operator=(const WaitsAlone&) = delete;
  static bool here() noexcept { return count_ > 0; }

 private:
  static inline thread_local int count_ = 0;
};

// Of an address whose chunk is unmapped.
enum class Door : std::uint8_t { closed, ajar };

class OrderedDriver;

class Driver {
 public:
  virtual ~Driver() = default;

  // Size of every chunk in bytes; a power of two and a multiple of the page size.
  virtual Bytes chunk_bytes() const noexcept = 0;

  // --- virtual addresses ---------------------------------------------------------------------------------
  // Reserves `bytes` (a multiple of chunk_bytes) of addresses without memory. Touching them is an error the
  // device reports (on the host: SIGSEGV).
  virtual Status reserve(Bytes bytes, Address* base) = 0;
  // Gives a whole reservation back. Pre: nothing is mapped in it.
  virtual Status release(Address base) = 0;

  // --- physical chunks -----------------------------------------------------------------------------------
  // Sets how many chunks may exist. Pre: not fewer than exist.
  virtual Status set_capacity(std::size_t chunks) = 0;
  // Creates one chunk, unmapped. out_of_budget when capacity chunks exist. Content: unspecified.
  virtual Status create(ChunkId* chunk) = 0;
  // Pre: unmapped, no copy under way.
  virtual Status destroy(ChunkId chunk) = 0;

  // --- mappings ------------------------------------------------------------------------------------------
  // Pre: `at` is chunk-aligned in a reservation and nothing is mapped there; the chunk is unmapped and idle.
  // Post: [at, at + chunk_bytes) reads and writes the chunk, as far as `access` (read or write) allows.
  virtual Status map(Address at, ChunkId chunk, Access access) = 0;
  // Changes the access (read or write) of the chunk mapped at `at`.
  virtual Status protect(Address at, Access access) = 0;
  // Post: nothing is mapped at `at`, no thread can read or write there, the chunk keeps its content. Ajar is for addresses where
  // nobody reads or writes any more: it costs less, as they may stay open until they or the chunk are used for something else.
  virtual Status unmap(Address at, Door door = Door::closed) = 0;
  // Maps a host place at a device address (borrowing), for reading and writing in place. Pre as for map. On ordered devices:
  // failed for places that make_place did not make.
  virtual Status map_host(Address at, const HostPlace& place) = 0;
  // Post: nothing is mapped at `at`; the place holds what was written through the mapping.
  virtual Status unmap_host(Address at) = 0;

  // --- copies --------------------------------------------------------------------------------------------
  // Queue the copy of the first `bytes` of a chunk. Pre: the chunk is unmapped; the place is not mapped; both
  // stay untouched until the copy ended.
  virtual Status copy_out(ChunkId from, const HostPlace& to, Bytes bytes, Ticket* ticket) = 0;
  virtual Status copy_in(const HostPlace& from, ChunkId to, Bytes bytes, Ticket* ticket) = 0;
  // State of a copy now. `error` receives an errno when it failed and is not null.
  virtual CopyState poll(Ticket ticket, int* error) = 0;
  // Blocks until the copy ended one way or another, or was retired.
  virtual void wait(Ticket ticket) = 0;
  // Gives the copy up. When it returns, the copy touches neither side any more; it may have been done before.
  virtual CopyState cancel(Ticket ticket) = 0;
  // Forgets a copy that ended. Pre: not pending.
  virtual void retire(Ticket ticket) = 0;
  virtual Hands hands() const noexcept { return Hands::none; }
  // Moves what bytes there are to move. Waits for no copy.
  virtual void lend_hands() {}
  // What a lane has spent on copies so far.
  virtual LaneTimes times(Lane lane) const = 0;

  // The rest of the port of an ordered device; nullptr if this is an immediate one.
  virtual OrderedDriver* ordered() noexcept { return nullptr; }

  // --- fork ----------------------------------------------------------------------------------------------
  // Called around fork(2) by the forking thread, with no other call under way. The child has no copy threads:
  // its copies are done by the caller, before copy_out or copy_in returns.
  virtual void before_fork() = 0;
  virtual void after_fork(bool in_child) = 0;

  virtual LiveHandles live() const = 0;
};

}  // namespace vt
