// Computes the maximum over 3x3 of an image with stride 2, padded by 1, with a backward that is deterministic
// on every device. Private to the adapter of LibTorch.
//
// LibTorch's own backward adds each gradient to the place of its maximum; on a GPU many threads do so at
// once, in any order. A device with kernels of its own (pass_math.h) has one for it. On others the gradients
// are added in nine whole-image operations, one for each place of a
// window, from the last to the first. So an element's gradients from its windows are added from the first
// window to the last, as LibTorch does on the CPU, and all bits are the same.
#ifndef WEFT_WORKER_SHELL_TORCH_MAX_POOL_H_
#define WEFT_WORKER_SHELL_TORCH_MAX_POOL_H_

#include <ATen/core/Tensor.h>

#include "worker/shell/compute/flat_math.h"

namespace weft {

// Pools `images`: [samples, channels, rows, columns]. `math`, of the images' device, may be null where that
// has no kernels of its own.
at::Tensor MaxPool(const at::Tensor& images, const FlatMath* math);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_MAX_POOL_H_
