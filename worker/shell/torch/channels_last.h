// Puts images' channels last in memory, where a GPU's convolutions are fast so.
//
// Tensor cores read the channels of a pixel together. cuDNN copies images whose channels are not last before
// and behind each convolution, which costs as much as the convolutions of a ResNet (in bfloat16, H100).
//
// The layout is the same on both sides of each layer, forward and backward, however stages are cut: kernels
// are chosen by layouts, and bits come of kernels.
//
// Private to the adapter of LibTorch. Threads: as of the pass.
#ifndef WEFT_WORKER_SHELL_TORCH_CHANNELS_LAST_H_
#define WEFT_WORKER_SHELL_TORCH_CHANNELS_LAST_H_

#include <ATen/core/Tensor.h>

namespace weft {

// Returns `images` [samples, channels, rows, columns] with channels last, and gives them gradients of that
// layout; the images themselves on a device or of a type for which it does not pay (all but bfloat16 on a
// GPU).
at::Tensor ChannelsLast(const at::Tensor& images);

// Returns the images with channels last, on any device; no gradient flows through. LibTorch tells layouts by
// strides, so they are these also where others would name the same places (one channel, one pixel).
at::Tensor LaidOutChannelsLast(const at::Tensor& images);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_CHANNELS_LAST_H_
