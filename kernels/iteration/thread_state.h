// What runs on each thread: operations under way, what they pinned, and whether the thread's iterations are recorded.
//
// Covers: the per-thread state of observer and allocator.
// Leaves: what is recorded (recording.h), reading torch's operations (torch_observer.cpp), serving its allocations
// (torch_bridge.cpp). Knows nothing of torch.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "iteration/draws.h"
#include "iteration/given.h"
#include "iteration/recorder.h"

namespace vt {

struct Frame {
  std::uint32_t first_use;  // index into Thread::uses
  bool transparent;
  const char* name;
  OpId id;
  std::uint32_t row;  // of the recorder; kNone until it uses or allocates managed memory
  Lane stream = Lane::none;  // what it is asked of, on an ordered device; else none
  bool draws = false;  // random numbers
  bool keeps = false;  // what it was given and what it made: it goes on using that when it has returned
};

// Whether code of the user's runs within an operation, or autocast, which does not when it is run again: what is made there is
// not the operation's.
enum class Others : std::uint8_t { none, may_run, may_cast, ran };
inline bool may_be_others(Others others) noexcept { return others == Others::may_run || others == Others::may_cast; }

// An operation that is seen (recipes.h), while it runs.
struct Seen {
  std::uint32_t first_row = kNone;  // where it is recorded
  std::size_t frame = kNone;      // of the outermost operation torch itself cannot look into; kNone: none runs
  std::shared_ptr<Step> step;     // nullptr: it is not one that can be run again
  Range* written = nullptr;       // the tensor it overwrites
  std::size_t fresh = 0;          // tensors it may make at most
  int exceptions = 0;
  Clock::time_point begun{};  // with a step, where somebody weighs by it
  bool could = false;             // without a step: whether there could be one
  bool fills = false;             // what it overwrites it does not read
  std::optional<Draws::Alone> draws;  // if it draws random numbers
  Others others = Others::none;
  bool counts = false;            // whether to fill `births`
  std::vector<Range*> births;     // allocated in it, and alive
};

// Which allocations of a thread are managed: large ones, all, or none.
enum class Managing : std::uint8_t { large, all, none };

struct Thread {
  Engine* engine = nullptr;       // the engine all of the below belong to
  std::vector<Frame> frames;      // operations under way, outermost first
  std::vector<Use> uses;          // pinned arguments of all of them
  std::vector<Use> missing;       // arguments of the newest that are not wholly resident
  std::vector<Use> seen;          // all of its managed arguments, for the recorder
  bool records = false;           // whether to fill `seen`
  std::vector<Use> kept;          // pinned for code that no operation tells of (managed.h)
  Engine* kept_engine = nullptr;  // the engine those belong to
  std::vector<Range*> newborns;   // allocated inside the outermost operation that is not transparent
  std::vector<ChunkId> wished;    // where a plan wants what is allocated now
  std::span<Range* const> making; // for whom what an operation that is run again makes is, in order; nullptr: for nobody
  Managing managing = Managing::large;
  std::shared_ptr<Given::Due> given;  // of the call that is given what this thread allocates, if there is one
  std::uint32_t works = 0;        // the session in which it used managed memory last
  Seen seen_call;                 // the operation under way that may be run again
  std::uint32_t remaking = 0;     // runs such operations again: what they do is no part of the program
  std::vector<Range*> changed;    // arguments of the newest whose known contents it may write
  std::vector<PlannedMove> due;   // what a plan wants recomputed before the operation that begins
  std::uint32_t solid = 0;        // operations under way that are not transparent
};

Thread& this_thread();

// Of what this thread allocates meanwhile.
class Manage {
 public:
  explicit Manage(Managing what) : before_(std::exchange(this_thread().managing, what)) {}
  ~Manage() { this_thread().managing = before_; }
  Manage(const Manage&) = delete;
  Manage& operator=(const Manage&) = delete;

 private:
  const Managing before_;
};

// The thread uses managed memory, for the program: one that only makes things again does not count.
extern std::atomic<std::uint64_t> g_working;  // how many do, below the number of the session
void begin_work(Thread& thread) noexcept;
inline void works(Thread& thread) noexcept {
  if (thread.works != g_working.load(std::memory_order_relaxed) >> 32 && thread.remaking == 0) begin_work(thread);
}
// How many threads that live have, in this session.
std::size_t working_threads() noexcept;
// A session begins: nobody has worked in it yet.
void count_workers_anew() noexcept;

// The lane of the stream this thread's operations are asked of now. Whoever brings an ordered engine sets it; none on others.
using CurrentStream = Lane (*)(Engine& engine);
void set_current_stream(CurrentStream current) noexcept;
Lane current_stream(Engine& engine);

// The innermost operation under way, for messages; nullptr outside.
const char* operation_name(const Thread& thread) noexcept;

// Whether the thread's iterations are recorded: a hint, as another thread may end one at any moment and become the recorded one.
bool recorded(const Thread& thread) noexcept;
bool anybody_recorded() noexcept;
// From now on those of this one are, and no other's; of none if null.
void record_only(const Thread* thread) noexcept;
// The program of the calling thread goes on in another: that is recorded from now on if this was. Pre: it lives, and is not
// inside the engine; this one does nothing more until it is passed the turn.
void pass_turn(const Thread& to) noexcept;

}  // namespace vt
