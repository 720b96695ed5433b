// The optimizers against LibTorch's own.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/shell/compute/host_math.h"
#include "worker/shell/compute/optimizer.h"

namespace weft::compute_optimizer_test {
namespace {

// A rate that changes, as a schedule's does.
double RateAt(const OptimizerSpec& spec, int step) {
  return std::visit([](const auto& s) { return s.lr; }, spec) / (1 + step % 3);
}

void ExpectEqualsTorch(const OptimizerSpec& spec, torch::optim::Optimizer& reference, torch::Tensor weights) {
  const int64_t n = weights.numel();
  std::vector<float> own(weights.const_data_ptr<float>(), weights.const_data_ptr<float>() + n);
  const std::vector<float> initial = own;
  std::vector<float> state[2] = {std::vector<float>(n, 0), std::vector<float>(n, 0)};
  Optimizer optimizer(spec);
  for (int step = 0; step < 20; ++step) {
    const torch::Tensor gradient = torch::randn({n});
    weights.mutable_grad() = gradient.clone();
    for (auto& group : reference.param_groups()) group.options().set_lr(RateAt(spec, step));
    reference.step();
    // Twice the gradient and half of that.
    const torch::Tensor doubled = gradient * 2;
    const float half = 0.5f;
    optimizer.Begin(RateAt(spec, step));
    optimizer.Apply(HostMath(), own.data(), own.data(), doubled.const_data_ptr<float>(),
                    {state[0].data(), state[1].data()}, &half, n);
  }
  double difference = 0, movement = 0;
  for (int64_t i = 0; i < n; ++i) {
    difference =
        std::max(difference, std::abs(static_cast<double>(own[i]) - weights.const_data_ptr<float>()[i]));
    movement = std::max(movement, std::abs(static_cast<double>(own[i]) - initial[i]));
  }
  EXPECT_LT(difference, 1e-6);
  EXPECT_GT(movement, 1e-3);
}

class OptimizerAgainstTorch : public ::testing::Test {
 protected:
  OptimizerAgainstTorch() {
    torch::manual_seed(1);
    weights_ = torch::randn({1001}).set_requires_grad(true);
  }
  torch::Tensor weights_;
};

TEST_F(OptimizerAgainstTorch, Sgd_Plain_Equal) {
  SgdSpec spec;
  spec.lr = 0.01;
  torch::optim::SGD reference({weights_}, torch::optim::SGDOptions(0.01));
  ExpectEqualsTorch(spec, reference, weights_);
}

TEST_F(OptimizerAgainstTorch, Sgd_MomentumAndWeightDecay_Equal) {
  SgdSpec spec;
  spec.lr = 0.01;
  spec.momentum = 0.9;
  spec.weight_decay = 0.1;
  torch::optim::SGD reference({weights_}, torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.1));
  ExpectEqualsTorch(spec, reference, weights_);
}

TEST_F(OptimizerAgainstTorch, AdamW_Equal) {
  AdamWSpec spec;
  spec.lr = 1e-2;
  spec.beta1 = 0.8;
  spec.beta2 = 0.99;
  spec.eps = 1e-7;
  spec.weight_decay = 0.1;
  torch::optim::AdamW reference(
      {weights_}, torch::optim::AdamWOptions(1e-2).betas({0.8, 0.99}).eps(1e-7).weight_decay(0.1));
  ExpectEqualsTorch(spec, reference, weights_);
}

}  // namespace
}  // namespace weft::compute_optimizer_test
