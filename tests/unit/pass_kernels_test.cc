// The GPU's kernels of passes, run on the host, beneath the operations of LibTorch's graph that use them:
// what LibTorch's own operations give, to float32's rounding, forward and backward.
#include "tests/unit/cuda_on_host.h"
// The following includes take their meaning from the above.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "worker/shell/compute/host_math.h"
#include "worker/shell/compute/pass_math.h"
#include "worker/shell/cuda/pass_kernels.cu"
#include "worker/shell/torch/channels_last.h"
#include "worker/shell/torch/cross_entropy.h"
#include "worker/shell/torch/max_pool.h"

namespace weft::pass_kernels_test {
namespace {

class PassMathOnHost final : public PassMath {
 public:
  void CrossEntropy(const ScoreRows& s, const int64_t* targets, float* losses,
                    float* log_sums) const override {
    if (s.type == DataType::kBFloat16) {
      kernels::CrossEntropy(nullptr, static_cast<const uint16_t*>(s.data), s.rows, s.classes, targets, losses,
                            log_sums);
    } else {
      kernels::CrossEntropy(nullptr, static_cast<const float*>(s.data), s.rows, s.classes, targets, losses,
                            log_sums);
    }
  }
  void CrossEntropyGradient(const ScoreRows& s, const int64_t* targets, const float* log_sums,
                            const float* scale, void* out) const override {
    if (s.type == DataType::kBFloat16) {
      kernels::CrossEntropyGradient(nullptr, static_cast<const uint16_t*>(s.data), s.rows, s.classes, targets,
                                    log_sums, scale, static_cast<uint16_t*>(out));
    } else {
      kernels::CrossEntropyGradient(nullptr, static_cast<const float*>(s.data), s.rows, s.classes, targets,
                                    log_sums, scale, static_cast<float*>(out));
    }
  }
  void MaxPoolGradient(const MaxPooling& pooling, DataType type, const void* gradient, const int64_t* places,
                       void* out) const override {
    if (type == DataType::kBFloat16) {
      kernels::MaxPoolGradient(nullptr, pooling, static_cast<const uint16_t*>(gradient), places,
                               static_cast<uint16_t*>(out));
    } else {
      kernels::MaxPoolGradient(nullptr, pooling, static_cast<const float*>(gradient), places,
                               static_cast<float*>(out));
    }
  }
};

// The host's arithmetic with kernels of its own.
class MathOnHost final : public FlatMath {
 public:
  const PassMath* pass_math() const override { return &pass_math_; }
  void Zero(void* to, size_t bytes) const override { HostMath().Zero(to, bytes); }
  void Copy(void* to, const void* from, size_t bytes) const override { HostMath().Copy(to, from, bytes); }
  void Add(float*, const float*, int64_t) const override { std::abort(); }
  void AddPieces(const std::vector<FlatPiece>&, float*) const override { std::abort(); }
  void WritePieces(const std::vector<FlatPiece>&, float*, int64_t) const override { std::abort(); }
  void Narrow(BFloat16*, const float*, int64_t) const override { std::abort(); }
  void Sgd(const SgdStep&, const float*, float*, const float*, float*, const float*, int64_t) const override {
    std::abort();
  }
  void AdamW(const AdamWStep&, const float*, float*, const float*, float*, float*, const float*,
             int64_t) const override {
    std::abort();
  }
  void MoveAverage(const AverageStep&, const float*, float*, const float*, int64_t) const override {
    std::abort();
  }
  void AddSquares(uint64_t*, const float*, int64_t) const override { std::abort(); }
  void AddSums(uint64_t*, const uint64_t*) const override { std::abort(); }
  void ClipFactor(float*, const uint64_t*, double) const override { std::abort(); }
  void Drop(const DropoutMask&, const uint64_t*, const void*, void*, int64_t, DataType) const override {
    std::abort();
  }
  void WriteNumbers(uint64_t*, const uint64_t*, int64_t) const override { std::abort(); }

 private:
  const PassMathOnHost pass_math_{};
};

struct LossAndGradient {
  at::Tensor loss, gradient;
};

LossAndGradient LossOf(const at::Tensor& scores, const at::Tensor& targets, const FlatMath* math) {
  const at::Tensor leaf = scores.detach().clone().set_requires_grad(true);
  const at::Tensor loss = Loss(leaf, targets, math);
  return {loss.detach(), torch::autograd::grad({loss}, {leaf}, {at::full({}, 0.25)})[0]};
}

void ExpectLibTorchs(const at::Tensor& scores, const at::Tensor& targets, double tolerance) {
  const MathOnHost math{};
  const LossAndGradient ours = LossOf(scores, targets, &math), theirs = LossOf(scores, targets, nullptr);
  EXPECT_TRUE(at::allclose(ours.loss, theirs.loss, 1e-6, 1e-6)) << ours.loss << " " << theirs.loss;
  EXPECT_EQ(ours.gradient.scalar_type(), scores.scalar_type());
  const at::Tensor gradient = theirs.gradient.to(at::kFloat);
  const double most = gradient.abs().max().item<double>();
  EXPECT_TRUE(at::allclose(ours.gradient.to(at::kFloat), gradient, tolerance, most * tolerance));
}

at::Tensor TargetsOf(int64_t rows, int64_t classes) { return at::randint(classes, {rows}, at::kLong); }

TEST(CrossEntropyKernels, AnyNumberOfClasses_GiveLibTorchsLossAndGradient) {
  // Groups of four divide them and do not; fewer and more than a block's threads take at once.
  for (const int64_t classes : {1, 2, 10, 64, 65, 512, 1000, 2052}) {
    SCOPED_TRACE(classes);
    const at::Tensor scores = at::randn({7, classes}) * 5, targets = TargetsOf(7, classes);
    ExpectLibTorchs(scores, targets, 1e-5);
    ExpectLibTorchs(scores.to(at::kBFloat16), targets, 1e-2);
  }
}

TEST(CrossEntropyKernels, ScoresFarApart_DoNotOverflow) {
  at::Tensor scores = at::randn({4, 300});
  scores.select(1, 17).fill_(3e4);
  scores.select(1, 299).fill_(-3e4);
  ExpectLibTorchs(scores, TargetsOf(4, 300), 1e-5);
}

TEST(CrossEntropyKernels, ColumnsOfMinusInfinity_HaveNoPartInIt) {
  const at::Tensor scores = at::randn({5, 70}), targets = TargetsOf(5, 70);
  const at::Tensor wide = at::full({5, 128}, -std::numeric_limits<double>::infinity());
  wide.narrow(1, 0, 70).copy_(scores);
  const MathOnHost math{};
  for (const FlatMath* own : {static_cast<const FlatMath*>(&math), static_cast<const FlatMath*>(nullptr)}) {
    const LossAndGradient expected = LossOf(scores, targets, own), got = LossOf(wide, targets, own);
    EXPECT_TRUE(at::allclose(got.loss, expected.loss, 1e-6));
    EXPECT_TRUE(at::allclose(got.gradient.narrow(1, 0, 70), expected.gradient, 1e-5, 1e-8));
    EXPECT_TRUE(got.gradient.narrow(1, 70, 58).eq(0).all().item<bool>());
  }
}

TEST(CrossEntropyKernels, ScoreThatIsNoNumberAndTargetThatIsNoClass_MakeTheLossNoNumber) {
  const MathOnHost math{};
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const int64_t column : {0, 1, 130, 255}) {
      at::Tensor scores = at::randn({3, 256});
      scores[1][column] = bad;
      EXPECT_TRUE(at::isnan(LossOf(scores, TargetsOf(3, 256), &math).loss).item<bool>())
          << bad << " " << column;
    }
  }
  for (const int64_t target : {-1, 256}) {
    at::Tensor targets = TargetsOf(3, 256);
    targets[2] = target;
    EXPECT_TRUE(at::isnan(LossOf(at::randn({3, 256}), targets, &math).loss).item<bool>()) << target;
  }
}

at::Tensor PooledGradient(const at::Tensor& images, const at::Tensor& given, const FlatMath* math) {
  const at::Tensor leaf = images.detach().set_requires_grad(true);
  return torch::autograd::grad({MaxPool(leaf, math)}, {leaf}, {given})[0];
}

TEST(MaxPoolKernel, EitherLayoutAnySize_GivesTheGradientOfLibTorchsOperations) {
  const MathOnHost math{};
  for (const auto& [channels, rows, columns] : {std::tuple{4, 8, 8}, {3, 7, 9}, {8, 1, 5}, {1, 12, 2}}) {
    SCOPED_TRACE(::testing::Message() << channels << " channels of " << rows << " x " << columns);
    // Equal pixels are told apart as LibTorch does it.
    const at::Tensor images = at::randint(4, {2, channels, rows, columns}, at::kFloat);
    const at::Tensor given = at::randn({2, channels, (rows + 1) / 2, (columns + 1) / 2});
    const at::Tensor expected = PooledGradient(images, given, nullptr);
    EXPECT_TRUE(at::allclose(PooledGradient(images, given, &math), expected, 1e-6, 1e-6));
    const at::Tensor last = PooledGradient(LaidOutChannelsLast(images), given, &math);
    EXPECT_TRUE(at::allclose(last, expected, 1e-6, 1e-6));
    EXPECT_TRUE(last.is_contiguous(at::MemoryFormat::ChannelsLast));
    // Whole numbers up to 256 are exact in bfloat16, and so are sums of four small ones.
    const at::Tensor whole = at::randint(-20, 20, given.sizes(), at::kFloat);
    const at::Tensor narrow =
        PooledGradient(LaidOutChannelsLast(images.to(at::kBFloat16)), whole.to(at::kBFloat16), &math);
    EXPECT_TRUE(narrow.to(at::kFloat).equal(PooledGradient(images, whole, nullptr)));
  }
}

TEST(LaidOutChannelsLast, OneChannelOrOnePixel_HasTheLayoutsOwnStrides) {
  const std::vector<int64_t> many[] = {{2, 3, 4, 5}, {2, 1, 4, 5}, {2, 3, 1, 1}, {1, 1, 1, 1}};
  for (const std::vector<int64_t>& sizes : many) {
    const at::Tensor images = at::randn(sizes), last = LaidOutChannelsLast(images);
    EXPECT_TRUE(last.equal(images));
    EXPECT_EQ(last.stride(1), 1);
    EXPECT_EQ(last.stride(3), images.size(1));
    EXPECT_EQ(last.stride(2), images.size(1) * images.size(3));
    EXPECT_TRUE(LaidOutChannelsLast(last).is_alias_of(last)) << "nothing is copied twice";
  }
}

}  // namespace
}  // namespace weft::pass_kernels_test
