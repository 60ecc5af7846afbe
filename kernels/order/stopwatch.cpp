#include "order/stopwatch.h"

#include <algorithm>
#include <utility>

namespace vt {

namespace {
constexpr std::size_t kMost = std::size_t{1} << 20;  // a longer iteration is not timed; a row takes about five
}  // namespace

void Stopwatch::start(bool ahead) {
  if (!noted_.empty()) (void)read();  // nobody asked
  ahead_ = ahead;
  running_ = true;
  failed_ = false;
  last_ = paused_ = Lane::none;
}

void Stopwatch::pause(unsigned* why) {
  const bool before = pauses();
  ++*why;
  if (before || !pauses() || !running_ || last_ == Lane::none) return;
  paused_ = last_;
  note(What::wait, paused_);
}

void Stopwatch::resume(unsigned* why) {
  --*why;
  if (pauses() || paused_ == Lane::none) return;
  note(What::work, std::exchange(paused_, Lane::none));
}

void Stopwatch::note(What what, Lane stream) {
  if (!running_ || failed_) return;
  // Without a stream a graph is captured; its work is not done now.
  failed_ = stream == Lane::none || noted_.size() >= kMost || !driver_.stamp(stream).ok();
  if (failed_) return;
  noted_.push_back(what);
  if (what == What::row) last_ = stream;
}

void Stopwatch::stop() {
  note(What::row, last_);
  running_ = false;
}

std::vector<std::uint64_t> Stopwatch::read() {
  std::vector<std::uint64_t> passed, begins;
  const bool told = driver_.read_stamps(&passed).ok() && !failed_ && passed.size() == noted_.size();
  std::uint64_t waited = 0, since = 0, latest = 0;
  for (std::size_t i = 0; told && i < noted_.size(); ++i) {
    if (noted_[i] == What::wait) since = passed[i];
    if (noted_[i] == What::work) waited += passed[i] - since;
    if (noted_[i] != What::row) continue;
    // Of two streams one may be ahead: its rows take no time then.
    latest = std::max(latest, passed[i] > waited ? passed[i] - waited : 0);
    begins.push_back(latest);
  }
  noted_.clear();
  return begins;
}

}  // namespace vt
