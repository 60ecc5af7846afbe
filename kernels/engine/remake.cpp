#include "engine/remake.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/spans.h"

namespace vt {

namespace {
bool contains(const std::vector<Range*>& ranges, const Range* range) {
  return std::find(ranges.begin(), ranges.end(), range) != ranges.end();
}
}  // namespace

void Remake::use(std::unique_ptr<Remaker> remaker, bool verify) {
  Lock lock(mutex_);
  remaker_ = std::move(remaker);
  verify_ = verify;
  on_.store(true);
}

std::vector<PlannedMove> Remake::take_doubted() {
  Lock lock(mutex_);
  doubts_.store(false);
  return std::exchange(doubted_, {});
}

// --- what is seen ---------------------------------------------------------------------------------------------

std::shared_ptr<Step> Remake::begin(std::unique_ptr<Operation> operation, std::span<Range* const> sources,
                                    Range* overwritten) {
  Lock lock(mutex_);
  return remaker_ == nullptr ? nullptr : recipes_.begin(std::move(operation), sources, overwritten);
}

void Remake::end(std::shared_ptr<Step> step, std::span<Range* const> results) {
  Lock lock(mutex_);
  for (Range* range : results) {
    if (remaker_ != nullptr && !range->exported) recipes_.made(step, *range);
  }
  recipes_.end(*step);
  step.reset();  // under the lock: it takes itself out of what it read
}

void Remake::before_write(Range& range, const Step* by) {
  Lock lock(mutex_);
  recipes_.written(range, by);
  end_content(lock, range, false);
}

void Remake::lose_sight(Lock& lock, Range& range) {
  recipes_.written(range, nullptr);
  end_content(lock, range, true);
}

// What could not be recomputed without it is there first; where it is written unseen, all that was made of it, as it may have
// been.
void Remake::end_content(Lock& lock, Range& range, bool unseen) {
  std::vector<Range*> made;
  for (;;) {
    if (recipes_.dropped(range)) {
      Range* const self = &range;
      bring(lock, {&self, 1}, unseen);
    } else if (recipes_.being_read(range)) {
      await(lock);
    } else {
      const bool needed = unseen || recipes_.must_stay(range);
      const auto made_of_it = needed ? recipes_.dependents(range) : std::vector<Range*>{};
      if (made_of_it.empty()) break;
      made.insert(made.end(), made_of_it.begin(), made_of_it.end());
      kept_.insert(kept_.end(), made_of_it.begin(), made_of_it.end());
      bring(lock, made_of_it, unseen);
    }
  }
  for (const Range* one : made) kept_.erase(std::find(kept_.begin(), kept_.end(), one));
  recipes_.forget(range, true);
}

void Remake::await(Lock& lock) {
  ++ground_.standing;
  made_.wait(lock);
  --ground_.standing;
}

bool Remake::outlives(Range& range) {
  std::erase(dropped_, &range);
  if (recipes_.must_stay(range)) return range.orphaned = true;
  recipes_.forget(range, false);
  release_orphans();
  return false;
}

// --- leaving --------------------------------------------------------------------------------------------------

bool Remake::may_drop(const Range& range) const {
  const bool now = remaker_ != nullptr && suspended_ == 0 && !ground_.forked;
  return now && !range.exported && !range.orphaned && moves_.may_leave(range) && recipes_.can_make(range) &&
         !recipes_.being_read(range) && !contains(claimed_, &range) && !contains(kept_, &range);
}

Status Remake::leave(Range& range, std::uint32_t first, std::uint32_t last, std::optional<std::uint64_t> worth_ns) {
  if (verify_) {
    doubted_.push_back({&range, range.serial, 0, range.chunks});
    doubts_.store(true);
    return {Code::nothing_leaves, "", 0};
  }
  bool any = false;
  Status failed = kOk;
  for (std::uint32_t i = first; i < std::min(last, range.chunks); ++i) {
    VTensor& part = range.parts[i];
    const bool resident = part.state == State::resident;
    const bool is_there = resident || part.state == State::absent || part.state == State::borrowed;
    if (!is_there || part.pins != 0) continue;
    if (!recipes_.dropped(range)) {  // first, as what is dropped needs what it is made of
      recipes_.drop(range, worth_ns);
      dropped_.push_back(&range);
    }
    range.missing.fetch_add(resident);
    const bool pinned = range.pins.load() != 0;
    const Status status = pinned ? kOk : moves_.drop(range, i);
    if (!pinned && status.ok()) {
      any = true;
      ++ground_.counters.drops;
      ground_.press();
      continue;
    }
    range.missing.fetch_sub(resident);
    ground_.counters.failures += !status.ok();
    failed = status;
    break;
  }
  if (recipes_.dropped(range) && std::none_of(&range.parts[0], &range.parts[0] + range.chunks, [](const VTensor& part) {
        return part.state == State::dropped;
      })) {
    recipes_.restore(range);
    std::erase(dropped_, &range);
    release_orphans();
  }
  if (any) return kOk;
  return failed.ok() ? Status{Code::nothing_leaves, "", 0} : failed;
}

void Remake::drop(std::span<const PlannedMove> moves) {
  Call call(mutex_, ground_);
  for (const PlannedMove& move : moves) {
    if (move.finds() && may_drop(*move.range)) (void)leave(*move.range, move.first, move.last);
  }
}

// --- coming back ----------------------------------------------------------------------------------------------

void Remake::bring(Lock& lock, std::span<Range* const> ranges, bool aside, bool all) {
  std::vector<std::pair<Range*, std::uint64_t>> asked;
  for (Range* range : ranges) asked.emplace_back(range, range->serial);
  for (;;) {
    std::vector<Range*> mine;
    bool others = false;
    for (const auto& [range, serial] : asked) {
      if (range->serial != serial || !recipes_.dropped(*range) || contains(mine, range)) continue;
      contains(claimed_, range) ? others = true : (mine.push_back(range), false);
    }
    if (mine.empty()) {
      if (!others) return;
      await(lock);
      continue;
    }
    claimed_.insert(claimed_.end(), mine.begin(), mine.end());
    const auto also = [&](Range& range) {
      if (contains(claimed_, &range)) return false;
      mine.push_back(&range);
      claimed_.push_back(&range);
      return true;
    };
    const std::vector<Range*> targets = mine;
    Recipes::Run run = recipes_.plan(targets, all ? std::function<bool(Range&)>(also) : nullptr);
    const auto take = [this](const Content& content, Range& made) {
      Lock inner(mutex_);
      Range* range = content.holder;
      if (range == nullptr || !content.dropped) return;  // freed meanwhile
      const std::size_t before = ground_.counters.dropped_bytes.current;
      moves_.hand_over(made, *range);
      ground_.counters.made_bytes += before - ground_.counters.dropped_bytes.current;
      recipes_.restore(*range);
      std::erase(dropped_, range);
    };
    perform(lock, run, take, aside);
    for (const Range* range : mine) std::erase(claimed_, range);
  }
}

void Remake::bring_back(std::span<const PlannedMove> moves) {
  Call call(mutex_, ground_);
  std::vector<Range*> ranges;
  for (const PlannedMove& move : moves) {
    if (move.alive()) ranges.push_back(move.range);
  }
  bring(call.lock, ranges, false);
}

void Remake::perform(Lock& lock, Recipes::Run& run, const Remaker::Take& take, bool aside) {
  const auto begun = Clock::now();
  ++ground_.remaking;
  if (ground_.stopwatch != nullptr) ground_.stopwatch->making_begins();
  ground_.let_go(lock, [&] { remaker_->run(run, take, aside); });
  if (ground_.stopwatch != nullptr) ground_.stopwatch->making_ends();
  --ground_.remaking;
  ground_.counters.make_ns += ns_since(begun);
  spans().note(Doing::making, begun, 0);
  recipes_.release(run);
  release_orphans();
  made_.notify_all();
}

bool Remake::check(Range& range, const Remaker::Take& compare) {
  Call call(mutex_, ground_);
  if (remaker_ == nullptr || recipes_.dropped(range) || !recipes_.can_make(range)) return false;
  Range* const self = &range;
  Recipes::Run run = recipes_.plan({&self, 1});
  perform(call.lock, run, compare, false);
  return true;
}

void Remake::begin_iteration() {
  Lock lock(mutex_);
  // As much as was used in place at most is, from now on, before anything is dropped for it.
  if (patience_.begin(ground_.counters.make_ns)) expect_shortfall(std::numeric_limits<std::size_t>::max());
}

void Remake::suspend(bool forget) {
  Call call(mutex_, ground_);
  ++suspended_;
  try {
    // Also until nobody reads any more what something is being made of: a forked child would wait for who does not exist there.
    while (!dropped_.empty() || ground_.remaking > 0) {
      if (dropped_.empty()) {
        await(call.lock);
      } else {
        bring(call.lock, std::vector<Range*>(dropped_), true);
      }
    }
  } catch (...) {
    --suspended_;
    throw;
  }
  if (!forget) return;
  remaker_.reset();
  doubted_.clear();
  on_.store(false);
  recipes_.clear();
}

void Remake::resume() {
  Lock lock(mutex_);
  --suspended_;
}

void Remake::release_orphans() {
  for (Range* range : recipes_.take_released()) {
    if (!range->orphaned || recipes_.must_stay(*range)) continue;
    range->orphaned = false;
    recipes_.forget(*range, false);
    freed_.bury(*range, false);
  }
}

}  // namespace vt
