// Tensors whose addresses one call has, which uses them past torch's operations, by system calls too.
//
// Covers: those it is given, and those that are made in it; that they are taken back whatever ends the call.
// Leaves: what it means that an address is given away (Engine::export_address); which calls (vtensor/hooks/storages.py).
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "memory/range.h"

namespace vt {

class Given {
 public:
  // What has to be taken back: tensors by address and number, as what a call makes may be gone before it ends.
  struct Due {
    std::vector<std::pair<Address, std::uint64_t>> tensors;
    std::shared_ptr<Due> outer;  // of the call around, if that is given what the thread makes
    std::atomic<bool> ended{false};
  };

  Given() = default;
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;
  ~Given() { end(); }

  // Those that are not managed are passed over.
  void add(std::span<const Address> addresses);
  // What the calling thread allocates from now on, too.
  void add_what_is_made();
  void end() noexcept;

  // The calling thread has made a tensor there.
  static void made(std::shared_ptr<Due>& whose, Address address);

 private:
  const std::shared_ptr<Due> due_ = std::make_shared<Due>();  // the thread's, too, which may outlive this
};

}  // namespace vt
