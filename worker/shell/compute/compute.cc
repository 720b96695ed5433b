#include "worker/shell/compute/compute.h"

#include <algorithm>
#include <cstdlib>

namespace weft {

absl::string_view MemoryClassName(MemoryClass c) {
  constexpr absl::string_view kNames[kMemoryClasses] = {"weights",     "gradients", "optimizer",
                                                        "activations", "buffers",   "host"};
  return kNames[static_cast<int>(c)];
}

SliceBounds SliceOf(int64_t elements, int part, int parts) {
  if (parts < 1 || part < 0 || part >= parts || elements < 0) std::abort();
  constexpr int64_t kAlign = 16;  // a cache line of float32: slices begin aligned, and no line is shared
  const int64_t lines = (elements + kAlign - 1) / kAlign;
  auto bound = [&](int i) { return std::min(elements, lines * i / parts * kAlign); };
  return {bound(part), bound(part + 1)};
}

Tensor Slice(const Tensor& flat, int part, int parts) {
  const SliceBounds bounds = SliceOf(static_cast<int64_t>(flat.bytes / sizeof(float)), part, parts);
  Tensor slice = flat;
  slice.shape = {DataType::kFloat32, 1, {bounds.end - bounds.begin}};
  slice.data = static_cast<float*>(flat.data) + bounds.begin;
  slice.bytes = static_cast<size_t>(bounds.end - bounds.begin) * sizeof(float);
  return slice;
}

}  // namespace weft
