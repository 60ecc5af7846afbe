#include "device/copy_past_caches.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstring>

namespace vt {

namespace {

#if defined(__SSE2__)
constexpr Bytes kLine = 64, kPage = 4096, kBlock = 4 * kPage;

inline void stream_line(char* to, const char* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_load_si128(source), b = _mm_load_si128(source + 1);
  const __m128i c = _mm_load_si128(source + 2), d = _mm_load_si128(source + 3);
  _mm_stream_si128(target, a);
  _mm_stream_si128(target + 1, b);
  _mm_stream_si128(target + 2, c);
  _mm_stream_si128(target + 3, d);
}
#endif

}  // namespace

// Four pages side by side, because prefetchers stop at the end of each (DESIGN.md).
void copy_past_caches(char* to, const char* from, Bytes bytes) {
  Bytes done = 0;
#if defined(__SSE2__)
  for (; done + kBlock <= bytes; done += kBlock) {
    for (Bytes at = done; at < done + kPage; at += kLine) {
      for (Bytes page = 0; page < kBlock; page += kPage) stream_line(to + at + page, from + at + page);
    }
  }
  for (; done + kLine <= bytes; done += kLine) stream_line(to + done, from + done);
  _mm_sfence();  // before anybody is told that the copy is done
#endif
  std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace vt
