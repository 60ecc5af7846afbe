#include "torch/torch_remaker.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "iteration/managed.h"
#include "recipes/making.h"
#include "torch/torch_calls.h"

namespace vt {

namespace {

// --- running --------------------------------------------------------------------------------------------------

constexpr int kAttempts = 3;

// Below autograd, autocast and everything that looks at operations from above.
c10::impl::LocalDispatchKeySet below_all() {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.included_ = c10::default_included_set.remove(c10::DispatchKey::ADInplaceOrView);
  keys.excluded_ = c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
  return keys;
}

void each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const c10::IValue& item : value.toListRef()) each_tensor(item, visit);
  }
}

std::optional<at::Tensor> owner_among(const std::vector<c10::IValue>& results, const Range& range) {
  std::optional<at::Tensor> owner;
  for (const c10::IValue& value : results) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      if (tensor.has_storage() && reinterpret_cast<Address>(tensor.storage().data()) == range.base) owner = tensor;
    });
  }
  return owner;
}

// One run, on the thread that makes it.
class Running {
 public:
  Running(Engine& engine, const Recipes::Run& run, const Remaker::Take& take)
      : engine_(engine), run_(run), take_(take), thread_(this_thread()), making_(run) {
    if (thread_.engine != &engine && thread_.frames.empty()) thread_.engine = &engine;
    std::swap(thread_.seen_call, outer_);
    thread_.seen_call.counts = true;
    ++thread_.remaking;
    if (stream_ != Lane::none) engine.streams()->makes_again(stream_);
  }
  ~Running() {
    for (const auto& [range, owner] : owners_) engine_.unpin(all_parts(*range, false));  // where a step failed
    owners_.clear();
    --thread_.remaking;
    thread_.making = {};
    std::swap(thread_.seen_call, outer_);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void all() {
    for (std::size_t i = 0; i < run_.entries.size(); ++i) one(i);
  }

 private:
  void one(std::size_t at) {
    const auto& call = static_cast<const TorchCall&>(*run_.entries[at].step->operation);
    thread_.seen_call.births.clear();
    if (engine_.seats() != nullptr) owners_of_results_ = owners(at);
    thread_.making = owners_of_results_;
    {
      std::vector<c10::Storage> memory;
      std::vector<c10::IValue> stack;
      {
        const c10::impl::ForceDispatchKeyGuard below(below_all());
        stack = call.arguments([&](std::size_t i) { return making_.source(at, i).base; }, &memory);
        const Conditions::Guard same(call.conditions());
        const Manage as_then(call.managing());
        call.op().callBoxed(&stack);
      }
      for (Range* source : run_.entries[at].read) {
        if (stream_ != Lane::none && source != nullptr) engine_.streams()->read_again(stream_, *source);
      }
      keep_results(at, call, stack);
    }
    making_.settle(
        at, [&](const Content& content, Range& range) { take_(content, range); },
        [&](Range& range) {
          engine_.unpin(all_parts(range, false));
          owners_.erase(&range);
        });
  }

  std::vector<Range*> owners(std::size_t at) const {
    return making_.owners(at, [&](std::size_t entry) -> Making::Overwritten {
      const auto& later = static_cast<const TorchCall&>(*run_.entries[entry].step->operation);
      if (later.overwrites == kNone) return std::nullopt;
      return {{later.overwrites, later.births.size()}};
    });
  }

  void keep_results(std::size_t at, const TorchCall& call, const std::vector<c10::IValue>& stack) {
    std::vector<Range*> births;
    std::vector<at::Tensor> owners;
    for (Range* const range : thread_.seen_call.births) {
      const std::optional<at::Tensor> owner = owner_among(stack, *range);
      if (!owner) continue;  // what a library keeps: cuBLAS's workspace, of each thread and stream
      births.push_back(range);
      owners.push_back(*owner);
    }
    // Where it ran for the first time on its thread and stream a workspace may count as one of its results, if it has fewer than
    // it might: that is never dropped, so nobody misses it.
    std::size_t known = 0;
    bool same = true;
    for (std::size_t i = 0; i < call.births.size(); ++i) {
      if (known == births.size() || births[known]->bytes != call.births[i]) {
        // Where another is as large, nobody could tell which of them is missing.
        const auto as_large = [&](const Range* range) { return range->bytes == call.births[i]; };
        same &= !making_.needs(at, i) && std::none_of(births.begin(), births.end(), as_large);
        continue;
      }
      Range& range = *births[known];
      const at::Tensor& owner = owners[known++];
      if (!making_.put(at, i, range)) continue;
      owners_[&range] = owner;
      const Use use = all_parts(range, false);
      engine_.pin_and_fetch({&use, 1}, call.name());
    }
    if (!same || known < births.size()) fatal(std::string(call.name()) + " made other tensors when it was run again");
    if (call.overwrites != kNone) making_.overwrote(at, call.overwrites, call.births.size());
  }

  Engine& engine_;
  const Recipes::Run& run_;
  const Remaker::Take& take_;
  Thread& thread_;
  const Lane stream_ = current_stream(engine_);
  Seen outer_;
  Making making_;
  std::vector<Range*> owners_of_results_;  // of the entry that runs
  std::unordered_map<Range*, at::Tensor> owners_;
};

// --- the thread aside -----------------------------------------------------------------------------------------

// Works for threads that cannot run operations themselves.
class Aside {
 public:
  void run(const std::function<void()>& work) {
    if (std::this_thread::get_id() == id_.load()) return work();
    std::unique_lock lock(mutex_);
    if (thread_ == nullptr) {
      thread_ = new std::thread([this] { serve(); });
      id_.store(thread_->get_id());
    }
    Task task{&work, false};
    tasks_.push_back(&task);
    changed_.notify_all();
    changed_.wait(lock, [&] { return task.done; });
  }

 private:
  struct Task {
    const std::function<void()>* work;
    bool done;
  };

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !tasks_.empty(); });
      Task* task = tasks_.front();
      tasks_.pop_front();
      lock.unlock();
      (*task->work)();
      lock.lock();
      task->done = true;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task*> tasks_;
  std::thread* thread_ = nullptr;  // never ends
  std::atomic<std::thread::id> id_{};
};

Aside* g_aside = new Aside;  // a forked child gets another: the thread is its parent's

class TorchRemaker final : public Remaker {
 public:
  explicit TorchRemaker(Engine& engine) : engine_(engine) {}
  void run(const Recipes::Run& run, const Take& take, bool aside) override {
    if (!aside) return run_here(run, take);
    // It leaves torch's number of threads, one for the whole process, as who asks has it.
    const int threads = at::get_num_threads();
    const std::function<void()> work = [&] {
      if (at::get_num_threads() != threads) at::set_num_threads(threads);
      run_here(run, take);
    };
    g_aside->run(work);
  }

 private:
  void run_here(const Recipes::Run& run, const Take& take) {
    for (int attempt = 1;; ++attempt) {
      try {
        return Running(engine_, run, take).all();
      } catch (const c10::Error& error) {
        retry(attempt, error.what_without_backtrace());
      } catch (const std::exception& error) {
        retry(attempt, error.what());
      }
    }
  }

  // A call of the device failed: nothing was lost, and what was taken is not asked for again.
  static void retry(int attempt, const char* why) {
    if (attempt == kAttempts) fatal(std::string("what was dropped could not be recomputed: ") + why);
  }

  Engine& engine_;
};

}  // namespace

std::unique_ptr<Remaker> make_remaker(Engine& engine) { return std::make_unique<TorchRemaker>(engine); }

void forget_thread_aside() { g_aside = new Aside; }

std::optional<bool> made_alike(Engine& engine, Range& range) {
  bool same = false;
  const Use use = all_parts(range, false);
  engine.pin_and_fetch({&use, 1}, "a comparison");
  const bool made = engine.remake().check(range, [&](const Content&, Range& again) {
    const auto bytes = static_cast<std::int64_t>(range.bytes);
    const auto at = [&](const Range& one) { return at::from_blob(reinterpret_cast<void*>(one.base), {bytes}, at::kByte); };
    same = at::equal(at(range), at(again));
  });
  engine.unpin(use);
  return made ? std::optional(same) : std::nullopt;
}

}  // namespace vt
