#include "worker/shell/torch/wide_product.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "run/layer_spec.h"

namespace weft::wide_product_test {
namespace {

constexpr int64_t kClasses = 2000, kWidth = 8;

at::Tensor Random(at::IntArrayRef sizes) { return at::randn(sizes).set_requires_grad(true); }

TEST(ScoreColumnsOnGpu, Classes_AreFilledUpWhereFewAreMissing) {
  EXPECT_EQ(ScoreColumnsOnGpu(50257), 50304);
  EXPECT_EQ(ScoreColumnsOnGpu(50304), 50304);
  EXPECT_EQ(ScoreColumnsOnGpu(kClasses), 2048);
  EXPECT_EQ(ScoreColumnsOnGpu(65), 65) << "half as many again";
}

TEST(WideProduct, ScoresAndGradients_AreThoseOfTheProduct) {
  const at::Tensor x = Random({2, 3, kWidth}), projection = Random({kClasses, kWidth});
  const at::Tensor weights = at::randn({2, 3, kClasses});
  const auto gradients = [&](const at::Tensor& scores) {
    return torch::autograd::grad({(at::log_softmax(scores.narrow(2, 0, kClasses), 2) * weights).sum()},
                                 {x, projection});
  };
  const at::Tensor wide = WideProduct(x, projection), plain = at::linear(x, projection);
  ASSERT_EQ(wide.size(2), ScoreColumnsOnGpu(kClasses));
  EXPECT_TRUE(at::allclose(wide.narrow(2, 0, kClasses), plain));
  EXPECT_EQ(wide.narrow(2, kClasses, wide.size(2) - kClasses).max().item<float>(), -INFINITY);
  const std::vector<at::Tensor> of_wide = gradients(wide), of_plain = gradients(plain);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(of_wide[i].sizes(), of_plain[i].sizes());
    EXPECT_TRUE(at::allclose(of_wide[i], of_plain[i], 1e-4, 1e-4)) << i;
  }
}

// As where backwards are split.
TEST(WideProduct, GradientOfOneInput_IsThatOfBoth) {
  const at::Tensor x = Random({3, kWidth}), projection = Random({kClasses, kWidth});
  const at::Tensor loss = at::logsumexp(WideProduct(x, projection), {1}).sum();
  const auto of = [&](const std::vector<at::Tensor>& inputs) {
    return torch::autograd::grad({loss}, inputs, {}, /*retain_graph=*/true);
  };
  const std::vector<at::Tensor> both = of({x, projection});
  EXPECT_TRUE(at::equal(of({x})[0], both[0]));
  EXPECT_TRUE(at::equal(of({projection})[0], both[1]));
}

}  // namespace
}  // namespace weft::wide_product_test
