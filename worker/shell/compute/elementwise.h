// Arithmetic on flat float32 buffers, element by element: sums of gradients and optimizer steps.
//
// Each element's result depends on that element's inputs alone and on a fixed sequence of IEEE operations (no
// fused multiply-add, no reordering), so a slice gives the same bits as the whole, on any x86-64, at any
// vector width. `out` may be the same buffer as an input, or disjoint from it; nothing else may overlap.
#ifndef WEFT_WORKER_SHELL_COMPUTE_ELEMENTWISE_H_
#define WEFT_WORKER_SHELL_COMPUTE_ELEMENTWISE_H_

#include <cstdint>

namespace weft {

// sum[i] += x[i]
void AddInPlace(float* sum, const float* x, int64_t n);

struct SgdStep {
  float lr, momentum, weight_decay;
  bool first;                 // no momentum yet: it begins as the gradient
  float gradient_factor = 1;  // what gradients are multiplied by before anything else
};
// As torch.optim.SGD. `momentum` may be null where step.momentum is 0.
void ApplySgd(const SgdStep& step, const float* weights, float* out, const float* gradient, float* momentum,
              int64_t n);

struct AdamWStep {
  float keep;  // 1 - lr * weight_decay
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float eps;
  float step_size;             // lr / (1 - beta1^t)
  float root_bias_correction;  // sqrt(1 - beta2^t)
  float gradient_factor = 1;
};
// As torch.optim.AdamW without amsgrad.
void ApplyAdamW(const AdamWStep& step, const float* weights, float* out, const float* gradient, float* mean,
                float* square, int64_t n);

struct AverageStep {
  float momentum;
  float count;  // of what was summed
};
// out = average * (1 - momentum) + (sum / count) * momentum
void MoveAverage(const AverageStep& step, const float* average, float* out, const float* sum, int64_t n);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_ELEMENTWISE_H_
