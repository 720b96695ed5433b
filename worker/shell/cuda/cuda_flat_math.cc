#include "worker/shell/cuda/cuda_flat_math.h"

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include "worker/shell/compute/sum_of_squares.h"
#include "worker/shell/cuda/flat_formulas.h"
#include "worker/shell/cuda/flat_kernels.h"

namespace weft {
namespace {

static_assert(flat::kLimbs == SumOfSquares::kLimbs && flat::kNoNorm == SumOfSquares::kNoNorm);

std::vector<kernels::Piece> PiecesOf(const std::vector<FlatPiece>& pieces) {
  std::vector<kernels::Piece> plain;
  plain.reserve(pieces.size());
  for (const FlatPiece& p : pieces) plain.push_back({p.offset, p.n, p.data, p.type == DataType::kBFloat16});
  return plain;
}

}  // namespace

void CudaFlatMath::Zero(void* to, size_t bytes) const {
  C10_CUDA_CHECK(cudaMemsetAsync(to, 0, bytes, stream_()));
}

void CudaFlatMath::Copy(void* to, const void* from, size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_()));
}

void CudaFlatMath::Add(float* sum, const float* x, int64_t n) const {
  C10_CUDA_CHECK(kernels::Add(stream_(), sum, x, n));
}

void CudaFlatMath::AddPieces(const std::vector<FlatPiece>& pieces, float* sum) const {
  const std::vector<kernels::Piece> plain = PiecesOf(pieces);
  C10_CUDA_CHECK(kernels::AddPieces(stream_(), plain.data(), static_cast<int64_t>(plain.size()), sum));
}

void CudaFlatMath::WritePieces(const std::vector<FlatPiece>& pieces, float* out, int64_t elements) const {
  const std::vector<kernels::Piece> plain = PiecesOf(pieces);
  C10_CUDA_CHECK(
      kernels::WritePieces(stream_(), plain.data(), static_cast<int64_t>(plain.size()), out, elements));
}

void CudaFlatMath::Narrow(BFloat16* out, const float* x, int64_t n) const {
  static_assert(sizeof(BFloat16) == sizeof(uint16_t));
  C10_CUDA_CHECK(kernels::Narrow(stream_(), &out->bits, x, n));
}

void CudaFlatMath::Sgd(const SgdStep& step, const float* weights, float* out, const float* gradient,
                       float* momentum, const float* factor, int64_t n) const {
  C10_CUDA_CHECK(kernels::Sgd(stream_(), step, weights, out, gradient, momentum, factor, n));
}

void CudaFlatMath::AdamW(const AdamWStep& step, const float* weights, float* out, const float* gradient,
                         float* mean, float* square, const float* factor, int64_t n) const {
  C10_CUDA_CHECK(kernels::AdamW(stream_(), step, weights, out, gradient, mean, square, factor, n));
}

void CudaFlatMath::MoveAverage(const AverageStep& step, const float* average, float* out, const float* sum,
                               int64_t n) const {
  C10_CUDA_CHECK(kernels::MoveAverage(stream_(), step, average, out, sum, n));
}

void CudaFlatMath::AddSquares(uint64_t* limbs, const float* x, int64_t n) const {
  C10_CUDA_CHECK(kernels::AddSquares(stream_(), limbs, x, n));
}

void CudaFlatMath::AddSums(uint64_t* limbs, const uint64_t* other) const {
  C10_CUDA_CHECK(kernels::AddSums(stream_(), limbs, other));
}

void CudaFlatMath::ClipFactor(float* factor, const uint64_t* limbs, double most) const {
  C10_CUDA_CHECK(kernels::ClipFactor(stream_(), factor, limbs, most));
}

void CudaFlatMath::Drop(const DropoutMask& mask, const uint64_t* seed, const void* x, void* out, int64_t n,
                        DataType type) const {
  if (type == DataType::kBFloat16) {
    C10_CUDA_CHECK(kernels::DropNarrow(stream_(), mask, seed, static_cast<const uint16_t*>(x),
                                       static_cast<uint16_t*>(out), n));
  } else {
    C10_CUDA_CHECK(
        kernels::Drop(stream_(), mask, seed, static_cast<const float*>(x), static_cast<float*>(out), n));
  }
}

void CudaFlatMath::WriteNumbers(uint64_t* to, const uint64_t* numbers, int64_t count) const {
  C10_CUDA_CHECK(kernels::WriteNumbers(stream_(), to, numbers, count));
}

}  // namespace weft
