// Masks of dropout: 0 or 1/(1-p), by a counter-based generator, so that an element's fate depends on the seed
// and its number only, on every device.
//
// Private to the adapter of LibTorch. Thread-safe.
#ifndef WEFT_WORKER_SHELL_COMPUTE_DROPOUT_H_
#define WEFT_WORKER_SHELL_COMPUTE_DROPOUT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace weft {

// x times its mask. Requires 0 <= p < 1.
at::Tensor Drop(const at::Tensor& x, double p, uint64_t seed);

// The mask, float32, contiguous: in a loop on the host, and by LibTorch's operations on any device. The same
// bits.
at::Tensor MaskOnHost(at::IntArrayRef sizes, double p, uint64_t seed);
at::Tensor MaskByOperations(at::IntArrayRef sizes, double p, uint64_t seed, c10::Device device);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_DROPOUT_H_
