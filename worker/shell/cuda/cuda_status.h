// Turns a failure of the CUDA runtime into a Status.
#ifndef WEFT_WORKER_SHELL_CUDA_CUDA_STATUS_H_
#define WEFT_WORKER_SHELL_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft {

// Returns "cuda:0: what was being done: an illegal memory access was encountered (cudaErrorIllegalAddress)".
// Clears the thread's last error, which is this one.
absl::Status CudaStatus(cudaError_t error, int device, absl::string_view doing);

// Returns the answer of cudaEventQuery or cudaStreamQuery unchanged. An answer "not reached yet" is no error,
// but the runtime notes it as the thread's last one, which the next launch of a kernel would take for its
// own: clears that.
cudaError_t Asked(cudaError_t answer);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_CUDA_STATUS_H_
