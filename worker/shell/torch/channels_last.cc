#include "worker/shell/torch/channels_last.h"

#include <torch/csrc/autograd/custom_function.h>

namespace weft {

at::Tensor LaidOutChannelsLast(const at::Tensor& images) {
  const int64_t channels = images.size(1), rows = images.size(2), columns = images.size(3);
  return images.contiguous(c10::MemoryFormat::ChannelsLast)
      .as_strided(images.sizes(), {rows * columns * channels, 1, columns * channels, channels});
}

namespace {

class ChannelsLastImages : public torch::autograd::Function<ChannelsLastImages> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& images) {
    return LaidOutChannelsLast(images);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list gradients) {
    return {LaidOutChannelsLast(gradients[0])};
  }
};

}  // namespace

at::Tensor ChannelsLast(const at::Tensor& images) {
  if (!images.is_cuda() || images.scalar_type() != c10::kBFloat16) return images;
  return ChannelsLastImages::apply(images);
}

}  // namespace weft
