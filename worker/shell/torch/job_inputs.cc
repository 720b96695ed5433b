#include "worker/shell/torch/job_inputs.h"

#include <ATen/TensorOperators.h>

#include <cstdint>
#include <utility>

#include "worker/shell/compute/segment_allocator.h"
#include "worker/shell/torch/torch_stage.h"

namespace weft {

absl::StatusOr<Tensor> OnDevice(RankDevice& device, Tensor tensor) {
  if (device.is_host() || tensor.bytes == 0) return tensor;
  if (tensor.place == MemoryPlace::kDevice) return device.Await(std::move(tensor));
  absl::StatusOr<Tensor> copy = device.ToDevice(tensor, MemoryClass::kReceived);
  if (!copy.ok()) return copy;
  return device.Await(*std::move(copy));
}

absl::StatusOr<std::vector<Tensor>> AllOnDevice(RankDevice& device, std::vector<Tensor> tensors) {
  if (device.is_host()) return tensors;
  for (Tensor& tensor : tensors) {
    absl::StatusOr<Tensor> here = OnDevice(device, std::move(tensor));
    if (!here.ok()) return here.status();
    tensor = *std::move(here);
  }
  return tensors;
}

bool IsAligned(const Tensor& tensor) {
  constexpr size_t kDeviceAlignment = 256;
  const size_t bytes = tensor.place == MemoryPlace::kHost ? SegmentAllocator::kAlignment : kDeviceAlignment;
  return reinterpret_cast<uintptr_t>(tensor.data) % bytes == 0;
}

at::Tensor WrapAligned(const RankDevice& device, const Tensor& tensor) {
  const at::Tensor wrapped = Wrap(tensor, device.torch_device());
  return IsAligned(tensor) ? wrapped : wrapped.clone();
}

std::vector<at::Tensor> WrapAllAligned(const RankDevice& device, const std::vector<Tensor>& tensors) {
  std::vector<at::Tensor> wrapped;
  wrapped.reserve(tensors.size() + 1);
  for (const Tensor& tensor : tensors) wrapped.push_back(WrapAligned(device, tensor));
  return wrapped;
}

}  // namespace weft
