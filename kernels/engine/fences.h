// What may still touch a range, a chunk or a slot on an ordered device, and who must come after it.
//
// Each chunk and each slot that is given up carries a fence, and its next owner comes after it:
//
//   - a copy out comes after the uses of its chunk, and after the reads of the slot it writes;
//   - a copy in comes after the fence of its chunk. That it also comes after the copy that wrote its slot follows: either the
//     chunk is the one the data left, and its fence lies behind that copy, or the address led elsewhere, and
//     OrderedMappings::lead_to saw to it;
//   - a stream that allocates comes after the fences of the chunks it gets;
//   - a stream that uses a tensor comes after the copies that brought it, and after what the stream that allocated it came after
//     then: a program that waited for the device may well use on another what it just made on one.
//
// Covers: the uses of a range by streams, and the fences of what is free.
// Leaves: tickets (stream_order.h), what is done with them (ordered_mappings.h, ordered_slots.h, ordered_moves.h).
// Requires: the lock, but for used_on().
#pragma once

#include <vector>

#include "engine/ground.h"
#include "order/stream_order.h"

namespace vt {

class Fences {
 public:
  explicit Fences(OrderedDriver& driver) : order_(driver) {}

  StreamOrder& order() noexcept { return order_; }

  // What was asked of `stream` so far uses the range. False if another stream used it last: then note_use() must be called.
  bool used_on(Lane stream, Range& range) noexcept;
  // The same for any stream: if another one used it last, that is not forgotten.
  void note_use(Lane stream, Range& range);
  // A tensor begins its life on a stream, after what used its addresses before.
  void begin(Range& range, Lane stream);
  // It ends: what its streams were asked to do so far may still use it.
  void end(Range& range);
  // What was made in `from` is the data of `to` now: whoever uses that, on whatever stream, comes after what made it.
  void made(const Range& from, Range& to);
  // Whoever uses it on another stream from now on comes after what this one was asked for. Pre: that comes after all uses.
  void to_follow(Lane stream, Range& range) noexcept;
  // The newest that the program knows nothing of: the last use of the stream that made it again, or made another of it.
  static Ticket maker(const Range& range) noexcept;

  // Uses of a range, and what brings its data.
  Fence uses_of(const Range& range) const;
  // And whatever may still touch its addresses.
  Fence touched_by(const Range& range) const;

  // What a free chunk's next owner comes after.
  const Fence& of_chunk(ChunkId chunk) { return at(chunk_after_, chunk); }
  void set_chunk(ChunkId chunk, Fence after) { at(chunk_after_, chunk) = std::move(after); }
  // The same for a slot. A vTensor that gives one up adds what it did there: the next owner writes after this one wrote and was
  // read; and after those before it, as one that lay elsewhere (in_place.h) did not wait for them.
  const Fence& of_slot(SlotId slot) { return at(slot_after_, slot); }
  void add_to_slot(const Range& range, const VTensor& part);

 private:
  static Fence& at(std::vector<Fence>& fences, std::uint32_t index) {
    if (index >= fences.size()) fences.resize(index + 1);
    return fences[index];
  }

  StreamOrder order_;
  std::vector<Fence> chunk_after_, slot_after_;
};

}  // namespace vt
