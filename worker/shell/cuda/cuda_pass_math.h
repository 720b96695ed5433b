// Implements PassMath on a GPU: enqueues kernels on the stream that the rank computes on (pass_kernels.h).
//
// Threads, failure: as PassMath's; a launch that fails at once is a c10::Error, which stops where LibTorch's
// do.
#ifndef WEFT_WORKER_SHELL_CUDA_CUDA_PASS_MATH_H_
#define WEFT_WORKER_SHELL_CUDA_CUDA_PASS_MATH_H_

#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <utility>

#include "worker/shell/compute/pass_math.h"

namespace weft {

class CudaPassMath final : public PassMath {
 public:
  // `stream` returns the calling thread's stream.
  explicit CudaPassMath(std::function<c10::cuda::CUDAStream()> stream) : stream_(std::move(stream)) {}

  void CrossEntropy(const ScoreRows& scores, const int64_t* targets, float* losses,
                    float* log_sums) const override;
  void CrossEntropyGradient(const ScoreRows& scores, const int64_t* targets, const float* log_sums,
                            const float* scale, void* out) const override;
  void MaxPoolGradient(const MaxPooling& pooling, DataType type, const void* gradient, const int64_t* places,
                       void* out) const override;

 private:
  const std::function<c10::cuda::CUDAStream()> stream_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_CUDA_PASS_MATH_H_
