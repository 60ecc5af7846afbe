#include "iteration/timing.h"

namespace vt {

void Timing::begin(Streams& streams, std::size_t iterations, bool ahead) {
  if (left_ == 0 || ahead) streams.start_timing(ahead_ = ahead);
  left_ = std::max(left_, iterations);
}

bool Timing::ends(Engine& engine, Recorder& recorder, bool planned, bool wanted) {
  Streams* streams = engine.streams();
  bool timed = streams == nullptr;
  if (left_ > 0) {
    const bool meant = planned || !ahead_;
    timed = recorder.take_times(streams->row_times()) && meant;
    if (timed && engine.remake().weighs()) usual_ = recorder;
    left_ = planned || !meant ? left_ - 1 : 0;  // one that has no plan was meant, which may take turns with those that have one
    if (left_ > 0) streams->start_timing(ahead_ = false);
  }
  recorder.ended_as(timed, planned);
  const bool usual = usual_.hash() == recorder.hash() && farness(recorder.allocated(), usual_.allocated()) <= kNear;
  if (streams != nullptr && (wanted || (engine.remake().weighs() && !usual))) begin(*streams, 1);  // it may be like this one
  return timed;
}

std::uint64_t Timing::took(const Recorder& recorder, std::uint32_t first) const noexcept {
  const std::uint32_t last = recorder.rows() - 1;
  if (first > last || last >= usual_.rows() || last >= recorder.rows()) return 0;
  const auto& rows = usual_.all_rows();
  if (rows[first].op != recorder.all_rows()[first].op) return 0;
  return (last + 1 < usual_.rows() ? rows[last + 1].begin_ns : usual_.end_ns()) - rows[first].begin_ns;
}

}  // namespace vt
