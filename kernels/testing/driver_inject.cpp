#include "testing/driver_inject.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <thread>

namespace vt {

namespace {
constexpr std::array<std::string_view, 15> kCalls = {
    "reserve",  "release",    "set_capacity", "create",  "destroy", "map",  "protect",  "unmap",
    "map_host", "unmap_host", "copy_out",     "copy_in", "wait",    "poll_out", "poll_in"};

std::size_t place_of(std::string_view name) {
  return static_cast<std::size_t>(std::find(kCalls.begin(), kCalls.end(), name) - kCalls.begin());
}

Status injected(const char* name) { return {Code::failed, name, EIO}; }
}  // namespace

InjectDriver::Fault& InjectDriver::fault(const std::string& name) {
  static_assert(kCalls.size() == std::tuple_size_v<decltype(faults_)>);
  const std::size_t at = place_of(name);
  if (at == kCalls.size()) throw InvalidUse("the driver port has no call '" + name + "'");
  return faults_[at];
}

void InjectDriver::fail(const std::string& name, std::uint64_t nth, std::uint64_t times) {
  std::lock_guard lock(mutex_);
  Fault& found = fault(name);
  found.first = found.calls + nth;
  found.last = found.first + times - 1;
}

void InjectDriver::delay(const std::string& name, std::uint64_t microseconds) {
  std::lock_guard lock(mutex_);
  fault(name).delay_us = microseconds;
}

std::uint64_t InjectDriver::calls(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const std::size_t at = place_of(name);
  return at == kCalls.size() ? 0 : faults_[at].calls;
}

void InjectDriver::clear() {
  std::lock_guard lock(mutex_);
  for (Fault& found : faults_) found = {.calls = found.calls};
}

bool InjectDriver::fails(const char* name) {
  std::uint64_t delay_us = 0;
  bool fail = false;
  {
    std::lock_guard lock(mutex_);
    Fault& found = faults_[place_of(name)];
    ++found.calls;
    fail = found.first != 0 && found.calls >= found.first && found.calls <= found.last;
    delay_us = found.delay_us;
  }
  if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
  return fail;
}

Status InjectDriver::reserve(Bytes bytes, Address* base) {
  return fails("reserve") ? injected("reserve") : inner_->reserve(bytes, base);
}
Status InjectDriver::release(Address base) { return fails("release") ? injected("release") : inner_->release(base); }
Status InjectDriver::set_capacity(std::size_t chunks) {
  return fails("set_capacity") ? injected("set_capacity") : inner_->set_capacity(chunks);
}
Status InjectDriver::create(ChunkId* chunk) { return fails("create") ? injected("create") : inner_->create(chunk); }
Status InjectDriver::destroy(ChunkId chunk) { return fails("destroy") ? injected("destroy") : inner_->destroy(chunk); }
Status InjectDriver::map(Address at, ChunkId chunk, Access access) {
  return fails("map") ? injected("map") : inner_->map(at, chunk, access);
}
Status InjectDriver::protect(Address at, Access access) {
  return fails("protect") ? injected("protect") : inner_->protect(at, access);
}
Status InjectDriver::unmap(Address at, Door door) {
  return fails("unmap") ? injected("unmap") : inner_->unmap(at, door);
}
Status InjectDriver::map_host(Address at, const HostPlace& place) {
  return fails("map_host") ? injected("map_host") : inner_->map_host(at, place);
}
Status InjectDriver::unmap_host(Address at) {
  return fails("unmap_host") ? injected("unmap_host") : inner_->unmap_host(at);
}
Status InjectDriver::copy_out(ChunkId from, const HostPlace& to, Bytes bytes, Ticket* ticket) {
  return fails("copy_out") ? injected("copy_out") : inner_->copy_out(from, to, bytes, ticket);
}
Status InjectDriver::copy_in(const HostPlace& from, ChunkId to, Bytes bytes, Ticket* ticket) {
  return fails("copy_in") ? injected("copy_in") : inner_->copy_in(from, to, bytes, ticket);
}

CopyState InjectDriver::poll(Ticket ticket, int* error) {
  const CopyState state = inner_->poll(ticket, error);
  if (state != CopyState::done || !fails(ticket.lane == Lane::out ? "poll_out" : "poll_in")) return state;
  if (error != nullptr) *error = EIO;
  return CopyState::failed;
}

void InjectDriver::wait(Ticket ticket) {
  (void)fails("wait");  // it can not fail; a delay may be asked for
  inner_->wait(ticket);
}

}  // namespace vt
