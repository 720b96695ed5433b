#include "worker/shell/torch/torch_resnet.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/relu.h>

#include <utility>

#include "run/resnet.h"
#include "worker/shell/torch/batch_norm.h"
#include "worker/shell/torch/channels_last.h"
#include "worker/shell/torch/max_pool.h"

namespace weft {
namespace {

constexpr int kParametersOfConvolution = 5;  // weight of a convolution, and parameters of its norm

at::Tensor ConvolveAndNorm(const at::Tensor& x, const NormedConvolution& c, const at::Tensor* parameters,
                           bool training) {
  const at::Tensor y = at::conv2d(x, parameters[0], /*bias=*/{}, c.stride, c.kernel / 2);
  constexpr double kEpsilon = 1e-5;
  return BatchNorm(y, parameters + 1, kEpsilon, training);
}

class Stem final : public Layer {
 public:
  explicit Stem(const StemSpec& spec) : convolution_(spec.convolution), pools_(spec.pools) {}
  at::Tensor Forward(const at::Tensor* images, const at::Tensor* p, const MaskKey& key) const override {
    const at::Tensor x = ChannelsLast(
        images->view({images->size(0), convolution_.in, convolution_.in_side, convolution_.in_side}));
    const at::Tensor y = at::relu(ConvolveAndNorm(x, convolution_, p, key.training));
    return ChannelsLast(pools_ ? MaxPool(y, key.math) : y);
  }

 private:
  const NormedConvolution convolution_;
  const bool pools_;
};

class ResidualBlock final : public Layer {
 public:
  explicit ResidualBlock(ResNetBlock plan) : plan_(std::move(plan)) {}
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey& key) const override {
    const at::Tensor x = ChannelsLast(*inputs);
    at::Tensor y = x;
    for (size_t i = 0; i < plan_.path.size(); ++i, p += kParametersOfConvolution) {
      y = ConvolveAndNorm(i == 0 ? y : at::relu(y), plan_.path[i], p, key.training);
    }
    return ChannelsLast(at::relu(
        y + (plan_.shortcut.has_value() ? ConvolveAndNorm(x, *plan_.shortcut, p, key.training) : x)));
  }

 private:
  const ResNetBlock plan_;
};

class AveragedScores final : public Layer {
 public:
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey&) const override {
    return at::linear(ChannelsLast(*inputs).mean({2, 3}), p[0], p[1]);
  }
};

}  // namespace

std::unique_ptr<Layer> BuildStem(const StemSpec& spec) { return std::make_unique<Stem>(spec); }
std::unique_ptr<Layer> BuildResidualBlock(const ResidualBlockSpec& spec) {
  return std::make_unique<ResidualBlock>(spec.plan);
}
std::unique_ptr<Layer> BuildAveragedScores() { return std::make_unique<AveragedScores>(); }

}  // namespace weft
