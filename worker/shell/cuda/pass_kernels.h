// Declares the kernels behind CudaPassMath, as functions that enqueue them on a stream.
//
// This is the seam between C++20 and nvcc's code: plain types, C++17. Each function returns the result of the
// launch, at once. Pointers are of the device's memory. `Number` is float, or uint16_t for bfloat16's bits.
#ifndef WEFT_WORKER_SHELL_CUDA_PASS_KERNELS_H_
#define WEFT_WORKER_SHELL_CUDA_PASS_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/shell/compute/max_pooling.h"

namespace weft::kernels {

template <typename Number>
cudaError_t CrossEntropy(cudaStream_t stream, const Number* scores, int64_t rows, int64_t classes,
                         const int64_t* targets, float* losses, float* log_sums);
template <typename Number>
cudaError_t CrossEntropyGradient(cudaStream_t stream, const Number* scores, int64_t rows, int64_t classes,
                                 const int64_t* targets, const float* log_sums, const float* scale,
                                 Number* out);

template <typename Number>
cudaError_t MaxPoolGradient(cudaStream_t stream, const MaxPooling& pooling, const Number* gradient,
                            const int64_t* places, Number* out);

}  // namespace weft::kernels

#endif  // WEFT_WORKER_SHELL_CUDA_PASS_KERNELS_H_
