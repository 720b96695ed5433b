// Implements FlatMath on a GPU: enqueues kernels on the stream that the rank computes on (flat_kernels.h).
//
// Threads, failure: as FlatMath's; a launch that fails at once is a c10::Error, which stops where LibTorch's
// do.
#ifndef WEFT_WORKER_SHELL_CUDA_CUDA_FLAT_MATH_H_
#define WEFT_WORKER_SHELL_CUDA_CUDA_FLAT_MATH_H_

#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <utility>
#include <vector>

#include "worker/shell/compute/flat_math.h"
#include "worker/shell/cuda/cuda_pass_math.h"

namespace weft {

class CudaFlatMath final : public FlatMath {
 public:
  // `stream` returns the calling thread's stream.
  explicit CudaFlatMath(std::function<c10::cuda::CUDAStream()> stream)
      : stream_(std::move(stream)), pass_math_(stream_) {}

  const PassMath* pass_math() const override { return &pass_math_; }

  void Zero(void* to, size_t bytes) const override;
  void Copy(void* to, const void* from, size_t bytes) const override;
  void Add(float* sum, const float* x, int64_t n) const override;
  void AddPieces(const std::vector<FlatPiece>& pieces, float* sum) const override;
  void WritePieces(const std::vector<FlatPiece>& pieces, float* out, int64_t elements) const override;
  void Narrow(BFloat16* out, const float* x, int64_t n) const override;
  void Sgd(const SgdStep& step, const float* weights, float* out, const float* gradient, float* momentum,
           const float* factor, int64_t n) const override;
  void AdamW(const AdamWStep& step, const float* weights, float* out, const float* gradient, float* mean,
             float* square, const float* factor, int64_t n) const override;
  void MoveAverage(const AverageStep& step, const float* average, float* out, const float* sum,
                   int64_t n) const override;
  void AddSquares(uint64_t* limbs, const float* x, int64_t n) const override;
  void AddSums(uint64_t* limbs, const uint64_t* other) const override;
  void ClipFactor(float* factor, const uint64_t* limbs, double most) const override;
  void Drop(const DropoutMask& mask, const uint64_t* seed, const void* x, void* out, int64_t n,
            DataType type) const override;
  void WriteNumbers(uint64_t* to, const uint64_t* numbers, int64_t count) const override;

 private:
  const std::function<c10::cuda::CUDAStream()> stream_;
  const CudaPassMath pass_math_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_CUDA_FLAT_MATH_H_
