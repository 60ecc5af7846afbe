#include "recipes/recipes.h"

#include <algorithm>
#include <unordered_set>

namespace vt {

namespace {
// How many steps lie between a content and what tensors hold, if it has no holder itself.
std::uint32_t chain_of(const Content& content) {
  std::uint32_t chain = 0;
  if (content.step == nullptr) return chain;
  for (const auto& source : content.step->sources) {
    if (source->holder == nullptr) chain = std::max(chain, source->chain);
  }
  return chain + 1;
}
}  // namespace

Content::~Content() {
  if (step != nullptr) step->results[result] = nullptr;
}

Step::~Step() {
  for (const auto& source : sources) {
    const auto found = std::find(source->readers.rbegin(), source->readers.rend(), this);
    if (found == source->readers.rend()) continue;
    *found = source->readers.back();
    source->readers.pop_back();
  }
}

Content* Recipes::find(const Range& range) const {
  const auto found = held_.find(&range);
  return found == held_.end() ? nullptr : found->second.get();
}

// What a tensor holds that was not seen to be made is a content without a step.
std::shared_ptr<Content> Recipes::content_of(Range& range) {
  std::shared_ptr<Content>& content = held_[&range];
  if (content == nullptr) {
    content = std::make_shared<Content>();
    content->holder = &range;
    range.known.store(true);
  }
  return content;
}

// --- what happens ---------------------------------------------------------------------------------------------

std::shared_ptr<Step> Recipes::begin(std::unique_ptr<Operation> operation, std::span<Range* const> sources, Range* overwritten) {
  if (std::any_of(sources.begin(), sources.end(), [](const Range* range) { return range->exported; })) return nullptr;
  auto step = std::make_shared<Step>();
  step->number = ++steps_;
  step->operation = std::move(operation);
  for (Range* range : sources) {
    step->sources.push_back(content_of(*range));
    step->sources.back()->readers.push_back(step.get());
  }
  if (overwritten != nullptr) {
    overwriting_.begin(*step, *overwritten);
    update_known(*overwritten);
  }
  return step;
}

void Recipes::written(Range& range, const Step* by) {
  overwriting_.written(range, by, [](Step& step) { step.lost = true; });
}

void Recipes::end(const Step& step) {
  if (Range* const range = overwriting_.end(step)) update_known(*range);
}

// Whoever writes it says so first: what it holds is known, or somebody who can be run again overwrites it.
void Recipes::update_known(Range& range) { range.known.store(held_.contains(&range) || overwriting_.any(range)); }

void Recipes::made(const std::shared_ptr<Step>& step, Range& range) {
  const std::shared_ptr<Content> content = content_of(range);
  const auto result = static_cast<std::uint32_t>(step->results.size());
  step->results.push_back(nullptr);
  if (step->lost || step->number <= forgotten_) return;
  step->results[result] = content.get();
  content->step = step;
  content->result = result;
}

void Recipes::forget(Range& range, bool overwritten) {
  const auto found = held_.find(&range);
  if (found == held_.end()) return;
  const std::shared_ptr<Content> content = std::move(found->second);
  held_.erase(found);
  update_known(range);
  content->holder = nullptr;
  set_dropped(*content, false);
  content->chain = chain_of(*content) + (overwritten ? kOverwriting : 0);
  update(*content);
  if (content->step == nullptr || (content->needed == 0 && content->chain > kLongestChain)) lose(*content);
}

// Nothing holds it, and nothing makes it from now on: what was made of it cannot be recomputed either.
void Recipes::lose(Content& content) {
  std::vector<std::shared_ptr<Step>> ended;  // they keep the contents they read until the walk is over
  std::vector<Content*> lost{&content};
  const auto end_step = [&](Content& of) {
    if (of.step == nullptr) return;
    of.step->results[of.result] = nullptr;
    ended.push_back(std::move(of.step));
  };
  while (!lost.empty()) {
    Content& next = *lost.back();
    lost.pop_back();
    end_step(next);
    for (Step* reader : next.readers) {
      reader->lost = true;
      for (Content* result : std::vector<Content*>(reader->results)) {
        if (result == nullptr) continue;
        end_step(*result);
        if (result->holder == nullptr) lost.push_back(result);
      }
    }
  }
}

// --- who needs what -------------------------------------------------------------------------------------------

void Recipes::update(Content& content) {
  const bool making = content.dropped || (content.holder == nullptr && content.needed > 0);
  if (making == content.making) return;
  content.making = making;
  making ? need(*content.step) : unneed(*content.step);
}

void Recipes::need(Step& step) {
  if (step.needed++ > 0) return;
  for (const auto& source : step.sources) {
    ++source->needed;
    update(*source);
  }
}

void Recipes::unneed(Step& step) {
  if (--step.needed > 0) return;
  for (const auto& source : step.sources) {
    if (--source->needed == 0 && source->holder != nullptr && source->holder->orphaned) released_.push_back(source->holder);
    update(*source);
  }
}

// --- what may be done -----------------------------------------------------------------------------------------

bool Recipes::can_make(const Range& range) const {
  const Content* content = find(range);
  return content != nullptr && content->step != nullptr;
}

bool Recipes::being_read(const Range& range) const {
  const Content* content = find(range);
  return content != nullptr && content->reading > 0;
}

bool Recipes::must_stay(const Range& range) const {
  const Content* content = find(range);
  if (content != nullptr && content->reading > 0) return true;
  if (content == nullptr || content->needed == 0 || content->dropped) return false;
  return content->step == nullptr || chain_of(*content) > kLongestChain || makes_dear(range);
}

std::vector<Range*> Recipes::dependents(const Range& range) const {
  std::vector<Range*> found;
  const Content* content = find(range);
  if (content == nullptr) return found;
  std::unordered_set<const Content*> seen{content};
  std::vector<const Content*> open{content};
  while (!open.empty()) {
    const Content* next = open.back();
    open.pop_back();
    for (const Step* reader : next->readers) {
      if (reader->needed == 0) continue;
      for (const Content* result : reader->results) {
        if (result == nullptr || !result->making || !seen.insert(result).second) continue;
        if (result->dropped) found.push_back(result->holder);
        open.push_back(result);
      }
    }
  }
  return found;
}

void Recipes::set_dropped(Content& content, bool dropped, std::optional<std::uint64_t> worth_ns) {
  priced_ += worth_ns.has_value();
  priced_ -= content.worth_ns.has_value();
  content.dropped = dropped;
  content.worth_ns = worth_ns;
}

// --- what is done ---------------------------------------------------------------------------------------------

void Recipes::drop(Range& range, std::optional<std::uint64_t> worth_ns) {
  Content& content = *find(range);
  set_dropped(content, true, worth_ns);
  update(content);
}

void Recipes::restore(Range& range) {
  Content& content = *find(range);
  set_dropped(content, false);
  update(content);
}

bool Recipes::dropped(const Range& range) const {
  const Content* content = find(range);
  return content != nullptr && content->dropped;
}

Recipes::Run Recipes::plan(std::span<Range* const> targets, const std::function<bool(Range&)>& also) {
  Run run;
  std::unordered_set<const Step*> seen;
  std::vector<std::shared_ptr<Step>> steps, open;
  const auto visit = [&](const Content& content) {
    if (seen.insert(content.step.get()).second) open.push_back(content.step);
  };
  for (const Range* range : targets) {
    run.wanted.push_back(held_.at(range));
    visit(*run.wanted.back());
  }
  while (!open.empty()) {
    steps.push_back(std::move(open.back()));
    open.pop_back();
    const std::shared_ptr<Step> step = steps.back();
    for (const auto& source : step->sources) {
      if (source->holder == nullptr || source->dropped) visit(*source);
    }
    if (!also) continue;
    for (Content* made : step->results) {
      if (made == nullptr || !made->dropped || made->holder == nullptr) continue;
      const std::shared_ptr<Content>& content = held_.at(made->holder);
      const bool known = std::ranges::find(run.wanted, content) != run.wanted.end();
      if (!known && also(*made->holder)) run.wanted.push_back(content);
    }
  }
  // In the order in which they were seen, each finds what it read then: what it overwrites, nobody reads after it.
  std::sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a->number < b->number; });
  std::unordered_map<const Step*, std::size_t> at;
  for (const auto& step : steps) {
    at.emplace(step.get(), run.entries.size());
    run.entries.push_back({step, {}, std::vector<std::shared_ptr<Content>>(step->results.size())});
  }
  const auto want = [&](const std::shared_ptr<Content>& content) {
    run.entries[at.at(content->step.get())].results[content->result] = content;
  };
  for (Run::Entry& entry : run.entries) {
    need(*entry.step);
    for (const auto& source : entry.step->sources) {
      const bool held = source->holder != nullptr && !source->dropped;
      entry.read.push_back(held ? source->holder : nullptr);
      held ? static_cast<void>(++source->reading) : want(source);
    }
  }
  for (const auto& content : run.wanted) want(content), run.whose.push_back(content->holder);
  return run;
}

void Recipes::release(Run& run) {
  for (const Run::Entry& entry : run.entries) {
    for (std::size_t i = 0; i < entry.read.size(); ++i) {
      Content& source = *entry.step->sources[i];
      if (entry.read[i] != nullptr) --source.reading;
      if (source.holder != nullptr && source.holder->orphaned) released_.push_back(source.holder);
    }
    unneed(*entry.step);
  }
  run = {};
}

void Recipes::clear() {
  forgotten_ = steps_;
  while (!held_.empty()) {
    Range& range = *held_.begin()->second->holder;
    const std::shared_ptr<Content> content = held_.begin()->second;
    if (content->step != nullptr) content->step->results[content->result] = nullptr;
    const std::shared_ptr<Step> step = std::move(content->step);
    forget(range, false);
  }
}

std::string Recipes::validate() const {
  for (const auto& [range, content] : held_) {
    if (content->holder != range) return "a content and its tensor disagree";
    if (content->dropped && content->step == nullptr) return "something is dropped that nothing makes";
    if (content->making != content->dropped) return "a content that has a holder is made for no reason";
    if (content->step != nullptr && content->step->results[content->result] != content.get()) return "a step has lost its result";
    const auto needed = std::ranges::count_if(content->readers, [](const Step* reader) { return reader->needed > 0; });
    if (static_cast<std::uint32_t>(needed) != content->needed) return "the count of who needs a content is wrong";
  }
  return "";
}

}  // namespace vt
