// The host store on disk: slots in one unnamed file.
//
// Covers: claiming room before it is needed; what a fork does to a file that two processes share.
//
// Fork. The child must see the bytes every slot held at that moment. So slots taken then are frozen in the parent
// (released ones are not reused) until every process that inherited them has ended, which a pipe tells: its
// write end lives in the children only, and closing is what processes do without fail. The child never writes
// the file: slots it takes are in its own RAM.

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "device/host_file.h"
#include "store/host_store.h"

namespace vt {

namespace {

constexpr const char* kClosed = "the program closed the file in spill_dir";

class FileStore final : public HostStore {
 public:
  FileStore(Bytes slot_bytes, std::size_t capacity, std::string directory)
      : HostStore(slot_bytes, capacity), directory_(std::move(directory)) {
    std::string path = directory_ + "/vtensor-spill-XXXXXX";
    file_ = mkostemp(path.data(), O_CLOEXEC);
    if (file_ < 0) {
      throw InvalidUse("cannot create a file in spill_dir '" + directory_ + "': " + std::strerror(errno));
    }
    unlink(path.c_str());  // gone with the process, however it ends
    start_ = place_in(file_);
    // So that no other file gets its inode while we take it for ours, whoever closes the descriptor.
    kept_ = mmap(nullptr, slot_bytes, PROT_NONE, MAP_SHARED, file_, 0);
  }

  ~FileStore() override {
    if (still_there(start_)) close(file_);
    if (kept_ != MAP_FAILED) munmap(kept_, slot_bytes());
    for (const Fork& fork : forks_) close(fork.children_gone);
  }

  Status acquire(SlotId* slot, SlotId before) override {
    if (own_ != nullptr) {
      const Status status = own_->acquire(slot);
      if (status.ok()) {
        *slot += inherited_;
        ++held_;
      }
      return status;
    }
    thaw();
    if (full()) return {Code::host_full, "spill file", 0};
    const SlotId chosen = next_slot(before);
    if (is_new(chosen)) {
      if (!still_there(start_)) return {Code::host_full, kClosed, errno};
      int error = 0;
      do {
        error = posix_fallocate(file_, place(chosen).offset, static_cast<off_t>(slot_bytes()));
      } while (error == EINTR);
      if (error != 0) return {Code::host_full, "posix_fallocate", error};
      state_.push_back({});
    }
    take(chosen);
    state_[chosen].taken = true;
    ++held_;
    *slot = chosen;
    return kOk;
  }

  bool shared_after_fork() const noexcept override { return true; }
  std::string name() const override { return "a file in " + directory_; }

  void before_fork() override {
    if (own_ != nullptr || pipe2(pipe_, O_CLOEXEC) != 0) pipe_[0] = pipe_[1] = -1;
  }

  void after_fork(bool in_child) override {
    if (own_ != nullptr) return;  // a child's child: nothing of the file can change under it
    if (in_child) {
      if (pipe_[0] >= 0) close(pipe_[0]);
      inherited_ = static_cast<SlotId>(state_.size());
      own_ = store_of_a_child();
      return;
    }
    if (pipe_[1] >= 0) close(pipe_[1]);
    Fork fork{pipe_[0], {}};
    for (SlotId slot = 0; slot < state_.size(); ++slot) {
      if (!state_[slot].taken) continue;
      ++state_[slot].forks;
      fork.slots.push_back(slot);
    }
    // Without a pipe (no descriptors left) nobody tells when the children are gone: frozen for good.
    if (fork.children_gone >= 0) forks_.push_back(std::move(fork));
  }

 private:
  // As many slots as addresses can be had for: where they are limited, a disk's size may be more than that.
  std::unique_ptr<HostStore> store_of_a_child() const {
    for (std::size_t slots = capacity(); slots > 0; slots /= 2) {
      try {
        return make_ram_store(slot_bytes(), slots * slot_bytes());
      } catch (const InvalidUse&) {
      }
    }
    fatal("a forked process has no room for the addresses of a single chunk");
  }

  struct SlotState {
    bool taken = false;
    unsigned forks = 0;  // how many living forks froze it
  };
  struct Fork {
    int children_gone;  // readable (end of file) once every process that inherited the write end ended
    std::vector<SlotId> slots;
  };

  void release_own(SlotId slot) override {
    --held_;
    if (slot >= inherited_ && own_ != nullptr) return own_->release(slot - inherited_);
    if (own_ != nullptr) return;  // the parent's to reuse
    state_[slot].taken = false;
    if (state_[slot].forks == 0) give(slot);
  }

  HostPlace place_own(SlotId slot) const override {
    if (slot >= inherited_ && own_ != nullptr) return own_->place(slot - inherited_);
    HostPlace place = start_;
    place.offset = static_cast<std::int64_t>(Bytes{slot} * slot_bytes());
    return place;
  }

  std::size_t held_own() const noexcept override { return held_; }

  bool writable_own(SlotId slot) const noexcept override {
    return own_ != nullptr ? slot >= inherited_ : state_[slot].forks == 0;
  }

  void thaw() {
    std::erase_if(forks_, [&](const Fork& fork) {
      pollfd asked{fork.children_gone, POLLIN, 0};
      if (poll(&asked, 1, 0) <= 0) return false;
      for (const SlotId slot : fork.slots) {
        if (--state_[slot].forks == 0 && !state_[slot].taken) give(slot);
      }
      close(fork.children_gone);
      return true;
    });
  }

  std::string directory_;
  int file_ = -1;
  HostPlace start_;  // of the file
  void* kept_ = MAP_FAILED;
  int pipe_[2] = {-1, -1};
  std::size_t held_ = 0;
  std::vector<SlotState> state_;
  std::vector<Fork> forks_;
  std::unique_ptr<HostStore> own_;  // in a forked child only
  SlotId inherited_ = 0;            // slots below are the parent's
};

}  // namespace

std::unique_ptr<HostStore> make_file_store(Bytes slot_bytes, Bytes capacity_bytes, const std::string& directory) {
  const std::size_t slots = HostStore::slots_in(capacity_bytes, slot_bytes);
  return std::make_unique<FileStore>(slot_bytes, slots, directory);
}

}  // namespace vt
