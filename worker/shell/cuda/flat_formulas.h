// Defines FlatMath's arithmetic on one element, and on the limbs of a sum of squares, for the host and for a
// GPU.
//
// The formulas are elementwise.cc's and sum_of_squares.cc's, operation by operation. A test compares them on
// the host, bit by bit, so that only one question remains for a GPU: whether it rounds as IEEE 754 says. It
// does if the compiler has these flags (weft_exact_arithmetic): no contraction to fused multiply-adds
// (-fmad=false), division and square root correctly rounded (-prec-div, -prec-sqrt), denormals kept
// (-ftz=false). Only the bits of a NaN that comes of a NaN may differ. C++17, since nvcc compiles it;
// includes nothing that needs more. Pure.
#ifndef WEFT_WORKER_SHELL_CUDA_FLAT_FORMULAS_H_
#define WEFT_WORKER_SHELL_CUDA_FLAT_FORMULAS_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "worker/shell/compute/elementwise.h"

#if defined(__CUDACC__)
#define WEFT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define WEFT_HOST_DEVICE inline
#endif

namespace weft::flat {

// ---- Optimizer steps. `factor` multiplies gradients before anything else.

struct SgdElement {
  float weight, momentum;
};
WEFT_HOST_DEVICE SgdElement ApplySgd(const SgdStep& s, float w, float g, float m, float factor) {
  const float direction = g * factor + s.weight_decay * w;
  const float d = s.momentum == 0 || s.first ? direction : s.momentum * m + direction;
  return {w - s.lr * d, d};
}

struct AdamWElement {
  float weight, mean, square;
};
WEFT_HOST_DEVICE AdamWElement ApplyAdamW(const AdamWStep& s, float w, float g, float m, float v,
                                         float factor) {
  const float d = g * factor;
  const float mean = m * s.beta1 + d * s.one_minus_beta1;
  const float square = v * s.beta2 + (d * d) * s.one_minus_beta2;
  const float scale = sqrtf(square) / s.root_bias_correction + s.eps;
  return {w * s.keep - s.step_size * (mean / scale), mean, square};
}

WEFT_HOST_DEVICE float MoveAverage(const AverageStep& s, float average, float sum) {
  const float keep = 1 - s.momentum;
  return average * keep + (sum / s.count) * s.momentum;
}

// ---- bfloat16: the upper half of a float32.

WEFT_HOST_DEVICE uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
WEFT_HOST_DEVICE float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
WEFT_HOST_DEVICE float Widen(uint16_t bits) { return FloatOf(static_cast<uint32_t>(bits) << 16); }
// Rounds to the nearest, ties to even; a NaN becomes 0x7fc0.
WEFT_HOST_DEVICE uint16_t Narrow(float x) {
  const uint32_t bits = BitsOf(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// ---- Dropout.

// Returns the upper 32 bits of SplitMix64's number i.
WEFT_HOST_DEVICE uint32_t RandomBits(uint64_t seed, int64_t i) {
  uint64_t z = seed + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
}
// Multiplies also where the mask is 0: the result has x's sign, and a NaN stays one.
WEFT_HOST_DEVICE float Drop(const DropoutMask& mask, int64_t i, float x) {
  return x * (RandomBits(mask.seed, i) < mask.threshold ? 0.0f : mask.keep);
}
// Drops in bfloat16, which mask.keep is too.
WEFT_HOST_DEVICE uint16_t Drop(const DropoutMask& mask, int64_t i, uint16_t x) {
  return Narrow(Drop(mask, i, Widen(x)));
}

// ---- The exact sum of squares (sum_of_squares.h): the sum of limbs[i] * 2^(32 * i - 298).

constexpr int kLimbs = 20;
constexpr uint64_t kLimbMask = 0xffffffff;
// The last limb of a sum with an infinite value or a NaN: {0, .., 0, kNoNorm}. No sum of numbers comes near
// that.
constexpr uint64_t kNoNorm = ~uint64_t{0};
// The limbs that squares are added to: the square of a float32 touches three neighbouring limbs below this
// one; those above get carries alone.
constexpr int kSquareLimbs = 18;

// The square of a float32: parts[j], below 2^32 each, goes to limb `limb` + j.
struct Square {
  int limb;
  uint32_t parts[3];
  bool finite;
};
WEFT_HOST_DEVICE Square SquareOf(float x) {
  const uint32_t bits = BitsOf(x);
  const int exponent = static_cast<int>((bits >> 23) & 0xff);
  const uint64_t mantissa = (bits & 0x7fffff) | (exponent != 0 ? 0x800000u : 0u);
  const uint64_t value = mantissa * mantissa;  // below 2^48
  // x is mantissa * 2^(exponent - 150), where denormals have the scale of exponent 1.
  const int shift = 2 * (exponent != 0 ? exponent : 1) - 2;
  const uint64_t low = (value & kLimbMask) << (shift % 32), high = (value >> 32) << (shift % 32);
  // The middle part is a sum of one below 2^31 and one below 2^32 of which the bits do not overlap.
  return {shift / 32,
          {static_cast<uint32_t>(low), static_cast<uint32_t>((low >> 32) + (high & kLimbMask)),
           static_cast<uint32_t>(high >> 32)},
          exponent != 255};
}

WEFT_HOST_DEVICE void Carry(uint64_t* limbs) {
  if (limbs[kLimbs - 1] == kNoNorm) {
    for (int i = 0; i < kLimbs - 1; ++i) limbs[i] = 0;
    return;
  }
  uint64_t carry = 0;
  for (int i = 0; i < kLimbs; ++i) {
    const uint64_t limb = limbs[i] + carry;
    carry = limb >> 32;
    limbs[i] = limb & kLimbMask;
  }
}

// Adds carried limbs; the result is carried, too.
WEFT_HOST_DEVICE void AddLimbs(uint64_t* limbs, const uint64_t* other) {
  if (limbs[kLimbs - 1] == kNoNorm || other[kLimbs - 1] == kNoNorm) {
    limbs[kLimbs - 1] = kNoNorm;
  } else {
    for (int i = 0; i < kLimbs; ++i) limbs[i] += other[i];
  }
  Carry(limbs);
}

// Returns the double nearest to the sum, ties to even.
WEFT_HOST_DEVICE double ValueOf(const uint64_t* limbs) {
  int top = kLimbs - 1;
  while (top >= 0 && limbs[top] == 0) --top;
  if (top < 0) return 0;
  const uint64_t first = limbs[top], second = top >= 1 ? limbs[top - 1] : 0,
                 third = top >= 2 ? limbs[top - 2] : 0;
  int zeros = 0;
  while ((first << zeros & 0x80000000u) == 0) ++zeros;
  // These are the first 64 bits, and in the last of them whether anything follows: rounding to 53 bits sees
  // no more.
  const uint64_t next = third << zeros;
  uint64_t head = ((first << 32 | second) << zeros) | (next >> 32);
  bool more = (next & kLimbMask) != 0;
  for (int i = top - 3; i >= 0; --i) more = more || limbs[i] != 0;
  if (more) head |= 1;
  return ldexp(static_cast<double>(head), 32 * (top - 1) - zeros - 298);
}

// Returns the factor of sum_of_squares.h for the norm of the sum; 1 where there is none.
WEFT_HOST_DEVICE float ClipFactor(const uint64_t* limbs, double most) {
  if (limbs[kLimbs - 1] == kNoNorm) return 1.0f;
  const double norm = sqrt(ValueOf(limbs));
  return norm > most ? static_cast<float>(most / norm) : 1.0f;
}

}  // namespace weft::flat

#endif  // WEFT_WORKER_SHELL_CUDA_FLAT_FORMULAS_H_
