// Builds the layers of residual networks. Private to the adapter of LibTorch; as torch_layers.h.
#ifndef WEFT_WORKER_SHELL_TORCH_TORCH_RESNET_H_
#define WEFT_WORKER_SHELL_TORCH_TORCH_RESNET_H_

#include <memory>

#include "run/layer_spec.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft {

// The tensors between them are [samples, channels, side, side].
std::unique_ptr<Layer> BuildStem(const StemSpec& spec);
std::unique_ptr<Layer> BuildResidualBlock(const ResidualBlockSpec& spec);
std::unique_ptr<Layer> BuildAveragedScores();

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_TORCH_RESNET_H_
