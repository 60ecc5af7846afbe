// The observer: what torch's operations are about to use. Compiled with -DNDEBUG, as torch is: RecordFunction::inputs()
// asserts otherwise.

#include "torch/torch_observer.h"

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
#include "torch/torch_arguments.h"
#include "torch/torch_seen.h"
#include "torch/torch_traits.h"
#include "torch/torch_verify.h"

namespace vt {

namespace {

void may_change(Thread& thread, Range& range) {
  const bool by_itself = &range == thread.seen_call.written;  // by what it calls
  if (range.known.load(std::memory_order_relaxed) && thread.remaking == 0 && !by_itself) thread.changed.push_back(&range);
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

// What is recomputed runs operations, which are observed like any other: what was found of the one that begins is put aside, and
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
    engine.remake().bring_back(due);
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
  const Step* const seen = thread.seen_call.step.get();
  for (Range* range : changed) engine.remake().before_write(*range, seen);
}

// An operation that begins. What follows are the steps of on_begin().
struct Beginning {
  Thread& thread;
  Engine& engine;
  Streams* streams;  // null where operations have ended when they return
  const at::RecordFunction& function;
  const Traits& traits;
  Lane stream;
};

// Only a name around operations, which may be told what it will write.
void begin_named(const Beginning& begins) {
  Thread& thread = begins.thread;
  call_begins(thread, begins.engine, begins.function, begins.traits);
  thread.changed.clear();
  if (!begins.traits.writes_seen) {
    for (const c10::IValue& input : begins.function.inputs()) {
      each_managed(begins.engine, input, [&](Range& range, auto&&...) { may_change(thread, range); });
    }
  }
  if (!thread.changed.empty()) before_writes(thread, begins.engine);
}

// Pins them; finds which are missing, which are to be noted, which may be written.
void look_at_arguments(const Beginning& begins) {
  Thread& thread = begins.thread;
  const Traits& traits = begins.traits;
  thread.missing.clear();  // left over if the operation before this one failed here
  thread.seen.clear();
  thread.changed.clear();
  thread.records = !traits.named && recorded(thread);
  if (traits.only_sizes) return;
  const std::uint64_t written = begins.streams != nullptr ? traits.may_write : traits.written;
  std::size_t index = 0;
  for (const c10::IValue& input : begins.function.inputs()) {
    const std::size_t bit = std::min<std::size_t>(index, 63);
    visit(thread, input, (written >> bit & 1) != 0, (traits.may_write >> bit & 1) != 0);
    ++index;
  }
  if (!thread.missing.empty()) may_watch(thread, begins.engine);
}

// In the log of the iteration, and in the plan that is followed.
void note_row(const Beginning& begins) {
  Thread& thread = begins.thread;
  if (thread.seen.empty()) return;
  std::optional<Finding> round;
  if (const Recording recording{thread}) {
    round = may_come_round(recording, thread, begins.engine);
    begin_row(recording, thread, begins.engine, begins.stream);
    for (const Use& use : thread.seen) recording->use(*use.range, use);
  }
  thread.seen.clear();
  if (round) tell_round(*round);
}

// What a plan recomputes by now, and what is missing all the same.
void bring(const Beginning& begins) {
  Thread& thread = begins.thread;
  if (begins.engine.remake().doubts() && thread.remaking == 0) {
    const Meanwhile aside(thread);
    verify_due(begins.engine);
  }
  if (!thread.due.empty()) make_due(thread, begins.engine);
  if (!thread.missing.empty()) fetch_missing(thread, begins.engine);
}

// Whoever moved its arguments comes before it. A graph that is captured uses their addresses for good.
void order_on_stream(const Beginning& begins) {
  Thread& thread = begins.thread;
  const bool for_good = begins.traits.keeps_arguments || (begins.streams != nullptr && begins.stream == Lane::none);
  for (std::size_t i = thread.frames.back().first_use; i < thread.uses.size(); ++i) {
    Range& range = *thread.uses[i].range;
    if (for_good) begins.engine.export_address(reinterpret_cast<const void*>(range.base), Export::fixed);
    if (begins.stream != Lane::none) begins.streams->ready_on(begins.stream, range);
  }
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  Thread& thread = this_thread();
  Engine* engine = current_engine();
  // A copy: what is recomputed meanwhile is observed too, and looked up in the same place.
  const Traits traits = traits_of(function);
  if (thread.frames.empty()) thread.engine = engine;
  Streams* streams = engine != nullptr ? engine->streams() : nullptr;
  // An operation that itself enabled vtensor ends before it is observed: nested in it, nothing is.
  const bool observe = engine != nullptr && engine == thread.engine && !(streams != nullptr && in_forked_child());
  const bool transparent = traits.transparent || !observe;
  thread.frames.push_back({static_cast<std::uint32_t>(thread.uses.size()), transparent, traits.name, traits.id, kNone, Lane::none,
                           traits.draws && observe, traits.keeps_arguments && observe});
  thread.solid += !transparent;
  if (!observe) return nullptr;
  if (traits.draws) Draws::begin();
  const Lane stream = current_stream(*engine);  // raises where the device is lost
  thread.frames.back().stream = stream;
  const Beginning begins{thread, *engine, streams, function, traits, stream};
  const bool within = thread.seen_call.frame != kNone;
  const bool sees = engine->remake().on() && thread.remaking == 0 && !within;
  if (within && (traits.again == Again::custom || may_be_others(thread.seen_call.others))) look_within(thread, function, traits);
  const bool told = traits.named && !function.inputs().empty();
  if (traits.skip_arguments && !(told && streams != nullptr)) {
    if (sees && told) begin_named(begins);
    return nullptr;
  }
  engine->tick();
  look_at_arguments(begins);
  note_row(begins);
  bring(begins);
  if (traits.keeps_arguments || streams != nullptr) order_on_stream(begins);
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
  } else if (streams.is_foreign(frame.stream)) {
    streams.pulse(frame.stream);  // it may be gone before the next operation ends
  }
}

void on_end(const at::RecordFunction&, at::ObserverContext*) {
  Thread& thread = this_thread();
  if (thread.frames.empty()) return;
  const Frame frame = thread.frames.back();
  thread.frames.pop_back();
  if (frame.draws) Draws::end();
  if (frame.stream != Lane::none) thread.engine->streams()->used(frame.stream);
  if (thread.seen_call.frame == thread.frames.size()) call_ends(thread, thread.frames.size());
  if (frame.row != kNone && !frame.transparent) {
    if (const Recording recording{thread}) recording->log().row_ends(frame.row);
  }
  if (frame.stream != Lane::none) note_uses(thread, frame);
  if (frame.keeps) {
    const std::vector<Range*> made = thread.newborns;  // what is recomputed for it may be newborn, too
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
  look_again();  // operators may have got other kernels while nobody looked
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
