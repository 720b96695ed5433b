// Brings the tensors that come with a job to the rank's device, in the order of the job's work, and makes
// LibTorch's tensors of them.
//
// If the device is the host, a tensor is read where it is. Another device copies a tensor that comes in
// host memory, and waits, on the device, for one that comes in its own. Private to the adapter of LibTorch.
// Threads and failure: as RankDevice.
#ifndef WEFT_WORKER_SHELL_TORCH_JOB_INPUTS_H_
#define WEFT_WORKER_SHELL_TORCH_JOB_INPUTS_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/torch/rank_device.h"

namespace weft {

absl::StatusOr<Tensor> OnDevice(RankDevice& device, Tensor tensor);
absl::StatusOr<std::vector<Tensor>> AllOnDevice(RankDevice& device, std::vector<Tensor> tensors);

// Returns true if the memory is aligned. Kernels may give other bits on memory with another alignment, so
// such memory is copied. On a GPU cuBLASLt chooses a product's kernel by the alignment of its operands, up to
// 256 bytes; there LibTorch's and the rank's own memory has 512. A tensor from a peer may be cut at 64.
bool IsAligned(const Tensor& tensor);

// Return LibTorch's tensors over the same bytes, or over an aligned copy of them.
at::Tensor WrapAligned(const RankDevice& device, const Tensor& tensor);
std::vector<at::Tensor> WrapAllAligned(const RankDevice& device, const std::vector<Tensor>& tensors);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_JOB_INPUTS_H_
