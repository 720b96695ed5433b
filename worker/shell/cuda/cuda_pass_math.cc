#include "worker/shell/cuda/cuda_pass_math.h"

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include "worker/shell/cuda/pass_kernels.h"

namespace weft {
namespace {

// Calls `launch` with a null pointer to the numbers' type in the kernels.
template <typename Launch>
void OfType(DataType type, const Launch& launch) {
  if (type == DataType::kBFloat16) {
    C10_CUDA_CHECK(launch(static_cast<const uint16_t*>(nullptr)));
  } else {
    C10_CUDA_CHECK(launch(static_cast<const float*>(nullptr)));
  }
}

template <typename Number>
const Number* As(const Number*, const void* data) {
  return static_cast<const Number*>(data);
}
template <typename Number>
Number* As(const Number*, void* data) {
  return static_cast<Number*>(data);
}

}  // namespace

void CudaPassMath::CrossEntropy(const ScoreRows& scores, const int64_t* targets, float* losses,
                                float* log_sums) const {
  OfType(scores.type, [&](const auto* number) {
    return kernels::CrossEntropy(stream_(), As(number, scores.data), scores.rows, scores.classes, targets,
                                 losses, log_sums);
  });
}

void CudaPassMath::CrossEntropyGradient(const ScoreRows& scores, const int64_t* targets,
                                        const float* log_sums, const float* scale, void* out) const {
  OfType(scores.type, [&](const auto* number) {
    return kernels::CrossEntropyGradient(stream_(), As(number, scores.data), scores.rows, scores.classes,
                                         targets, log_sums, scale, As(number, out));
  });
}

void CudaPassMath::MaxPoolGradient(const MaxPooling& pooling, DataType type, const void* gradient,
                                   const int64_t* places, void* out) const {
  OfType(type, [&](const auto* number) {
    return kernels::MaxPoolGradient(stream_(), pooling, As(number, gradient), places, As(number, out));
  });
}

}  // namespace weft
