// Cuts a flat buffer of a stage into near-equal slices, for those who hold or sum one each. Pure.
#ifndef WEFT_RUN_SLICE_BOUNDS_H_
#define WEFT_RUN_SLICE_BOUNDS_H_

#include <algorithm>
#include <cstdint>

#include "base/require.h"

namespace weft {

// The elements [begin, end) of part `part` of `parts` of a flat buffer: near-equal, cut at multiples of 16
// elements.
struct SliceBounds {
  int64_t begin = 0, end = 0;
};

inline SliceBounds SliceOf(int64_t elements, int part, int parts) {
  Require(parts >= 1 && part >= 0 && part < parts && elements >= 0, "a slice is one of the buffer's parts");
  constexpr int64_t kAlign = 16;  // a cache line of float32: slices begin aligned, and no line is shared
  const int64_t lines = (elements + kAlign - 1) / kAlign;
  const auto bound = [&](int i) { return std::min(elements, lines * i / parts * kAlign); };
  return {bound(part), bound(part + 1)};
}

}  // namespace weft

#endif  // WEFT_RUN_SLICE_BOUNDS_H_
