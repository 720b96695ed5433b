// Builds the layers of residual networks. Private to the adapter of LibTorch; as torch_layers.h.
#ifndef WEFT_WORKER_SHELL_TORCH_TORCH_RESNET_H_
#define WEFT_WORKER_SHELL_TORCH_TORCH_RESNET_H_

#include <memory>
#include <vector>

#include "run/model_spec.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft {

// Builds stem, blocks, head. The tensors between them are [samples, channels, side, side].
std::vector<std::unique_ptr<Layer>> BuildResNet(const ResNetSpec& model);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_TORCH_RESNET_H_
