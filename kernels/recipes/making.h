// What a run (recipes.h) has made so far, and until when it is needed.
//
// Covers: where each step finds its sources, what is to be given to whom, what can be freed.
// Leaves: running steps. Requires: nothing; it belongs to the thread that makes the run.
#pragma once

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "recipes/recipes.h"

namespace vt {

class Making {
 public:
  // Which source an entry overwrites, and which of its results that is.
  using Overwritten = std::optional<std::pair<std::size_t, std::size_t>>;

  explicit Making(const Recipes::Run& run) : run_(run) {
    for (std::size_t i = 0; i < run.entries.size(); ++i) {
      for (const auto& source : run.entries[i].step->sources) last_[source.get()] = i;
    }
  }

  // Whose the results of an entry are to be in the end, whoever overwrites them meanwhile; nullptr: nobody's. `overwrites(at)`
  // says it of an entry.
  template <typename Overwrites>
  std::vector<Range*> owners(std::size_t at, Overwrites overwrites) const {
    std::vector<Range*> owners;
    for (const auto& result : run_.entries[at].results) {
      owners.push_back(result == nullptr ? nullptr : owner(*result, at, overwrites));
    }
    return owners;
  }
  // Where the i-th source of an entry lies.
  Range& source(std::size_t at, std::size_t i) const {
    const Recipes::Run::Entry& entry = run_.entries[at];
    return entry.read[i] != nullptr ? *entry.read[i] : *made_.at(entry.step->sources[i].get());
  }
  // Whether somebody needs the i-th result of an entry.
  bool needs(std::size_t at, std::size_t i) const {
    return i < run_.entries[at].results.size() && run_.entries[at].results[i] != nullptr;
  }
  // An entry made its i-th result here. False if nobody needs it.
  bool put(std::size_t at, std::size_t i, Range& range) {
    if (!needs(at, i)) return false;
    made_[run_.entries[at].results[i].get()] = &range;
    return true;
  }
  // It overwrote one of its sources, whose memory holds its i-th result now.
  void overwrote(std::size_t at, std::size_t source, std::size_t i) {
    const auto before = made_.find(run_.entries[at].step->sources[source].get());
    Range& range = *before->second;
    made_.erase(before);
    if (!put(at, i, range)) spare_.push_back(&range);
  }

  // After an entry: calls `give(content, range)` for what is wanted and no later entry reads, and `free(range)` for all that none
  // does.
  template <typename Give, typename Free>
  void settle(std::size_t at, Give give, Free free) {
    for (Range* range : spare_) free(*range);
    spare_.clear();
    for (auto one = made_.begin(); one != made_.end();) {
      const auto last = last_.find(one->first);
      if (last != last_.end() && last->second > at) {
        ++one;
        continue;
      }
      const auto wanted = [&](const auto& content) { return content.get() == one->first; };
      if (std::any_of(run_.wanted.begin(), run_.wanted.end(), wanted)) give(*one->first, *one->second);
      Range& range = *one->second;
      one = made_.erase(one);
      free(range);
    }
  }

 private:
  template <typename Overwrites>
  Range* owner(const Content& made, std::size_t at, Overwrites overwrites) const {
    const Content* content = &made;
    for (std::size_t later = at + 1; later < run_.entries.size(); ++later) {
      const Overwritten over = overwrites(later);
      if (!over || run_.entries[later].step->sources[over->first].get() != content) continue;
      content = over->second < run_.entries[later].results.size() ? run_.entries[later].results[over->second].get() : nullptr;
      if (content == nullptr) return nullptr;
    }
    for (std::size_t i = 0; i < run_.wanted.size(); ++i) {
      if (run_.wanted[i].get() == content) return run_.whose[i];
    }
    return nullptr;
  }

  const Recipes::Run& run_;
  std::unordered_map<const Content*, Range*> made_;
  std::unordered_map<const Content*, std::size_t> last_;  // the last entry that reads it
  std::vector<Range*> spare_;
};

}  // namespace vt
