#include "worker/shell/compute/host_math.h"

#include <cstdlib>
#include <cstring>

#include "worker/shell/compute/elementwise.h"
#include "worker/shell/compute/sum_of_squares.h"

namespace weft {
namespace {

float FactorOf(const float* factor) { return factor == nullptr ? 1.0f : *factor; }

class Math final : public FlatMath {
 public:
  void Zero(void* to, size_t bytes) const override {
    if (bytes > 0) std::memset(to, 0, bytes);
  }
  void Copy(void* to, const void* from, size_t bytes) const override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  void Add(float* sum, const float* x, int64_t n) const override { AddInPlace(sum, x, n); }

  void AddPieces(const std::vector<FlatPiece>& pieces, float* sum) const override {
    for (const FlatPiece& piece : pieces) {
      if (piece.type == DataType::kBFloat16) {
        AddInPlace(sum + piece.offset, static_cast<const BFloat16*>(piece.data), piece.n);
      } else {
        AddInPlace(sum + piece.offset, static_cast<const float*>(piece.data), piece.n);
      }
    }
  }

  void WritePieces(const std::vector<FlatPiece>& pieces, float* out, int64_t elements) const override {
    int64_t at = 0;
    for (const FlatPiece& piece : pieces) {
      if (piece.offset < at) std::abort();
      Zero(out + at, static_cast<size_t>(piece.offset - at) * sizeof(float));
      if (piece.type == DataType::kBFloat16) {
        WidenBFloat16(out + piece.offset, static_cast<const BFloat16*>(piece.data), piece.n);
      } else {
        Copy(out + piece.offset, piece.data, static_cast<size_t>(piece.n) * sizeof(float));
      }
      at = piece.offset + piece.n;
    }
    Zero(out + at, static_cast<size_t>(elements - at) * sizeof(float));
  }

  void Narrow(BFloat16* out, const float* x, int64_t n) const override { NarrowToBFloat16(out, x, n); }

  void Sgd(const SgdStep& step, const float* weights, float* out, const float* gradient, float* momentum,
           const float* factor, int64_t n) const override {
    ApplySgd(step, weights, out, gradient, momentum, FactorOf(factor), n);
  }
  void AdamW(const AdamWStep& step, const float* weights, float* out, const float* gradient, float* mean,
             float* square, const float* factor, int64_t n) const override {
    ApplyAdamW(step, weights, out, gradient, mean, square, FactorOf(factor), n);
  }
  void MoveAverage(const AverageStep& step, const float* average, float* out, const float* sum,
                   int64_t n) const override {
    weft::MoveAverage(step, average, out, sum, n);
  }

  void AddSquares(uint64_t* limbs, const float* x, int64_t n) const override {
    SumOfSquares sum = SumOfSquares::FromLimbs(limbs);
    (void)sum.Add(x, n);  // the limbs say whether it has a norm
    sum.WriteLimbs(limbs);
  }
  void AddSums(uint64_t* limbs, const uint64_t* other) const override {
    SumOfSquares sum = SumOfSquares::FromLimbs(limbs);
    sum.Add(SumOfSquares::FromLimbs(other));
    sum.WriteLimbs(limbs);
  }
  void ClipFactor(float* factor, const uint64_t* limbs, double most) const override {
    *factor = weft::ClipFactor(SumOfSquares::FromLimbs(limbs).Norm(), most);
  }

  void Drop(const DropoutMask& mask, const uint64_t* seed, const void* x, void* out, int64_t n,
            DataType type) const override {
    DropoutMask own = mask;
    if (seed != nullptr) own.seed = *seed;
    if (type == DataType::kBFloat16) {
      weft::Drop(own, static_cast<const BFloat16*>(x), static_cast<BFloat16*>(out), n);
    } else {
      weft::Drop(own, static_cast<const float*>(x), static_cast<float*>(out), n);
    }
  }
  void WriteNumbers(uint64_t* to, const uint64_t* numbers, int64_t count) const override {
    Copy(to, numbers, static_cast<size_t>(count) * sizeof(uint64_t));
  }
};

}  // namespace

const FlatMath& HostMath() {
  static const Math* const math = new Math;
  return *math;
}

}  // namespace weft
