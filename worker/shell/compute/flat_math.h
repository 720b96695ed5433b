// Declares arithmetic on flat buffers in the memory of one device: gradients' sums, optimizer steps, norms,
// dropout, and the way between float32 and bfloat16.
//
// Each element's result depends on that element's inputs alone and on the sequence of IEEE operations that
// elementwise.h names (no fused multiply-add), so every device gives the same bits from the same values, and
// a slice those of the whole. Calls enqueue work behind the earlier work of the calling thread, and return.
// Pointers are of the device's memory, aligned to their elements; `out` may be the same buffer as an input,
// or disjoint from it; nothing else may overlap. Threads: as the rank's jobs (compute.h). Failure: of the
// device, known when its work is awaited.
#ifndef WEFT_WORKER_SHELL_COMPUTE_FLAT_MATH_H_
#define WEFT_WORKER_SHELL_COMPUTE_FLAT_MATH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/shell/compute/elementwise.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

// A piece of a gradient: `n` elements of `type` (float32 or bfloat16) for `offset` of the flat buffer.
// Between pieces, which are ascending and disjoint, the gradient is zero.
struct FlatPiece {
  int64_t offset = 0, n = 0;
  const void* data = nullptr;
  DataType type = DataType::kFloat32;
};

class PassMath;

class FlatMath {
 public:
  virtual ~FlatMath() = default;

  // Returns the device's own operations of passes (pass_math.h); null where LibTorch's serve.
  virtual const PassMath* pass_math() const { return nullptr; }

  virtual void Zero(void* to, size_t bytes) const = 0;
  virtual void Copy(void* to, const void* from, size_t bytes) const = 0;

  // Adds: sum[i] += x[i].
  virtual void Add(float* sum, const float* x, int64_t n) const = 0;
  // AddPieces adds pieces; WritePieces makes `out` of `elements` elements of them, with zeros between.
  virtual void AddPieces(const std::vector<FlatPiece>& pieces, float* sum) const = 0;
  virtual void WritePieces(const std::vector<FlatPiece>& pieces, float* out, int64_t elements) const = 0;
  // Rounds to the nearest, ties to even; a NaN becomes 0x7fc0.
  virtual void Narrow(BFloat16* out, const float* x, int64_t n) const = 0;

  // Apply an optimizer step. `factor`: one float of the device's memory, by which gradients are multiplied
  // before anything else; null for 1.
  virtual void Sgd(const SgdStep& step, const float* weights, float* out, const float* gradient,
                   float* momentum, const float* factor, int64_t n) const = 0;
  virtual void AdamW(const AdamWStep& step, const float* weights, float* out, const float* gradient,
                     float* mean, float* square, const float* factor, int64_t n) const = 0;
  virtual void MoveAverage(const AverageStep& step, const float* average, float* out, const float* sum,
                           int64_t n) const = 0;

  // AddSquares adds the exact squares of x to `limbs`: SumOfSquares::kBytes of the device's memory
  // (sum_of_squares.h), carried. A value that is infinite or not a number makes the sum one without a norm
  // (SumOfSquares::kNoNorm). AddSums adds another such sum.
  virtual void AddSquares(uint64_t* limbs, const float* x, int64_t n) const = 0;
  virtual void AddSums(uint64_t* limbs, const uint64_t* other) const = 0;
  // Computes *factor = ClipFactor(norm of the sum, most).
  virtual void ClipFactor(float* factor, const uint64_t* limbs, double most) const = 0;

  // Computes out[i] = x[i] * mask[i], both of `type` (float32 or bfloat16). `seed`: one number of the
  // device's memory, which the work reads when it is done, in place of the mask's; null for the mask's.
  virtual void Drop(const DropoutMask& mask, const uint64_t* seed, const void* x, void* out, int64_t n,
                    DataType type) const = 0;
  // Writes numbers. `numbers` are the host's, and not needed any more when this returns.
  virtual void WriteNumbers(uint64_t* to, const uint64_t* numbers, int64_t count) const = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_FLAT_MATH_H_
