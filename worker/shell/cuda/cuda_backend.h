// Gives a worker process its GPU: the choice of the device, its name, and the state that its ranks share.
//
// One process uses one GPU. Several processes may share one: each has its own context and its own share of
// the memory, so one that runs out, or whose kernel fails, leaves the others alone (but for the memory that
// it takes; LibTorch's PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:F bounds that).
#ifndef WEFT_WORKER_SHELL_CUDA_CUDA_BACKEND_H_
#define WEFT_WORKER_SHELL_CUDA_CUDA_BACKEND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/shell/compute/device_backend.h"

namespace weft {

// Makes the backend. Unavailable: no driver, no such device, or one that does not fit, in a sentence.
absl::StatusOr<std::unique_ptr<DeviceBackend>> CreateCudaBackend(const DeviceOptions& options);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_CUDA_BACKEND_H_
