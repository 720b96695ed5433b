#include "worker/shell/compute/elementwise.h"

#include <bit>
#include <cmath>

// This file is compiled with -ffp-contract=off and -O3 (see CMakeLists.txt): the first keeps the bits the
// same at any vector width, the second makes the compiler use the vectors. Each kernel exists twice, for AVX2
// and for plain x86-64, and dropout for AVX-512 as well, which multiplies 64 bits; the processor decides.
#if defined(__x86_64__)
#define WEFT_AVX2 __attribute__((target("avx2")))
#define WEFT_AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl")))
#define WEFT_HAS_AVX2 1
#else
#define WEFT_AVX2
#define WEFT_AVX512
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

bool HasAvx512() {
#if WEFT_HAS_AVX2
  static const bool has = __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl");
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

// Returns true if all are finite. An exponent of ones alone is infinite or not a number: one more carries
// into the sign's place.
WEFT_INLINE bool Finite(const float* x, int64_t n) {
  uint32_t carried = 0;
  for (int64_t i = 0; i < n; ++i)
    carried |= (std::bit_cast<uint32_t>(x[i]) & 0x7fffffff) + (uint32_t{1} << 23);
  return carried >> 31 == 0;
}
bool FinitePlain(const float* x, int64_t n) { return Finite(x, n); }
WEFT_AVX2 bool FiniteAvx2(const float* x, int64_t n) { return Finite(x, n); }

WEFT_INLINE float Widened(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
WEFT_INLINE BFloat16 Narrowed(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const bool none = (bits & 0x7fffffff) > 0x7f800000;
  return {none ? uint16_t{0x7fc0} : static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

WEFT_INLINE void AddNarrow(float* __restrict sum, const BFloat16* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += Widened(x[i]);
}
void AddNarrowPlain(float* sum, const BFloat16* x, int64_t n) { AddNarrow(sum, x, n); }
WEFT_AVX2 void AddNarrowAvx2(float* sum, const BFloat16* x, int64_t n) { AddNarrow(sum, x, n); }

// `w` and `out` may be one buffer, so they are not __restrict; the pragma says that iterations are
// independent.
#if defined(__clang__)
#define WEFT_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define WEFT_INDEPENDENT _Pragma("GCC ivdep")
#endif

WEFT_INLINE void Sgd(const SgdStep s, const float* w, float* out, const float* g, float* m, float factor,
                     int64_t n) {
  if (s.momentum == 0) {
    WEFT_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) out[i] = w[i] - s.lr * (g[i] * factor + s.weight_decay * w[i]);
  } else if (s.first) {
    WEFT_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const float d = g[i] * factor + s.weight_decay * w[i];
      m[i] = d;
      out[i] = w[i] - s.lr * d;
    }
  } else {
    WEFT_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const float d = s.momentum * m[i] + (g[i] * factor + s.weight_decay * w[i]);
      m[i] = d;
      out[i] = w[i] - s.lr * d;
    }
  }
}
void SgdPlain(const SgdStep& s, const float* w, float* out, const float* g, float* m, float factor,
              int64_t n) {
  Sgd(s, w, out, g, m, factor, n);
}
WEFT_AVX2 void SgdAvx2(const SgdStep& s, const float* w, float* out, const float* g, float* m, float factor,
                       int64_t n) {
  Sgd(s, w, out, g, m, factor, n);
}

WEFT_INLINE void AdamW(const AdamWStep s, const float* w, float* out, const float* g, float* m, float* v,
                       float factor, int64_t n) {
  WEFT_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) {
    const float d = g[i] * factor;
    const float mean = m[i] * s.beta1 + d * s.one_minus_beta1;
    const float square = v[i] * s.beta2 + (d * d) * s.one_minus_beta2;
    m[i] = mean;
    v[i] = square;
    const float scale = __builtin_sqrtf(square) / s.root_bias_correction + s.eps;
    out[i] = w[i] * s.keep - s.step_size * (mean / scale);
  }
}
void AdamWPlain(const AdamWStep& s, const float* w, float* out, const float* g, float* m, float* v,
                float factor, int64_t n) {
  AdamW(s, w, out, g, m, v, factor, n);
}
WEFT_AVX2 void AdamWAvx2(const AdamWStep& s, const float* w, float* out, const float* g, float* m, float* v,
                         float factor, int64_t n) {
  AdamW(s, w, out, g, m, v, factor, n);
}

// Returns the upper 32 bits of SplitMix64's number i.
WEFT_INLINE uint32_t RandomBits(uint64_t seed, int64_t i) {
  uint64_t z = seed + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
}

// Multiplies also where the mask is 0: the result has x's sign, and a NaN stays one.
WEFT_INLINE float Dropped(const DropoutMask& m, int64_t i, float x) {
  return x * (RandomBits(m.seed, i) < m.threshold ? 0.0f : m.keep);
}
WEFT_INLINE BFloat16 Dropped(const DropoutMask& m, int64_t i, BFloat16 x) {
  return Narrowed(Dropped(m, i, Widened(x)));
}

template <typename Number>
WEFT_INLINE void DropAll(const DropoutMask m, const Number* x, Number* out, int64_t n) {
  WEFT_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) out[i] = Dropped(m, i, x[i]);
}
template <typename Number>
void DropPlain(const DropoutMask& m, const Number* x, Number* out, int64_t n) {
  DropAll(m, x, out, n);
}
template <typename Number>
WEFT_AVX2 void DropAvx2(const DropoutMask& m, const Number* x, Number* out, int64_t n) {
  DropAll(m, x, out, n);
}
template <typename Number>
WEFT_AVX512 void DropAvx512(const DropoutMask& m, const Number* x, Number* out, int64_t n) {
  DropAll(m, x, out, n);
}
template <typename Number>
void DropWidest(const DropoutMask& m, const Number* x, Number* out, int64_t n) {
  HasAvx512() ? DropAvx512(m, x, out, n) : HasAvx2() ? DropAvx2(m, x, out, n) : DropPlain(m, x, out, n);
}

}  // namespace

bool AllFinite(const float* x, int64_t n) { return HasAvx2() ? FiniteAvx2(x, n) : FinitePlain(x, n); }

void AddInPlace(float* sum, const float* x, int64_t n) {
  HasAvx2() ? AddAvx2(sum, x, n) : AddPlain(sum, x, n);
}

void AddInPlace(float* sum, const BFloat16* x, int64_t n) {
  HasAvx2() ? AddNarrowAvx2(sum, x, n) : AddNarrowPlain(sum, x, n);
}

void NarrowToBFloat16(BFloat16* out, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = Narrowed(x[i]);
}

void WidenBFloat16(float* out, const BFloat16* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = Widened(x[i]);
}

void ApplySgd(const SgdStep& step, const float* weights, float* out, const float* gradient, float* momentum,
              float factor, int64_t n) {
  HasAvx2() ? SgdAvx2(step, weights, out, gradient, momentum, factor, n)
            : SgdPlain(step, weights, out, gradient, momentum, factor, n);
}

void ApplyAdamW(const AdamWStep& step, const float* weights, float* out, const float* gradient, float* mean,
                float* square, float factor, int64_t n) {
  HasAvx2() ? AdamWAvx2(step, weights, out, gradient, mean, square, factor, n)
            : AdamWPlain(step, weights, out, gradient, mean, square, factor, n);
}

void MoveAverage(const AverageStep& step, const float* average, float* out, const float* sum, int64_t n) {
  const float keep = 1 - step.momentum;
  WEFT_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) out[i] = average[i] * keep + (sum[i] / step.count) * step.momentum;
}

void Drop(const DropoutMask& mask, const float* x, float* out, int64_t n) { DropWidest(mask, x, out, n); }

void Drop(const DropoutMask& mask, const BFloat16* x, BFloat16* out, int64_t n) {
  DropoutMask narrow = mask;
  narrow.keep = Widened(Narrowed(mask.keep));
  DropWidest(narrow, x, out, n);
}

}  // namespace weft
