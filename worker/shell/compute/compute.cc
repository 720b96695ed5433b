#include "worker/shell/compute/compute.h"

namespace weft {

absl::string_view MemoryClassName(MemoryClass c) {
  constexpr absl::string_view kNames[kMemoryClasses] = {"weights", "gradients", "optimizer", "activations",
                                                        "buffers", "received",  "host"};
  return kNames[static_cast<int>(c)];
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
