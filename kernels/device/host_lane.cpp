#include "device/host_lane.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>

#include "base/spans.h"
#include "device/copy_past_caches.h"
#include "device/host_file.h"

namespace vt {

namespace {
// Copies move in pieces so that giving one up takes microseconds, not the length of a chunk.
constexpr Bytes kPiece = Bytes{256} << 10;
}  // namespace

// Looked up, not linked: torch brings an OpenMP library of its own, and two in one process are two sets of threads.
Team computing_team() noexcept {
  const auto threads = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  const unsigned count = threads != nullptr ? static_cast<unsigned>(threads()) : 1;
  if (count < 2 || 2 * count < std::thread::hardware_concurrency()) return nullptr;
  return reinterpret_cast<Team>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
}

HostLane::HostLane(Lane direction, double bytes_per_second, Team team)
    : direction_(direction), bytes_per_second_(bytes_per_second), team_(team) {}

HostLane::~HostLane() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    for (Copy& copy : copies_) copy.give_up = true;
  }
  work_.notify_all();
  if (worker_ != nullptr) {
    worker_->join();
    delete worker_;
  }
}

std::uint64_t HostLane::submit(void* chunk_memory, const HostPlace& place, Bytes bytes) {
  std::unique_lock lock(mutex_);
  if (worker_ == nullptr && !inline_ && hands() != Hands::in_wait) start();
  copies_.push_back({chunk_memory, place, bytes, Clock::now()});
  const std::uint64_t number = end() - 1;
  if (inline_) {
    bytes_per_second_ > 0 ? carry(number, lock) : move_all(number, lock);
  } else {
    work_.notify_one();
  }
  return number;
}

void HostLane::start() {
  try {
    worker_ = new std::thread(&HostLane::run, this);
  } catch (const std::system_error&) {
    inline_ = true;  // no thread to be had: slower, and right
  }
}

HostLane::Copy* HostLane::find(std::uint64_t number) {
  if (number < first_ || number >= end()) return nullptr;
  Copy& copy = copies_[number - first_];
  return copy.retired ? nullptr : &copy;
}

CopyState HostLane::poll(std::uint64_t number, int* error) {
  std::lock_guard lock(mutex_);
  const Copy* copy = find(number);
  if (copy == nullptr) return CopyState::done;
  if (error != nullptr) *error = copy->error;
  return copy->state;
}

void HostLane::wait(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  // Earlier ones too: whoever waits collects copies in order.
  const auto over = [&] {
    const auto last = copies_.begin() + static_cast<std::ptrdiff_t>(std::clamp(number + 1, first_, end()) - first_);
    return std::none_of(copies_.begin(), last, [](const Copy& c) { return c.state == CopyState::pending; });
  };
  // All that is under way, so that computing stands still once for several copies; unless there is a link to wait for.
  if (team_ != nullptr && !over()) move_together(hands() == Hands::in_wait ? end() - 1 : number, lock);
  ended_.wait(lock, over);
}

void HostLane::lend_hands() {
  std::unique_lock lock(mutex_);
  if (team_ != nullptr && next_ < end()) move_together(end() - 1, lock);
}

CopyState HostLane::cancel(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  Copy* copy = find(number);
  if (copy == nullptr) return CopyState::done;
  if (copy->state == CopyState::pending) {
    copy->give_up = true;
    if (copy->movers == 0) {
      copy->state = CopyState::cancelled;  // nobody is at it, and everybody will pass it over
      ended_.notify_all();
    } else {
      work_.notify_all();  // it may be sleeping out the link time
      ended_.wait(lock, [&] { return copy->state != CopyState::pending; });
    }
  }
  return copy->state;
}

void HostLane::retire(std::uint64_t number) {
  std::lock_guard lock(mutex_);
  if (Copy* copy = find(number)) copy->retired = true;
  while (!copies_.empty() && copies_.front().retired) {
    copies_.pop_front();
    ++first_;
  }
  next_ = std::max(next_, first_);
  ended_.notify_all();
}

std::size_t HostLane::live() {
  std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(copies_.begin(), copies_.end(), [](const Copy& copy) { return !copy.retired; }));
}

LaneTimes HostLane::times() const {
  std::lock_guard lock(mutex_);
  return times_;
}

void HostLane::run() {
  std::unique_lock lock(mutex_);
  const auto is_pending = [](const Copy& copy) { return copy.state == CopyState::pending; };
  while (!stop_) {
    const auto oldest = std::find_if(copies_.begin(), copies_.end(), is_pending);
    if (oldest == copies_.end()) {
      work_.wait(lock);
      continue;
    }
    const std::uint64_t number = first_ + static_cast<std::uint64_t>(oldest - copies_.begin());
    bytes_per_second_ > 0 ? carry(number, lock) : move_all(number, lock);
  }
}

// The emulated link carries one copy. Its bytes move before, where somebody lends hands; else when its time is up, or at once if
// nobody ever does. Pre: all earlier ones ended.
void HostLane::carry(std::uint64_t number, std::unique_lock<std::mutex>& lock) {
  Copy& copy = copies_[number - first_];
  ++copy.movers;  // so that whoever cancels waits until this has seen it
  const auto takes = std::chrono::duration<double>(static_cast<double>(copy.bytes) / bytes_per_second_);
  const Clock::time_point begun = std::max(copy.submitted, link_free_);
  const Clock::time_point carried = begun + std::chrono::duration_cast<Clock::duration>(takes);
  if (team_ == nullptr) move_all(number, lock);
  work_.wait_until(lock, carried, [&] { return copy.give_up; });
  move_all(number, lock);
  ended_.wait(lock, [&] { return copy.movers == 1; });
  if (copy.error == 0) link_free_ = std::clamp(Clock::now(), link_free_, carried);
  was_busy(begun);
  --copy.movers;
  finish(copy);
}

void HostLane::move_all(std::uint64_t last, std::unique_lock<std::mutex>& lock) {
  while (move_next(last, lock)) {
  }
}

Bytes HostLane::left(std::uint64_t last) const {
  Bytes bytes = 0;
  for (std::uint64_t number = next_; number <= last && bytes <= kPiece; ++number) {
    const Copy& copy = copies_[number - first_];
    if (copy.state == CopyState::pending) bytes += copy.bytes - copy.taken;
  }
  return bytes;
}

void HostLane::move_together(std::uint64_t last, std::unique_lock<std::mutex>& lock) {
  struct Job {
    HostLane& lane;
    std::uint64_t last;
  } job{*this, last};
  const auto work = [](void* data) {
    const Job& job = *static_cast<Job*>(data);
    std::unique_lock lock(job.lane.mutex_);
    job.lane.move_all(job.last, lock);
  };
  // In a forked child the team's threads do not exist. And little is moved before they are awake; on a busy machine one would
  // then stand, for each copy, as long as others compute in between.
  const bool alone = inline_ || WaitsAlone::here() || left(last) <= kPiece;
  lock.unlock();
  alone ? work(&job) : team_(work, &job, 0, 0);
  lock.lock();
}

bool HostLane::move_next(std::uint64_t last, std::unique_lock<std::mutex>& lock) {
  for (; next_ <= last; ++next_) {
    Copy& copy = copies_[next_ - first_];
    if (copy.state != CopyState::pending || copy.give_up || copy.taken == copy.bytes) continue;
    const Clock::time_point begun = Clock::now();
    if (copy.taken == 0) copy.begun = begun;
    const Bytes from = copy.taken, bytes = std::min(kPiece, copy.bytes - from);
    copy.taken += bytes;
    ++copy.movers;
    lock.unlock();
    const int error = move_piece(copy, from, bytes);
    lock.lock();
    times_.processor_ns += ns_since(begun);
    if (error != 0) copy.error = error;
    if (copy.error != 0) copy.taken = copy.bytes;
    --copy.movers;
    const bool moved = copy.taken == copy.bytes && bytes_per_second_ == 0;  // carry() ends those of a link
    if (moved && copy.movers == 0) was_busy(copy.begun);
    if (copy.movers == 0 && (moved || copy.give_up)) finish(copy);
    if (copy.movers == 1) ended_.notify_all();  // carry() may wait for this
    return true;
  }
  return false;
}

void HostLane::was_busy(Clock::time_point since) {
  times_.busy_ns += ns_since(std::max(since, last_end_));
  last_end_ = Clock::now();
}

void HostLane::finish(Copy& copy) {
  copy.state = copy.error != 0 ? CopyState::failed : copy.give_up ? CopyState::cancelled : CopyState::done;
  if (copy.state == CopyState::done) {
    spans().note(direction_ == Lane::out ? Doing::copying_out : Doing::copying_in, copy.begun, copy.bytes);
  }
  ended_.notify_all();
}

int HostLane::move_piece(const Copy& copy, Bytes from, Bytes bytes) const {
  char* chunk = static_cast<char*>(copy.chunk_memory) + from;
  const bool out = direction_ == Lane::out;
  if (copy.place.memory != nullptr) {
    char* slot = static_cast<char*>(copy.place.memory) + from;
    out ? copy_past_caches(slot, chunk, bytes) : copy_past_caches(chunk, slot, bytes);
    return 0;
  }
  if (!still_there(copy.place)) return errno;
  for (Bytes moved = 0; moved < bytes;) {
    const auto offset = copy.place.offset + static_cast<off_t>(from + moved);
    const ssize_t count = out ? pwrite(copy.place.file, chunk + moved, bytes - moved, offset)
                              : pread(copy.place.file, chunk + moved, bytes - moved, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) return EIO;  // a file shorter than the slot it holds
    moved += static_cast<Bytes>(count);
  }
  return 0;
}

void HostLane::before_fork() {
  std::unique_lock lock(mutex_);
  if (team_ != nullptr) move_all(end() - 1, lock);
  ended_.wait(lock, [&] {
    return std::all_of(copies_.begin(), copies_.end(), [](const Copy& c) { return c.state != CopyState::pending; });
  });
  lock.release();  // held across the fork, so that the child finds it in a known state
}

void HostLane::after_fork(bool in_child) {
  if (in_child) {
    worker_ = nullptr;  // the thread does not exist here; its handle can neither be joined nor destroyed
    inline_ = true;
    next_ = end();
    // The worker was waiting on these in the parent; destroying or signalling them here is not defined.
    new (&work_) std::condition_variable;
    new (&ended_) std::condition_variable;
  }
  mutex_.unlock();
}

}  // namespace vt
