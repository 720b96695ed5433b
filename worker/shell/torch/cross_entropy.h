// Computes the loss of scores.
//
// Private to the adapter of LibTorch. Threads: as of the pass. A graph holds the address of `math`, which
// outlives it.
#ifndef WEFT_WORKER_SHELL_TORCH_CROSS_ENTROPY_H_
#define WEFT_WORKER_SHELL_TORCH_CROSS_ENTROPY_H_

#include <ATen/core/Tensor.h>

#include "worker/shell/compute/flat_math.h"

namespace weft {

// Returns the mean cross entropy of scores [rows, classes] by their targets [rows], in float32. A device with
// kernels of its own (pass_math.h) reads the scores once each way; LibTorch's operations make four float32
// copies of them. `math` may be null: LibTorch's then.
at::Tensor Loss(const at::Tensor& scores, const at::Tensor& targets, const FlatMath* math);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_CROSS_ENTROPY_H_
