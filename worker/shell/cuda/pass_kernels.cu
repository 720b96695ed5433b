#include <algorithm>
#include <cmath>
#include <cstdint>

#include "worker/shell/cuda/flat_formulas.h"
#include "worker/shell/cuda/pass_kernels.h"
#include "worker/shell/cuda/vector_access.h"

namespace weft::kernels {
namespace {

// Returns numbers in float32, and rounds them to the type of the memory.
template <int L>
__device__ __forceinline__ Floats<L> LoadFloats(const float* at) {
  return Load<L>(at);
}
template <int L>
__device__ __forceinline__ Floats<L> LoadFloats(const uint16_t* at) {
  const Halves<L> from = Load<L>(at);
  Floats<L> to;
  for (int k = 0; k < L; ++k) to.v[k] = flat::Widen(from.v[k]);
  return to;
}
template <int L>
__device__ __forceinline__ void StoreFloats(float* at, const Floats<L>& values) {
  Store<L>(at, values);
}
template <int L>
__device__ __forceinline__ void StoreFloats(uint16_t* at, const Floats<L>& values) {
  Halves<L> to;
  for (int k = 0; k < L; ++k) to.v[k] = flat::Narrow(values.v[k]);
  Store<L>(at, to);
}

// ---- Cross entropy: a block a row. A row's bytes are read once each way.

constexpr int kRowThreads = 128;

// The sum of exp(x - most) over some scores, and the most of them: of none it is {-inf, 0}.
struct ExpSum {
  float most = -INFINITY, sum = 0;
};

__device__ __forceinline__ bool IsNan(float x) { return x != x; }

// Returns exp(x - most), where `most` is at least x; 0 for -inf, also of nothing but such.
__device__ __forceinline__ float ExpBelow(float x, float most) { return x == -INFINITY ? 0 : expf(x - most); }

__device__ __forceinline__ ExpSum Join(const ExpSum& a, const ExpSum& b) {
  ExpSum both;
  both.most = fmaxf(a.most, b.most);
  both.sum = a.sum * ExpBelow(a.most, both.most) + b.sum * ExpBelow(b.most, both.most);
  // A sum that is not a number has no scores below it to be scaled by.
  if (IsNan(a.sum) || IsNan(b.sum)) both.sum = NAN;
  return both;
}

template <int L>
__device__ __forceinline__ void AddScores(const Floats<L>& scores, ExpSum* total) {
  float most = total->most;
  for (int k = 0; k < L; ++k) most = fmaxf(most, scores.v[k]);
  float sum = total->sum * ExpBelow(total->most, most);
  for (int k = 0; k < L; ++k) sum += ExpBelow(scores.v[k], most);
  // fmaxf passes over what is not a number.
  for (int k = 0; k < L; ++k) sum = IsNan(scores.v[k]) ? NAN : sum;
  total->sum = IsNan(total->sum) ? NAN : sum;
  total->most = most;
}

template <typename Number>
__global__ void __launch_bounds__(kRowThreads)
    CrossEntropyKernel(const Number* scores, const int64_t classes, const bool wide, const int64_t* targets,
                       float* losses, float* log_sums) {
  __shared__ ExpSum sums[kRowThreads];
  const int t = static_cast<int>(threadIdx.x);
  const int64_t r = blockIdx.x;
  const Number* const row = scores + r * classes;
  ExpSum own;
  if (wide) {
    for (int64_t i = t * 4; i < classes; i += kRowThreads * 4) AddScores<4>(LoadFloats<4>(row + i), &own);
  } else {
    for (int64_t i = t; i < classes; i += kRowThreads) AddScores<1>(LoadFloats<1>(row + i), &own);
  }
  sums[t] = own;
  // The order of the sum depends on the number of classes alone.
  for (int half = kRowThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) sums[t] = Join(sums[t], sums[t + half]);
  }
  if (t != 0) return;
  const float log_sum = sums[0].most + logf(sums[0].sum);
  const int64_t target = targets[r];
  const bool known = target >= 0 && target < classes;
  log_sums[r] = log_sum;
  losses[r] = known ? log_sum - LoadFloats<1>(row + target).v[0] : NAN;
}

template <int L, typename Number>
__device__ __forceinline__ void WriteGradients(const Number* row, int64_t i, int64_t target, float log_sum,
                                               float scale, Number* out) {
  Floats<L> values = LoadFloats<L>(row + i);
  for (int k = 0; k < L; ++k)
    values.v[k] = (ExpBelow(values.v[k], log_sum) - (i + k == target ? 1.0f : 0.0f)) * scale;
  StoreFloats<L>(out + i, values);
}

template <typename Number>
__global__ void __launch_bounds__(kRowThreads)
    CrossEntropyGradientKernel(const Number* scores, const int64_t classes, const bool wide,
                               const int64_t* targets, const float* log_sums, const float* scale,
                               Number* out) {
  const int64_t r = blockIdx.x, target = targets[r];
  const Number* const row = scores + r * classes;
  Number* const to = out + r * classes;
  const float log_sum = log_sums[r], times = *scale;
  const int t = static_cast<int>(threadIdx.x);
  if (wide) {
    for (int64_t i = t * 4; i < classes; i += kRowThreads * 4)
      WriteGradients<4>(row, i, target, log_sum, times, to);
  } else {
    for (int64_t i = t; i < classes; i += kRowThreads) WriteGradients<1>(row, i, target, log_sum, times, to);
  }
}

// Returns true if groups of four of each row are aligned.
template <typename Number>
bool WideRows(const Number* rows, int64_t classes) {
  return classes % 4 == 0 && Aligned(rows, sizeof(Number) * 4);
}

// ---- Max pooling: a thread a few channels of a pixel, which looks at the windows over it.

constexpr int kPoolThreads = 256;

struct Window {
  int64_t first, end;
};
// Returns the windows of `out` that have the row, or column, `at`.
__device__ __forceinline__ Window WindowsOver(const MaxPooling& p, int64_t at, int64_t out) {
  const int64_t shifted = at + p.padding;
  const int64_t first = shifted < p.window ? 0 : (shifted - p.window) / p.stride + 1;
  const int64_t last = shifted / p.stride;
  return {first, last + 1 < out ? last + 1 : out};
}

template <int L, typename Number>
__global__ void __launch_bounds__(kPoolThreads)
    MaxPoolGradientKernel(const MaxPooling p, const int64_t count, const Number* gradient,
                          const int64_t* places, Number* out) {
  const int64_t number = int64_t{blockIdx.x} * kPoolThreads + threadIdx.x;
  if (number >= count) return;
  // Elements are numbered as they lie in the memory.
  const int64_t i = number * L;
  const int64_t per_pixel = p.channels_last ? p.channels : 1;
  const int64_t pixel = i / per_pixel;
  const int64_t x = pixel % p.columns, y = pixel / p.columns % p.rows;
  const int64_t plane = pixel / p.columns / p.rows;  // a sample's, of one channel where these are not last
  const int64_t place = y * p.columns + x;
  const Window down = WindowsOver(p, y, p.out_rows), right = WindowsOver(p, x, p.out_columns);
  Floats<L> sum{};
  for (int64_t oy = down.first; oy < down.end; ++oy) {
    for (int64_t ox = right.first; ox < right.end; ++ox) {
      const int64_t from = ((plane * p.out_rows + oy) * p.out_columns + ox) * per_pixel + i % per_pixel;
      const Floats<L> given = LoadFloats<L>(gradient + from);
      for (int k = 0; k < L; ++k) sum.v[k] += places[from + k] == place ? given.v[k] : 0.0f;
    }
  }
  StoreFloats<L>(out + i, sum);
}

}  // namespace

template <typename Number>
cudaError_t CrossEntropy(cudaStream_t stream, const Number* scores, int64_t rows, int64_t classes,
                         const int64_t* targets, float* losses, float* log_sums) {
  if (rows <= 0) return cudaSuccess;
  WEFT_LAUNCH(CrossEntropyKernel<Number>, static_cast<unsigned>(rows), kRowThreads, stream, scores, classes,
              WideRows(scores, classes), targets, losses, log_sums);
  return cudaGetLastError();
}

template <typename Number>
cudaError_t CrossEntropyGradient(cudaStream_t stream, const Number* scores, int64_t rows, int64_t classes,
                                 const int64_t* targets, const float* log_sums, const float* scale,
                                 Number* out) {
  if (rows <= 0) return cudaSuccess;
  WEFT_LAUNCH(CrossEntropyGradientKernel<Number>, static_cast<unsigned>(rows), kRowThreads, stream, scores,
              classes, WideRows(scores, classes) && WideRows(out, classes), targets, log_sums, scale, out);
  return cudaGetLastError();
}

template <typename Number>
cudaError_t MaxPoolGradient(cudaStream_t stream, const MaxPooling& pooling, const Number* gradient,
                            const int64_t* places, Number* out) {
  const int64_t elements = pooling.samples * pooling.channels * pooling.rows * pooling.columns;
  if (elements <= 0) return cudaSuccess;
  const bool wide =
      pooling.channels_last && WideRows(gradient, pooling.channels) && WideRows(out, pooling.channels);
  const int64_t count = wide ? elements / 4 : elements;
  const auto blocks = static_cast<unsigned>((count + kPoolThreads - 1) / kPoolThreads);
  if (wide) {
    WEFT_LAUNCH((MaxPoolGradientKernel<4, Number>), blocks, kPoolThreads, stream, pooling, count, gradient,
                places, out);
  } else {
    WEFT_LAUNCH((MaxPoolGradientKernel<1, Number>), blocks, kPoolThreads, stream, pooling, count, gradient,
                places, out);
  }
  return cudaGetLastError();
}

template cudaError_t CrossEntropy(cudaStream_t, const float*, int64_t, int64_t, const int64_t*, float*,
                                  float*);
template cudaError_t CrossEntropy(cudaStream_t, const uint16_t*, int64_t, int64_t, const int64_t*, float*,
                                  float*);
template cudaError_t CrossEntropyGradient(cudaStream_t, const float*, int64_t, int64_t, const int64_t*,
                                          const float*, const float*, float*);
template cudaError_t CrossEntropyGradient(cudaStream_t, const uint16_t*, int64_t, int64_t, const int64_t*,
                                          const float*, const float*, uint16_t*);
template cudaError_t MaxPoolGradient(cudaStream_t, const MaxPooling&, const float*, const int64_t*, float*);
template cudaError_t MaxPoolGradient(cudaStream_t, const MaxPooling&, const uint16_t*, const int64_t*,
                                     uint16_t*);

}  // namespace weft::kernels
