// Computes scores on a GPU in more columns than there are classes.
//
// Products with the 50,257 columns of GPT-2 took 5.8 times as long as those with 50,304 (bfloat16, H100). So
// the matrix has as many rows of zeros behind its own as the GPU's matrix units need for whole accesses.
// Scores there are minus infinity, which has no part in a loss, and no gradient. The longer matrix is made
// anew by the backward: no micro-batch keeps one.
//
// Private to the adapter of LibTorch. Threads: as of the pass.
#ifndef WEFT_WORKER_SHELL_TORCH_WIDE_PRODUCT_H_
#define WEFT_WORKER_SHELL_TORCH_WIDE_PRODUCT_H_

#include <ATen/core/Tensor.h>

namespace weft {

// Returns the product of x [.., width] and the transposed projection [classes, width], of
// ScoreColumnsOnGpu(classes) columns.
at::Tensor WideProduct(const at::Tensor& x, const at::Tensor& projection);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_WIDE_PRODUCT_H_
