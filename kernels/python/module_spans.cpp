// When copies and makings happened, for a picture beside torch's profile.
//
// Covers: keeping the log (base/spans.h) and handing it out. Leaves: the picture (vtensor/reports/profile_tracks.py).

#include <tuple>

#include "base/spans.h"
#include "python/module.h"

namespace py = pybind11;

namespace vt {

namespace {
const char* name_of(Doing what) {
  switch (what) {
    case Doing::copying_out: return "copy out";
    case Doing::copying_in: return "copy in";
    case Doing::making: return "recompute";
  }
  return "?";
}
}  // namespace

void bind_spans(py::module_& m) {
  m.def("keep_spans", [] { spans().keep(); });
  // (what, begin, end in steady nanoseconds, bytes) of each since keep_spans(), which ends.
  m.def("take_spans", [] {
    py::list all;
    for (const Span& span : spans().take()) {
      all.append(py::make_tuple(name_of(span.what), span.begin_ns, span.end_ns, span.bytes));
    }
    return all;
  });
}

}  // namespace vt
