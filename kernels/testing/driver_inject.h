// A driver around another one that fails or delays a named call: how tests walk every error path.
//
// Covers: "the n-th call of `map` from now fails", "every copy_in fails", "copies take 5 ms longer".
// Leaves: everything else to the driver it wraps.
#pragma once

#include <atomic>
#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "device/driver.h"

namespace vt {

class InjectDriver final : public Driver {
 public:
  // Pre: `inner` is an immediate device.
  explicit InjectDriver(std::unique_ptr<Driver> inner) : inner_(std::move(inner)) {
    if (inner_->ordered() != nullptr) fatal("only immediate devices can be wrapped");
  }

  // The `nth` next call (1 = the next) of the port call `name`, and the `times` - 1 after it, fail.
  // `name` may be "poll_out" or "poll_in": the copy that is polled then reports `failed`.
  // Throws InvalidUse for a name the port does not have.
  void fail(const std::string& name, std::uint64_t nth, std::uint64_t times);
  void delay(const std::string& name, std::uint64_t microseconds);
  std::uint64_t calls(const std::string& name) const;
  void clear();

  Bytes chunk_bytes() const noexcept override { return inner_->chunk_bytes(); }
  Status reserve(Bytes bytes, Address* base) override;
  Status release(Address base) override;
  Status set_capacity(std::size_t chunks) override;
  Status create(ChunkId* chunk) override;
  Status destroy(ChunkId chunk) override;
  Status map(Address at, ChunkId chunk, Access access) override;
  Status protect(Address at, Access access) override;
  Status unmap(Address at, Door door = Door::closed) override;
  Status map_host(Address at, const HostPlace& place) override;
  Status unmap_host(Address at) override;
  Status copy_out(ChunkId from, const HostPlace& to, Bytes bytes, Ticket* ticket) override;
  Status copy_in(const HostPlace& from, ChunkId to, Bytes bytes, Ticket* ticket) override;
  CopyState poll(Ticket ticket, int* error) override;
  void wait(Ticket ticket) override;
  CopyState cancel(Ticket ticket) override { return inner_->cancel(ticket); }
  LaneTimes times(Lane lane) const override { return inner_->times(lane); }
  void retire(Ticket ticket) override { inner_->retire(ticket); }
  Hands hands() const noexcept override { return inner_->hands(); }
  void lend_hands() override { inner_->lend_hands(); }
  void before_fork() override { inner_->before_fork(); }
  void after_fork(bool in_child) override { inner_->after_fork(in_child); }
  LiveHandles live() const override { return inner_->live(); }

 private:
  struct Fault {
    std::uint64_t calls = 0;
    std::uint64_t first = 0, last = 0;  // numbers of the calls that fail; 0 for none
    std::uint64_t delay_us = 0;
  };

  bool fails(const char* name);
  Fault& fault(const std::string& name);

  std::unique_ptr<Driver> inner_;
  mutable std::mutex mutex_;
  std::array<Fault, 15> faults_;  // no map: a fault of the processor calls the driver within a signal handler
};

}  // namespace vt
