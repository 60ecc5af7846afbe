// How the contents of tensors came about: what may leave without a copy, because it can be recomputed.
//
// A *content* is one version of what a tensor holds: a write ends it and begins another. A *step* is an operation that was
// seen: it read contents, its *sources*, and made others. So a recipe is no list of its own: it is a content's step, the steps of
// those of its sources that no tensor holds any more, and so on. The graph only ever points back in time.
//
// A content is *lost* when no tensor holds it and no step makes it; with it all steps that read it, as if they had never been
// seen. What something dropped depends on must not get lost: whoever is about to write or free a tensor asks first
// (dependents(), must_stay()).
//
// Covers: the graph, counting who needs what, what must be made to bring a content back, in which order.
// Leaves: making it (torch_remaker.h), chunks (engine/remake.h), what a step does (Operation is opaque here).
// Requires: the engine's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory/range.h"
#include "recipes/overwriting.h"

namespace vt {

// An operation that can be run again, and all it needs but for its sources.
class Operation {
 public:
  virtual ~Operation() = default;
};

struct Step;

struct Content {
  Range* holder = nullptr;     // the tensor whose present content it is; nullptr: freed or overwritten
  bool dropped = false;        // the holder's data, or a part of it, is gone
  std::optional<std::uint64_t> worth_ns;  // dropped: what making it again may take at most; nothing: whatever it takes
  bool making = false;         // it would have to be made: counted in its step's `needed`
  std::uint32_t needed = 0;    // steps that would have to run and read it
  std::uint32_t reading = 0;   // runs under way that read it where its holder has it
  std::uint32_t chain = 0;     // without a holder: how many steps lie between it and contents that have one, at most
  std::uint32_t result = 0;    // which of its step's
  std::shared_ptr<Step> step;  // what makes it; nullptr: nothing does
  std::vector<Step*> readers;

  Content() = default;
  ~Content();
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;
};

struct Step {
  std::uint64_t number = 0;  // steps in the order in which they were seen
  std::unique_ptr<Operation> operation;
  std::vector<std::shared_ptr<Content>> sources;
  std::vector<Content*> results;  // nullptr: gone
  std::uint32_t needed = 0;       // results that would have to be made, and replays under way
  bool lost = false;              // a source is, or what it overwrites is written by others, too, meanwhile
  std::uint64_t ns = 0;           // what it took; 0: not known

  Step() = default;
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
};

class Recipes {
 public:
  // Contents without a holder further from one than this are given up: a loop without end would be remembered whole.
  static constexpr std::uint32_t kLongestChain = 64;
  // One that was overwritten counts as so many: what optimizers keep would be remembered for all its updates, with copies of what
  // gradients were made of (62 MiB beside a budget of 54).
  static constexpr std::uint32_t kOverwriting = 16;
  // What takes more steps than this to recompute is only dropped if a plan says so.
  static constexpr std::size_t kMostPriced = 48;

  // --- what happens -----------------------------------------------------------------------------------------
  // An operation begins that reads these tensors, and may overwrite another, or one of them. nullptr if it cannot be run again,
  // as one of them may change unseen.
  std::shared_ptr<Step> begin(std::unique_ptr<Operation> operation, std::span<Range* const> sources, Range* overwritten);
  // The tensor is written: what steps make that overwrite it meanwhile is no longer what it will hold, but for this one's.
  void written(Range& range, const Step* by);
  // It ended: the tensor holds its result from now on. Pre: forget(range) if it was overwritten.
  void made(const std::shared_ptr<Step>& step, Range& range);
  // After all that it made.
  void end(const Step& step);
  // The tensor's content ends with it, or is another from now on, if it is `overwritten`. Pre: nothing dropped needs it, or it
  // can be made; nothing of it is dropped unless it is freed.
  void forget(Range& range, bool overwritten);

  // --- what may be done -------------------------------------------------------------------------------------
  // Whether the content can be recomputed.
  bool can_make(const Range& range) const;
  // Whether a run under way reads it in the tensor.
  bool being_read(const Range& range) const;
  // Whether a run under way or something dropped needs a content that would be lost without this tensor, or would take more to
  // make than it is worth.
  bool must_stay(const Range& range) const;
  // What making it again would take, as far as that is known; nothing if that is too many steps. Pre: can_make().
  std::optional<std::uint64_t> making_ns(const Range& range) const;
  // Tensors that are dropped, wholly or in part, and could not be made without what this one holds.
  std::vector<Range*> dependents(const Range& range) const;

  // --- what is done -----------------------------------------------------------------------------------------
  // Data of the tensor is gone, and all of it is back. Pre: can_make(). `worth_ns`: what making it again may take at most, in
  // kMostPriced steps, whatever becomes of what it is made of; nothing: whatever it takes (a plan has counted it).
  void drop(Range& range, std::optional<std::uint64_t> worth_ns = {});
  void restore(Range& range);
  bool dropped(const Range& range) const;

  // What must be run to make the present contents of these tensors, in order. What it reads stays until release().
  struct Run {
    struct Entry {
      std::shared_ptr<Step> step;
      std::vector<Range*> read;                       // by source: the tensor that holds it; nullptr: an earlier entry makes it
      std::vector<std::shared_ptr<Content>> results;  // those that are wanted, or read later; else nullptr
    };
    std::vector<Entry> entries;
    std::vector<std::shared_ptr<Content>> wanted;  // by target
    std::vector<Range*> whose;                     // the targets
  };
  // `also` is asked about other dropped tensors that would be made by the way: whether they are to be back, too.
  Run plan(std::span<Range* const> targets, const std::function<bool(Range&)>& also = {});
  void release(Run& run);
  // Freed tensors whose memory nothing needs any more.
  std::vector<Range*> take_released() { return std::exchange(released_, {}); }

  // Nothing was ever seen, nor is what is under way. Pre: nothing is dropped.
  void clear();
  // Empty, or what is broken.
  std::string validate() const;

 private:
  Content* find(const Range& range) const;
  void update_known(Range& range);
  std::shared_ptr<Content> content_of(Range& range);
  void update(Content& content);
  void need(Step& step);
  void unneed(Step& step);
  void lose(Content& content);
  // The same as making_ns(), if no tensor held `without`.
  std::optional<std::uint64_t> making_ns(const Range& range, const Content* without) const;
  // Whether something dropped would take more to make than it is worth, if this tensor did not hold what it does.
  bool makes_dear(const Range& range) const;
  void set_dropped(Content& content, bool dropped, std::optional<std::uint64_t> worth_ns = {});

  std::unordered_map<const Range*, std::shared_ptr<Content>> held_;
  Overwriting overwriting_;
  std::vector<Range*> released_;
  std::uint64_t steps_ = 0, forgotten_ = 0;
  std::size_t priced_ = 0;  // contents that are dropped and have a worth
};

}  // namespace vt
