// Computes on flat buffers, element by element: sums of gradients, optimizer steps and dropout.
//
// Each element's result depends on that element's inputs alone and on a fixed sequence of IEEE operations (no
// fused multiply-add, no reordering), so a slice gives the same bits as the whole, on any x86-64, at any
// vector width. `out` may be the same buffer as an input, or disjoint from it; nothing else may overlap.
#ifndef WEFT_WORKER_SHELL_COMPUTE_ELEMENTWISE_H_
#define WEFT_WORKER_SHELL_COMPUTE_ELEMENTWISE_H_

#include <cstdint>

namespace weft {

// The upper half of a float32's bits.
struct BFloat16 {
  uint16_t bits;
};

// Returns true if no element is infinite or not a number.
bool AllFinite(const float* x, int64_t n);

// Adds: sum[i] += x[i].
void AddInPlace(float* sum, const float* x, int64_t n);
void AddInPlace(float* sum, const BFloat16* x, int64_t n);

// Round to the nearest, ties to even (a NaN becomes 0x7fc0); and convert back, exactly.
void NarrowToBFloat16(BFloat16* out, const float* x, int64_t n);
void WidenBFloat16(float* out, const BFloat16* x, int64_t n);

struct SgdStep {
  float lr, momentum, weight_decay;
  bool first;  // true while there is no momentum yet: it begins as the gradient
};
// Computes torch.optim.SGD, of gradients that are multiplied by `factor` before anything else. `momentum` may
// be null where step.momentum is 0.
void ApplySgd(const SgdStep& step, const float* weights, float* out, const float* gradient, float* momentum,
              float factor, int64_t n);

struct AdamWStep {
  float keep;  // 1 - lr * weight_decay
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float eps;
  float step_size;             // lr / (1 - beta1^t)
  float root_bias_correction;  // sqrt(1 - beta2^t)
};
// Computes torch.optim.AdamW without amsgrad; `factor` as in ApplySgd.
void ApplyAdamW(const AdamWStep& step, const float* weights, float* out, const float* gradient, float* mean,
                float* square, float factor, int64_t n);

struct AverageStep {
  float momentum;
  float count;  // number of summed measurements
};
// Computes out = average * (1 - momentum) + (sum / count) * momentum.
void MoveAverage(const AverageStep& step, const float* average, float* out, const float* sum, int64_t n);

// The mask of a dropout: element i is 0 where the upper 32 bits of number i that SplitMix64 makes from `seed`
// are below `threshold`, and `keep` elsewhere. So an element's fate depends on the seed and its number only.
struct DropoutMask {
  uint32_t threshold;  // p * 2^32
  float keep;          // 1 / (1 - p)
  uint64_t seed;
};
// Computes out[i] = x[i] * mask[i]. In bfloat16 the mask is rounded to that, and so is the product.
void Drop(const DropoutMask& mask, const float* x, float* out, int64_t n);
void Drop(const DropoutMask& mask, const BFloat16* x, BFloat16* out, int64_t n);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_ELEMENTWISE_H_
