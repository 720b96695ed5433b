// Declares the kernels behind CudaFlatMath, as functions that enqueue them on a stream.
//
// This is the seam between C++20 and nvcc's code: plain types, C++17. Each function returns the result of the
// launch, at once. Pointers are of the device's memory; n may be 0.
#ifndef WEFT_WORKER_SHELL_CUDA_FLAT_KERNELS_H_
#define WEFT_WORKER_SHELL_CUDA_FLAT_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/shell/compute/elementwise.h"

namespace weft::kernels {

cudaError_t Add(cudaStream_t stream, float* sum, const float* x, int64_t n);

// A FlatPiece: `n` elements for `offset` of a flat buffer.
struct Piece {
  int64_t offset = 0, n = 0;
  const void* data = nullptr;
  bool bfloat16 = false;
};
// Adds: sum[offset + i] += data[i] of each piece. `pieces` is host memory, and not needed any more when these
// return. Ascending and disjoint.
cudaError_t AddPieces(cudaStream_t stream, const Piece* pieces, int64_t count, float* sum);
// Writes out[offset + i] = data[i], and zeros everywhere else in `out`.
cudaError_t WritePieces(cudaStream_t stream, const Piece* pieces, int64_t count, float* out,
                        int64_t elements);

cudaError_t Narrow(cudaStream_t stream, uint16_t* out, const float* x, int64_t n);

// `factor` may be null.
cudaError_t Sgd(cudaStream_t stream, const SgdStep& step, const float* weights, float* out,
                const float* gradient, float* momentum, const float* factor, int64_t n);
cudaError_t AdamW(cudaStream_t stream, const AdamWStep& step, const float* weights, float* out,
                  const float* gradient, float* mean, float* square, const float* factor, int64_t n);
cudaError_t MoveAverage(cudaStream_t stream, const AverageStep& step, const float* average, float* out,
                        const float* sum, int64_t n);

cudaError_t AddSquares(cudaStream_t stream, uint64_t* limbs, const float* x, int64_t n);
cudaError_t AddSums(cudaStream_t stream, uint64_t* limbs, const uint64_t* other);
cudaError_t ClipFactor(cudaStream_t stream, float* factor, const uint64_t* limbs, double most);

// `seed` may be null; else the mask's seed is read from it.
cudaError_t Drop(cudaStream_t stream, const DropoutMask& mask, const uint64_t* seed, const float* x,
                 float* out, int64_t n);
cudaError_t DropNarrow(cudaStream_t stream, const DropoutMask& mask, const uint64_t* seed, const uint16_t* x,
                       uint16_t* out, int64_t n);
// `numbers` is host memory, and not needed any more when this returns.
cudaError_t WriteNumbers(cudaStream_t stream, uint64_t* to, const uint64_t* numbers, int64_t count);

}  // namespace weft::kernels

#endif  // WEFT_WORKER_SHELL_CUDA_FLAT_KERNELS_H_
