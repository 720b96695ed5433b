#include "worker/shell/memory/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace weft {

#if defined(__SSE2__)
namespace {

constexpr size_t kLine = 64;
// So many pages are copied side by side: the processor reads ahead within each of them, and not beyond.
constexpr size_t kPage = 4096, kPages = 4;

inline void StreamLine(char* to, const char* from) {
  for (size_t i = 0; i < kLine; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}

// Copies whole lines, as many as there are, to the start of one. Returns their bytes.
size_t StreamLines(char* to, const char* from, size_t bytes) {
  size_t done = 0;
  for (; done + kPages * kPage <= bytes; done += kPages * kPage) {
    for (size_t line = done; line < done + kPage; line += kLine) {
      for (size_t page = 0; page < kPages; ++page)
        StreamLine(to + line + page * kPage, from + line + page * kPage);
    }
  }
  for (; done + kLine <= bytes; done += kLine) StreamLine(to + done, from + done);
  _mm_sfence();
  return done;
}

}  // namespace

void StreamingCopy(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  const auto copy = [&](size_t n) {
    if (n > 0) std::memcpy(out, in, n);
    out += n, in += n, bytes -= n;
  };
  copy(std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine));
  const size_t streamed = StreamLines(out, in, bytes);
  out += streamed, in += streamed, bytes -= streamed;
  copy(bytes);
}

#else

void StreamingCopy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

#endif

}  // namespace weft
