// Declares operations of passes for which a device has kernels of its own: where LibTorch has none, none that
// is deterministic, or none that is as fast.
//
// They are optional: a device without them (FlatMath::pass_math) computes the same functions with
// LibTorch's operations. Their sums have an order that depends on the sizes alone, so the bits of a pass are
// the same each time; they are not those of LibTorch's operations.
//
// Calls enqueue work behind the earlier work of the calling thread, and return. Pointers are of the device's
// memory. Numbers are float32 or bfloat16, computed with in float32. Threads: as the rank's jobs (compute.h).
// Failure: of the device, known when its work is awaited.
#ifndef WEFT_WORKER_SHELL_COMPUTE_PASS_MATH_H_
#define WEFT_WORKER_SHELL_COMPUTE_PASS_MATH_H_

#include <cstdint>

#include "worker/shell/compute/max_pooling.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

// Scores [rows, classes], contiguous; of minus infinity where there is no class.
struct ScoreRows {
  const void* data = nullptr;
  DataType type = DataType::kFloat32;
  int64_t rows = 0, classes = 0;
};

class PassMath {
 public:
  virtual ~PassMath() = default;

  // Computes log_sums[r] = log of the sum of exp(scores[r]), and losses[r] = log_sums[r] -
  // scores[r][targets[r]]. Not a number for a target that is no class, and for scores that are not finite.
  virtual void CrossEntropy(const ScoreRows& scores, const int64_t* targets, float* losses,
                            float* log_sums) const = 0;
  // Computes the gradient of the sum of losses times *scale, of the scores' type:
  // out[r][c] = (exp(scores[r][c] - log_sums[r]) - (c == targets[r])) * *scale.
  virtual void CrossEntropyGradient(const ScoreRows& scores, const int64_t* targets, const float* log_sums,
                                    const float* scale, void* out) const = 0;

  // Computes the gradient of a max pooling: that of a pixel is the sum of the gradients of those windows in
  // which it was the most, by `places` (row * columns + column, as LibTorch's).
  virtual void MaxPoolGradient(const MaxPooling& pooling, DataType type, const void* gradient,
                               const int64_t* places, void* out) const = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_PASS_MATH_H_
