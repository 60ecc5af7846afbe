// The observer: what torch's operations are about to use. Compiled with -DNDEBUG, as torch is: RecordFunction::inputs()
// asserts otherwise.

#include "torch/torch_observer.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "process/fault_handler.h"
#include "process/registry.h"
#include "iteration/recording.h"
#include "torch/torch_seen.h"
#include "torch/torch_traits.h"
#include "torch/torch_verify.h"

namespace vt {

namespace {

// --- the observer ------------------------------------------------------------------------------------------

// The part of its storage a dense tensor can reach; the whole range where that is not known.
Use extent(Engine& engine, Range& range, const c10::TensorImpl& tensor, const void* storage, bool write) {
  if (tensor.has_symbolic_sizes_strides() || tensor.is_nested()) return all_parts(range, write);
  const std::int64_t elements = reach(tensor);
  if (elements == 0) return engine.part(range, 0, 0, write);
  const Bytes item = tensor.itemsize();
  const Bytes start = reinterpret_cast<Address>(storage) - range.base;
  return engine.part(range, start + static_cast<Bytes>(tensor.storage_offset()) * item,
                     start + static_cast<Bytes>(tensor.storage_offset() + elements) * item, write);
}

// Calls `found(range, tensor, storage)` for each managed tensor there.
template <typename Found>
void each_managed(Engine& engine, const at::Tensor& tensor, const Found& found) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->has_storage()) {
    if (!tensor.defined()) return;
    if (tensor.is_sparse()) {
      const auto* sparse = static_cast<const at::SparseTensorImpl*>(impl);
      each_managed(engine, sparse->indices(), found);
      each_managed(engine, sparse->values(), found);
    } else if (impl->is_sparse_compressed()) {
      const auto* sparse = static_cast<const at::SparseCsrTensorImpl*>(impl);
      each_managed(engine, sparse->compressed_indices(), found);
      each_managed(engine, sparse->plain_indices(), found);
      each_managed(engine, sparse->values(), found);
    }
    return;
  }
  const void* storage = impl->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  if (!engine.contains(storage)) return;
  if (Range* range = engine.find(storage)) found(*range, *impl, storage);
}

template <typename Found>
void each_managed(Engine& engine, const c10::IValue& value, const Found& found) {
  if (value.isTensor()) {
    each_managed(engine, value.toTensor(), found);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isInt() || item.isDouble() || item.isBool()) return;  // a list of numbers
      each_managed(engine, item, found);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) each_managed(engine, item, found);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) each_managed(engine, entry.value(), found);
  }
}

void may_change(Thread& thread, Range& range) {
  if (range.known.load(std::memory_order_relaxed) && thread.remaking == 0) thread.changed.push_back(&range);
}

// `changes`: it may be written, though the schema may not say it.
void visit(Thread& thread, const c10::IValue& value, bool write, bool changes) {
  Engine& engine = *thread.engine;
  each_managed(engine, value, [&](Range& range, const c10::TensorImpl& tensor, const void* storage) {
    works(thread);
    if (changes) may_change(thread, range);
    if (engine.try_pin(range, write)) {
      thread.uses.push_back(whole(range, write));
      if (thread.records) {
        const bool one = range.chunks == 1;
        thread.seen.push_back(one ? whole(range, write) : extent(engine, range, tensor, storage, write));
      }
    } else {
      thread.missing.push_back(extent(engine, range, tensor, storage, write));
      if (thread.records) thread.seen.push_back(thread.missing.back());
    }
  });
}

// What is made again runs operations, which are observed like any other: what was found of the one that begins is put aside, and
// back with the memory it has.
struct Meanwhile {
  explicit Meanwhile(Thread& of) : thread(of), missing(std::move(of.missing)), changed(std::move(of.changed)) {}
  ~Meanwhile() {
    thread.missing = std::move(missing);
    thread.changed = std::move(changed);
  }
  Meanwhile(const Meanwhile&) = delete;
  Meanwhile& operator=(const Meanwhile&) = delete;

  Thread& thread;
  std::vector<Use> missing;
  std::vector<Range*> changed;
  const Stall stall{thread};
};

void fetch_missing(Thread& thread, Engine& engine) {
  Meanwhile aside(thread);
  arm_fault_handler();
  engine.pin_and_fetch(aside.missing, operation_name(thread));
  thread.uses.insert(thread.uses.end(), aside.missing.begin(), aside.missing.end());
  aside.missing.clear();
}

void make_due(Thread& thread, Engine& engine) {
  const Meanwhile aside(thread);
  while (!thread.due.empty()) {
    const std::vector<PlannedMove> due = std::exchange(thread.due, {});
    engine.remake().bring(due);
    if (const Recording recording{thread}) {
      recording->go_on(engine);
      thread.due = recording->take_due();
    }
  }
}

// What is about to be written was perhaps read by what is dropped.
void before_writes(Thread& thread, Engine& engine) {
  const Stall stall(thread);
  const std::vector<Range*> changed = std::move(thread.changed);
  thread.changed.clear();
  for (Range* range : changed) engine.remake().before_write(*range);
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  Thread& thread = this_thread();
  Engine* engine = current_engine();
  // A copy: what is made again meanwhile is observed too, and looked up in the same place.
  const Traits traits = traits_of(function);
  if (thread.frames.empty()) thread.engine = engine;
  Streams* streams = engine != nullptr ? engine->streams() : nullptr;
  // An operation that itself enabled vtensor ends before it is observed: nested in it, nothing is.
  const bool observe = engine != nullptr && engine == thread.engine && !(streams != nullptr && in_forked_child());
  const bool transparent = traits.transparent || !observe;
  const auto stream = observe ? current_stream(*engine) : Lane::none;
  thread.frames.push_back({static_cast<std::uint32_t>(thread.uses.size()), transparent, traits.name, traits.id, kNone, stream,
                           traits.draws && observe, traits.keeps_arguments && observe});
  thread.solid += !transparent;
  if (!observe) return nullptr;
  if (traits.draws) Draws::begin();
  const bool unseen = traits.named && streams != nullptr && !function.inputs().empty();
  const bool within = thread.seen_call.frame != kNone;
  const bool sees = engine->remake().on() && thread.remaking == 0 && !within;
  if (within && (traits.again == Again::custom || may_be_others(thread.seen_call.others))) look_within(thread, function, traits);
  if (traits.skip_arguments && !unseen) {
    if (sees && traits.named && !function.inputs().empty()) {
      call_begins(thread, *engine, function, traits);
      thread.changed.clear();
      if (!traits.writes_seen) {
        for (const c10::IValue& input : function.inputs()) {
          each_managed(*engine, input, [&](Range& range, auto&&...) { may_change(thread, range); });
        }
      }
      if (!thread.changed.empty()) before_writes(thread, *engine);
    }
    return nullptr;
  }
  engine->tick();
  thread.missing.clear();  // left over if the operation before this one failed here
  thread.seen.clear();
  thread.changed.clear();
  thread.records = !traits.named && recorded(thread);
  const std::uint64_t written = streams != nullptr ? traits.may_write : traits.written;
  std::size_t index = 0;
  for (const c10::IValue& input : function.inputs()) {
    const std::size_t bit = std::min<std::size_t>(index, 63);
    visit(thread, input, (written >> bit & 1) != 0, (traits.may_write >> bit & 1) != 0);
    ++index;
  }
  if (!thread.missing.empty()) may_watch(thread, *engine);
  if (!thread.seen.empty()) {
    std::optional<Finding> round;
    if (const Recording recording{thread}) {
      round = may_come_round(recording, thread, *engine);
      begin_row(recording, thread, *engine, stream);
      for (const Use& use : thread.seen) recording->use(*use.range, use);
    }
    thread.seen.clear();
    if (round) tell_round(*round);
  }
  if (engine->remake().doubts() && thread.remaking == 0) {
    const Meanwhile aside(thread);
    verify_due(*engine);
  }
  if (!thread.due.empty()) make_due(thread, *engine);
  if (!thread.missing.empty()) fetch_missing(thread, *engine);
  // A graph that is captured uses these addresses for good.
  if (traits.keeps_arguments || (streams != nullptr && stream == Lane::none)) {
    for (std::size_t i = thread.frames.back().first_use; i < thread.uses.size(); ++i) {
      engine->export_address(reinterpret_cast<const void*>(thread.uses[i].range->base), Export::fixed);
    }
  }
  if (stream != Lane::none) {
    for (std::size_t i = thread.frames.back().first_use; i < thread.uses.size(); ++i) {
      streams->ready_on(stream, *thread.uses[i].range);
    }
  }
  if (sees) call_begins(thread, *engine, function, traits);
  if (!thread.changed.empty()) before_writes(thread, *engine);
  return nullptr;
}

// What the operation was asked to do on its stream is asked now: whoever moves its arguments comes after it.
void note_uses(Thread& thread, const Frame& frame) {
  Streams& streams = *thread.engine->streams();
  for (std::size_t i = frame.first_use; i < thread.uses.size(); ++i) {
    streams.used_on(frame.stream, *thread.uses[i].range);
  }
  if (thread.solid == 1 && !frame.transparent) {
    for (Range* range : thread.newborns) streams.used_on(frame.stream, *range);
    streams.pulse(frame.stream);
  }
}

void on_end(const at::RecordFunction&, at::ObserverContext*) {
  Thread& thread = this_thread();
  if (thread.frames.empty()) return;
  const Frame frame = thread.frames.back();
  thread.frames.pop_back();
  if (frame.draws) Draws::end();
  if (thread.seen_call.frame == thread.frames.size()) call_ends(thread, thread.frames.size());
  if (frame.row != kNone && !frame.transparent) {
    if (const Recording recording{thread}) recording->log().row_ends(frame.row);
  }
  if (frame.stream != Lane::none) note_uses(thread, frame);
  if (frame.keeps) {
    const std::vector<Range*> made = thread.newborns;  // what is made again for it may be newborn, too
    for (const Range* range : made) thread.engine->export_address(reinterpret_cast<const void*>(range->base), Export::fixed);
  }
  while (thread.uses.size() > frame.first_use) {
    thread.engine->unpin(thread.uses.back());
    thread.uses.pop_back();
  }
  thread.solid -= !frame.transparent;
  if (thread.solid == 0 && !thread.newborns.empty()) {
    for (Range* range : thread.newborns) range->pins.fetch_sub(1);
    thread.newborns.clear();
  }
}

std::mutex g_subscribing;
std::atomic<at::CallbackHandle> g_observer{at::INVALID_CALLBACK_HANDLE};

}  // namespace

bool observing() noexcept { return g_observer.load() != at::INVALID_CALLBACK_HANDLE; }

void observe() {
  if (observing()) return;
  std::lock_guard lock(g_subscribing);
  if (observing()) return;
  g_observer = at::addGlobalCallback(
      at::RecordFunctionCallback(on_begin, on_end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

void observe_if_pressed() {
  const Engine* engine = current_engine();
  if (engine != nullptr && engine->pressed()) observe();
}

void stop_observing() {
  std::lock_guard lock(g_subscribing);
  if (observing()) at::removeCallback(g_observer.exchange(at::INVALID_CALLBACK_HANDLE));
}

}  // namespace vt
