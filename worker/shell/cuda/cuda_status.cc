#include "worker/shell/cuda/cuda_status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace weft {

absl::Status CudaStatus(cudaError_t error, int device, absl::string_view doing) {
  (void)cudaGetLastError();
  const std::string message = absl::StrCat("cuda:", device, ": ", doing, ": ", cudaGetErrorString(error),
                                           " (", cudaGetErrorName(error), ")");
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(message)
                                            : absl::InternalError(message);
}

cudaError_t Asked(cudaError_t answer) {
  if (answer == cudaErrorNotReady) (void)cudaGetLastError();
  return answer;
}

}  // namespace weft
