// Tests facts of captures and of the bits of LibTorch's kernels that only a real GPU can decide. Label gpu.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/gpu/the_gpu.h"
#include "worker/shell/compute/elementwise.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/torch_context.h"

namespace weft::gpu_graph_test {
namespace {

Job Forward(int microbatch) { return Job::Compute(0, 0, microbatch, JobKind::kForward); }

class GpuGraphTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(PrepareRun(RunSpec{}).ok());
    device_ = NewRankOfTheGpu(0);
  }
  at::TensorOptions Options(c10::ScalarType type) const {
    return at::TensorOptions().device(device_->torch_device()).dtype(type);
  }
  // Outside of jobs, on the lane.
  at::Tensor Random(at::IntArrayRef sizes, c10::ScalarType type = at::kFloat) {
    const auto scope = device_->Charge(MemoryClass::kWeights, Tallied::kNo);
    return at::randn(sizes, Options(type));
  }

  // The results of `pass` and its gradients by `leaves`, eager, twice, and from a graph: all the same bits.
  // The graph is captured on a thread that has run the pass once, as ranks do.
  using PassOf = std::function<at::Tensor()>;
  void ExpectGraphsBits(const PassOf& pass, const std::vector<at::Tensor>& leaves) {
    for (const at::Tensor& leaf : leaves) leaf.set_requires_grad(true);
    std::vector<at::Tensor> made;
    const auto run = [&] {
      const at::Tensor result = pass();
      made = torch::autograd::grad({at::mean(result.to(at::kFloat))}, leaves);
      made.push_back(result.detach());
    };
    device_->BeginJob(Forward(0), false);
    run();
    const std::vector<at::Tensor> once = made;
    run();
    const std::vector<at::Tensor> twice = made;
    ASSERT_TRUE(WaitFor(*device_->EndJob()).ok());

    std::thread([&] {
      TheGpu().PrepareThread();
      device_->BeginJob(Forward(1), false);
      run();
      absl::StatusOr<std::unique_ptr<CapturedWork>> work = device_->Capture(
          [&] {
            run();
            return absl::OkStatus();
          },
          nullptr);
      EXPECT_TRUE(work.ok()) << work.status();
      if (work.ok()) {
        for (int i = 0; i < 3; ++i) (*work)->Replay();
      }
      EXPECT_TRUE(WaitFor(*device_->EndJob()).ok());
      for (size_t i = 0; work.ok() && i < made.size(); ++i) {
        EXPECT_TRUE(once[i].equal(twice[i])) << "eager: result " << i;
        EXPECT_TRUE(once[i].equal(made[i])) << "graph: result " << i;
      }
    }).join();
  }

  std::unique_ptr<RankDevice> device_;
};

TEST_F(GpuGraphTest, Convolution_IsCapturedOnAThreadOfItsOwnWithTheEagerBits) {
  const at::Tensor x = Random({8, 64, 56, 56}), w = Random({64, 64, 3, 3});
  ExpectGraphsBits([&] { return at::conv2d(x, w, /*bias=*/{}, 1, 1); }, {x, w});
}

TEST_F(GpuGraphTest, AttentionInFloat32_IsCapturedWithTheEagerBits) {
  const at::Tensor q = Random({2, 12, 256, 64}), k = Random({2, 12, 256, 64}), v = Random({2, 12, 256, 64});
  ExpectGraphsBits([&] { return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true); }, {q, k, v});
}

TEST_F(GpuGraphTest, AttentionInBFloat16_IsCapturedWithTheEagerBits) {
  const auto type = at::kBFloat16;
  const at::Tensor q = Random({2, 12, 256, 64}, type), k = Random({2, 12, 256, 64}, type);
  const at::Tensor v = Random({2, 12, 256, 64}, type);
  ExpectGraphsBits([&] { return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true); }, {q, k, v});
}

TEST_F(GpuGraphTest, EmbeddingAndNorm_AreCapturedWithTheEagerBits) {
  const at::Tensor table = Random({50257, 256}), weight = Random({256}), bias = Random({256});
  at::Tensor tokens;
  {
    const auto scope = device_->Charge(MemoryClass::kWeights, Tallied::kNo);
    tokens = at::randint(50257, {8, 1024}, Options(at::kLong));
  }
  ExpectGraphsBits([&] { return at::layer_norm(at::embedding(table, tokens), {256}, weight, bias); },
                   {table, weight, bias});
}

// Peers' memory is only known to be aligned so far; cuBLASLt asks for no more.
TEST_F(GpuGraphTest, ProductOfOperandsAlignedTo256_HasTheBitsOfThoseAlignedTo512) {
  const at::Tensor x = Random({1024, 768}), w = Random({3072, 768}), b = Random({3072});
  const auto moved = [&](const at::Tensor& t) {
    const auto scope = device_->Charge(MemoryClass::kWeights, Tallied::kNo);
    const at::Tensor room = at::empty({t.numel() + 64}, Options(at::kFloat));
    return room.narrow(0, 64, t.numel()).view(t.sizes()).copy_(t);
  };
  const at::Tensor x2 = moved(x), w2 = moved(w), b2 = moved(b);
  ASSERT_EQ(reinterpret_cast<uintptr_t>(x2.data_ptr()) % 512, 256u);
  device_->BeginJob(Forward(0), false);
  const at::Tensor here = at::linear(x, w, b), there = at::linear(x2, w2, b2);
  ASSERT_TRUE(WaitFor(*device_->EndJob()).ok());
  EXPECT_TRUE(here.equal(there));
}

TEST_F(GpuGraphTest, MoveAverage_GivesTheHostsBitsAndThoseOfTheReference) {
  constexpr int64_t kElements = 1000;
  const at::Tensor average = Random({kElements}), sum = Random({kElements});
  at::Tensor out;
  AverageStep step{};
  step.momentum = 0.1f;
  step.count = 3;
  device_->BeginJob(Forward(0), false);
  out = at::empty({kElements}, Options(at::kFloat));
  device_->math().MoveAverage(step, average.const_data_ptr<float>(), out.mutable_data_ptr<float>(),
                              sum.const_data_ptr<float>(), kElements);
  const at::Tensor count = at::empty({}, Options(at::kFloat)).fill_(3);
  const at::Tensor plain = average * (1 - 0.1) + sum / count * 0.1;
  ASSERT_TRUE(WaitFor(*device_->EndJob()).ok());
  EXPECT_TRUE(out.equal(plain));
  const at::Tensor a = average.cpu(), s = sum.cpu(), expected = at::empty({kElements}, at::kFloat);
  MoveAverage(step, a.const_data_ptr<float>(), expected.mutable_data_ptr<float>(), s.const_data_ptr<float>(),
              kElements);
  EXPECT_TRUE(out.cpu().equal(expected));
}

// Other ranks of the process do this all the while.
TEST_F(GpuGraphTest, OtherThreads_MakeCopyAndAskWhileOneCaptures) {
  const std::unique_ptr<RankDevice> other = NewRankOfTheGpu(1);
  const at::Tensor x = Random({256, 256}), w = Random({256, 256});
  device_->BeginJob(Forward(0), false);
  at::Tensor y = at::linear(x, w);
  const absl::StatusOr<std::unique_ptr<CapturedWork>> work = device_->Capture(
      [&] {
        y = at::linear(x, w);
        std::thread([&] {
          TheGpu().PrepareThread();
          for (int i = 0; i < 20; ++i) {
            other->BeginJob(Forward(i), false);
            const std::vector<float> values(1 << 20, 1.0f);
            const Tensor flat = *other->NewFlat(1 << 22, MemoryClass::kActivations, DataType::kFloat32);
            const Tensor plain{{DataType::kFloat32, 1, {1 << 20}},
                               const_cast<float*>(values.data()),
                               values.size() * 4,
                               std::make_shared<int>(0)};
            const Tensor sent = other->Await(*other->ToDevice(plain, MemoryClass::kActivations));
            other->math().Copy(flat.data, sent.data, sent.bytes);
            EXPECT_TRUE(WaitFor(*other->EndJob()).ok());
          }
        }).join();
        y = at::linear(y, w);
        return absl::OkStatus();
      },
      nullptr);
  ASSERT_TRUE(work.ok()) << work.status();
  (*work)->Replay();
  EXPECT_TRUE(WaitFor(*device_->EndJob()).ok());
}

TEST_F(GpuGraphTest, FailedCapture_LeavesTheJobAndTheNextCaptureAlone) {
  const at::Tensor x = Random({256, 256}), w = Random({256, 256});
  device_->BeginJob(Forward(0), false);
  at::Tensor y = at::linear(x, w);
  const auto failed = device_->Capture(
      [&] {
        (void)at::linear(x, w).cpu();
        return absl::OkStatus();
      },
      nullptr);
  EXPECT_FALSE(failed.ok());
  const auto next = device_->Capture(
      [&] {
        y = at::linear(x, w);
        return absl::OkStatus();
      },
      nullptr);
  ASSERT_TRUE(next.ok()) << next.status();
  (*next)->Replay();
  EXPECT_TRUE(WaitFor(*device_->EndJob()).ok());
}

}  // namespace
}  // namespace weft::gpu_graph_test
