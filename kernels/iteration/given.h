// Tensors whose addresses one call has, which uses them past torch's operations, by system calls too.
//
// Covers: those it is given, and those that are made in it; that they are taken back whatever ends the call.
// Leaves: what it means that an address is given away (Engine::export_address); which calls (vtensor/hooks/storages.py).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "memory/range.h"

namespace vt {

class Given {
 public:
  using Due = std::vector<Address>;  // what has to be taken back

  Given() = default;
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;
  ~Given() { end(); }

  // Those that are not managed are passed over. Pre: they live until end().
  void add(std::span<const Address> addresses);
  // What the calling thread allocates from now on, too, until it calls end().
  void add_what_is_made();
  void end() noexcept;

  // Pre: an engine's tensor begins there.
  static void add_to(Due& due, Address address);

 private:
  const std::shared_ptr<Due> due_ = std::make_shared<Due>();  // also the thread's, which may outlive this
};

}  // namespace vt
