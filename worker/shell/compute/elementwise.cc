#include "worker/shell/compute/elementwise.h"

#include <cmath>

// Compiled with -ffp-contract=off and -O3 (see CMakeLists.txt): the first keeps the bits the same at any
// vector width, the second makes the compiler use the vectors. Each kernel exists twice, for AVX2 and for
// plain x86-64; the processor decides.
#if defined(__x86_64__)
#define WEFT_AVX2 __attribute__((target("avx2")))
#define WEFT_HAS_AVX2 1
#else
#define WEFT_AVX2
#define WEFT_HAS_AVX2 0
#endif
#define WEFT_INLINE inline __attribute__((always_inline))

namespace weft {
namespace {

bool HasAvx2() {
#if WEFT_HAS_AVX2
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
#else
  return false;
#endif
}

WEFT_INLINE void Add(float* __restrict sum, const float* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}
void AddPlain(float* sum, const float* x, int64_t n) { Add(sum, x, n); }
WEFT_AVX2 void AddAvx2(float* sum, const float* x, int64_t n) { Add(sum, x, n); }

// `w` and `out` may be one buffer, so they are not __restrict; the pragma says that iterations are
// independent.
#if defined(__clang__)
#define WEFT_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define WEFT_INDEPENDENT _Pragma("GCC ivdep")
#endif

WEFT_INLINE void Sgd(const SgdStep s, const float* w, float* out, const float* g, float* m, int64_t n) {
  if (s.momentum == 0) {
    WEFT_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) out[i] = w[i] - s.lr * (g[i] * s.gradient_factor + s.weight_decay * w[i]);
  } else if (s.first) {
    WEFT_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const float d = g[i] * s.gradient_factor + s.weight_decay * w[i];
      m[i] = d;
      out[i] = w[i] - s.lr * d;
    }
  } else {
    WEFT_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const float d = s.momentum * m[i] + (g[i] * s.gradient_factor + s.weight_decay * w[i]);
      m[i] = d;
      out[i] = w[i] - s.lr * d;
    }
  }
}
void SgdPlain(const SgdStep& s, const float* w, float* out, const float* g, float* m, int64_t n) {
  Sgd(s, w, out, g, m, n);
}
WEFT_AVX2 void SgdAvx2(const SgdStep& s, const float* w, float* out, const float* g, float* m, int64_t n) {
  Sgd(s, w, out, g, m, n);
}

WEFT_INLINE void AdamW(const AdamWStep s, const float* w, float* out, const float* g, float* m, float* v,
                       int64_t n) {
  WEFT_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) {
    const float d = g[i] * s.gradient_factor;
    const float mean = m[i] * s.beta1 + d * s.one_minus_beta1;
    const float square = v[i] * s.beta2 + (d * d) * s.one_minus_beta2;
    m[i] = mean;
    v[i] = square;
    const float scale = __builtin_sqrtf(square) / s.root_bias_correction + s.eps;
    out[i] = w[i] * s.keep - s.step_size * (mean / scale);
  }
}
void AdamWPlain(const AdamWStep& s, const float* w, float* out, const float* g, float* m, float* v,
                int64_t n) {
  AdamW(s, w, out, g, m, v, n);
}
WEFT_AVX2 void AdamWAvx2(const AdamWStep& s, const float* w, float* out, const float* g, float* m, float* v,
                         int64_t n) {
  AdamW(s, w, out, g, m, v, n);
}

}  // namespace

void AddInPlace(float* sum, const float* x, int64_t n) {
  HasAvx2() ? AddAvx2(sum, x, n) : AddPlain(sum, x, n);
}

void ApplySgd(const SgdStep& step, const float* weights, float* out, const float* gradient, float* momentum,
              int64_t n) {
  HasAvx2() ? SgdAvx2(step, weights, out, gradient, momentum, n)
            : SgdPlain(step, weights, out, gradient, momentum, n);
}

void ApplyAdamW(const AdamWStep& step, const float* weights, float* out, const float* gradient, float* mean,
                float* square, int64_t n) {
  HasAvx2() ? AdamWAvx2(step, weights, out, gradient, mean, square, n)
            : AdamWPlain(step, weights, out, gradient, mean, square, n);
}

void MoveAverage(const AverageStep& step, const float* average, float* out, const float* sum, int64_t n) {
  const float keep = 1 - step.momentum;
  WEFT_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) out[i] = average[i] * keep + (sum[i] / step.count) * step.momentum;
}

}  // namespace weft
