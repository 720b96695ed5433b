// libweft_cuda's parts on a real GPU: the bits of its arithmetic, graphs, figures, memory, failures, and that
// jobs make no call that waits. Label gpu.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <bit>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/gpu/count_waits.h"
#include "tests/gpu/the_gpu.h"
#include "worker/shell/compute/elementwise.h"
#include "worker/shell/compute/sum_of_squares.h"
#include "worker/shell/cuda/cuda_backend.h"
#include "worker/shell/cuda/cuda_rank_device.h"
#include "worker/shell/cuda/flat_formulas.h"
#include "worker/shell/torch/batch_norm.h"
#include "worker/shell/torch/channels_last.h"
#include "worker/shell/torch/cross_entropy.h"
#include "worker/shell/torch/dropout.h"
#include "worker/shell/torch/max_pool.h"
#include "worker/shell/torch/pass_numbers.h"

namespace weft::gpu_device_test {
namespace {

using testing::CountWaits;

// Any bits at all, the rest of ordinary size.
std::vector<float> Values(int64_t n, uint32_t seed, bool finite = false) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) {
    do {
      value = random() % 3 == 0 ? std::bit_cast<float>(static_cast<uint32_t>(random()))
                                : std::ldexp(static_cast<float>(static_cast<int32_t>(random())), -31);
    } while (finite && !std::isfinite(value));
  }
  return values;
}

void ExpectSameBits(const std::vector<float>& actual, const std::vector<float>& expected, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i]))
        << what << ": element " << i << " is " << actual[i] << ", not " << expected[i];
  }
}

class GpuDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    device_ = NewRankOfTheGpu(0);
  }

  Tensor Upload(const std::vector<float>& values) {
    absl::StatusOr<Tensor> tensor =
        device_->NewFlat(static_cast<int64_t>(values.size()), MemoryClass::kBuffers, DataType::kFloat32);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_TRUE(device_->Load(tensor->data, values.data(), tensor->bytes).ok());
    return *tensor;
  }
  std::vector<float> Download(const Tensor& tensor) {
    std::vector<float> values(tensor.bytes / sizeof(float));
    EXPECT_TRUE(device_->ReadBack(values.data(), tensor.data, tensor.bytes).ok());
    return values;
  }
  static float* Floats(const Tensor& tensor) { return static_cast<float*>(tensor.data); }
  at::TensorOptions Options() const {
    return at::TensorOptions().device(device_->torch_device()).dtype(at::kFloat);
  }
  static Job Forward(int microbatch) { return Job::Compute(0, 0, microbatch, JobKind::kForward); }

  std::unique_ptr<RankDevice> device_;
};

constexpr int64_t kElements = (int64_t{1} << 20) + 3;

TEST_F(GpuDeviceTest, AdamW_GivesTheHostsBits) {
  AdamWStep step{};
  step.keep = 1 - 3e-5f;
  step.beta1 = 0.9f;
  step.one_minus_beta1 = 1 - 0.9f;
  step.beta2 = 0.95f;
  step.one_minus_beta2 = 1 - 0.95f;
  step.eps = 1e-8f;
  step.step_size = 1.6e-3f;
  step.root_bias_correction = 0.31f;
  std::vector<float> w = Values(kElements, 1), g = Values(kElements, 2), m = Values(kElements, 3);
  std::vector<float> v = Values(kElements, 4);
  const Tensor dw = Upload(w), dg = Upload(g), dm = Upload(m), dv = Upload(v), factor = Upload({0.37f});
  device_->math().AdamW(step, Floats(dw), Floats(dw), Floats(dg), Floats(dm), Floats(dv), Floats(factor),
                        kElements);
  ApplyAdamW(step, w.data(), w.data(), g.data(), m.data(), v.data(), 0.37f, kElements);
  ExpectSameBits(Download(dw), w, "weights");
  ExpectSameBits(Download(dm), m, "mean");
  ExpectSameBits(Download(dv), v, "square");
}

TEST_F(GpuDeviceTest, Sgd_GivesTheHostsBits) {
  SgdStep step{};
  step.lr = 0.1f;
  step.momentum = 0.9f;
  step.weight_decay = 1e-2f;
  std::vector<float> w = Values(kElements, 5), g = Values(kElements, 6), m = Values(kElements, 7);
  const Tensor dw = Upload(w), dg = Upload(g), dm = Upload(m);
  device_->math().Sgd(step, Floats(dw), Floats(dw), Floats(dg), Floats(dm), nullptr, kElements);
  ApplySgd(step, w.data(), w.data(), g.data(), m.data(), 1, kElements);
  ExpectSameBits(Download(dw), w, "weights");
  ExpectSameBits(Download(dm), m, "momentum");
}

TEST_F(GpuDeviceTest, PiecesAndAdd_GiveTheHostsBits) {
  std::vector<float> sum = Values(kElements, 8);
  const std::vector<float> x = Values(kElements, 9);
  const Tensor dsum = Upload(sum), dx = Upload(x);
  std::vector<FlatPiece> pieces;
  for (int64_t at = 0; at + 5000 < kElements; at += 8000)
    pieces.push_back({at, 5000, Floats(dx) + at, DataType::kFloat32});
  device_->math().AddPieces(pieces, Floats(dsum));
  for (const FlatPiece& p : pieces) AddInPlace(sum.data() + p.offset, x.data() + p.offset, p.n);
  ExpectSameBits(Download(dsum), sum, "sum");
  device_->math().WritePieces(pieces, Floats(dsum), kElements);
  std::fill(sum.begin(), sum.end(), 0.0f);
  for (const FlatPiece& p : pieces) std::copy_n(x.data() + p.offset, p.n, sum.data() + p.offset);
  ExpectSameBits(Download(dsum), sum, "written");
}

TEST_F(GpuDeviceTest, Squares_GiveTheExactSumAndItsFactor) {
  const std::vector<float> x = Values(kElements, 10, /*finite=*/true);
  SumOfSquares expected;
  ASSERT_TRUE(expected.Add(x.data(), kElements));
  const Tensor dx = Upload(x), factor = Upload({0});
  const Tensor limbs = *device_->NewFlat(SumOfSquares::kLimbs, MemoryClass::kBuffers, DataType::kInt64);
  device_->math().Zero(limbs.data, limbs.bytes);
  device_->math().AddSquares(static_cast<uint64_t*>(limbs.data), Floats(dx), kElements);
  device_->math().ClipFactor(Floats(factor), static_cast<const uint64_t*>(limbs.data), 0.5);
  std::vector<uint64_t> read(SumOfSquares::kLimbs);
  ASSERT_TRUE(device_->ReadBack(read.data(), limbs.data, limbs.bytes).ok());
  EXPECT_EQ(flat::ValueOf(read.data()), expected.Value());
  EXPECT_EQ(Download(factor)[0], ClipFactor(expected.Norm(), 0.5));
}

TEST_F(GpuDeviceTest, Drop_GivesTheHostsBits) {
  const DropoutMask mask{1u << 30, 1 / 0.75f, 0x9876543210fedcba};
  const std::vector<float> x = Values(kElements, 11);
  std::vector<float> expected(x.size());
  Drop(mask, x.data(), expected.data(), kElements);
  const Tensor dx = Upload(x), out = Upload(std::vector<float>(x.size()));
  device_->math().Drop(mask, nullptr, dx.data, out.data, kElements, DataType::kFloat32);
  ExpectSameBits(Download(out), expected, "float32");
  // The same numbers, narrow, by a seed in the device's memory.
  const Tensor seed = *device_->NewFlat(3, MemoryClass::kBuffers, DataType::kInt64);
  const uint64_t seeds[] = {1, 2, mask.seed};
  device_->math().WriteNumbers(static_cast<uint64_t*>(seed.data), seeds, 3);
  const Tensor narrow = *device_->NewFlat(kElements, MemoryClass::kBuffers, DataType::kBFloat16);
  device_->math().Narrow(static_cast<BFloat16*>(narrow.data), Floats(dx), kElements);
  device_->math().Drop({mask.threshold, mask.keep, 0}, static_cast<const uint64_t*>(seed.data) + 2,
                       narrow.data, narrow.data, kElements, DataType::kBFloat16);
  std::vector<BFloat16> narrow_expected(x.size()), read(x.size());
  NarrowToBFloat16(narrow_expected.data(), x.data(), kElements);
  Drop(mask, narrow_expected.data(), narrow_expected.data(), kElements);
  ASSERT_TRUE(device_->ReadBack(read.data(), narrow.data, narrow.bytes).ok());
  std::vector<float> wide(x.size());
  WidenBFloat16(wide.data(), read.data(), kElements);
  WidenBFloat16(expected.data(), narrow_expected.data(), kElements);
  ExpectSameBits(wide, expected, "bfloat16");
}

// Two layers and their gradients, as a pass of a rank is.
struct Pass {
  at::Tensor x, w1, w2, loss, g1, g2;
  void Run() {
    const at::Tensor h = at::relu(at::mm(x, w1));
    loss = at::mean(at::mm(h, w2));
    const auto gradients = torch::autograd::grad({loss}, {w1, w2});
    g1 = gradients[0];
    g2 = gradients[1];
  }
};

TEST_F(GpuDeviceTest, JobsInSteadyState_MakeNoCallThatWaits) {
  Pass pass;
  {
    const auto scope = device_->Charge(MemoryClass::kWeights, Tallied::kNo);
    pass.x = at::randn({256, 512}, Options());
    pass.w1 = at::randn({512, 512}, Options()).requires_grad_();
    pass.w2 = at::randn({512, 64}, Options()).requires_grad_();
  }
  const auto job = [&](int microbatch) {
    device_->BeginJob(Forward(microbatch), false);
    const auto scope = device_->Charge(MemoryClass::kActivations, Tallied::kNo);
    pass.Run();
    device_->ReportLoss(pass.loss.detach());
    Tensor flat{{DataType::kFloat32, 1, {pass.g1.numel()}},
                pass.g1.data_ptr(),
                pass.g1.nbytes(),
                std::make_shared<at::Tensor>(pass.g1)};
    flat.place = MemoryPlace::kDevice;
    const Tensor host = *device_->ToHost(flat, HostUse::kOffload);
    device_->Await(*device_->ToDevice(host, MemoryClass::kActivations));
    return device_->EndJob();
  };
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(WaitFor(*job(i)).ok());
  CountWaits counted;
  for (int i = 0; i < 50; ++i) {
    const std::shared_ptr<LaunchedJob> launched = job(i);
    const absl::Status done = WaitFor(*launched);
    ASSERT_TRUE(done.ok()) << done;
    EXPECT_TRUE(launched->figures().loss.has_value());
    EXPECT_LE(launched->figures().start_ns, launched->figures().end_ns);
  }
  for (const auto& [call, count] : counted.calls())
    ADD_FAILURE() << call << " was called " << count << " times";
}

TEST_F(GpuDeviceTest, Graph_Replayed_GivesTheBitsOfTheEagerPass) {
  Pass eager, captured;
  {
    const auto scope = device_->Charge(MemoryClass::kWeights, Tallied::kNo);
    eager.x = at::randn({64, 128}, Options());
    eager.w1 = at::randn({128, 128}, Options()).requires_grad_();
    eager.w2 = at::randn({128, 32}, Options()).requires_grad_();
  }
  captured = eager;
  device_->BeginJob(Forward(0), false);
  eager.Run();
  ASSERT_TRUE(WaitFor(*device_->EndJob()).ok());

  device_->BeginJob(Forward(1), false);
  absl::StatusOr<std::unique_ptr<CapturedWork>> work = device_->Capture(
      [&] {
        captured.Run();
        return absl::OkStatus();
      },
      nullptr);
  ASSERT_TRUE(work.ok()) << work.status();
  ASSERT_NE(*work, nullptr);
  for (int i = 0; i < 3; ++i) (*work)->Replay();
  ASSERT_TRUE(WaitFor(*device_->EndJob()).ok());
  EXPECT_TRUE(eager.loss.equal(captured.loss));
  EXPECT_TRUE(eager.g1.equal(captured.g1));
  EXPECT_TRUE(eager.g2.equal(captured.g2));
}

TEST_F(GpuDeviceTest, OwnKernelsOfPasses_GiveWhatLibTorchsOperationsGive) {
  at::Tensor scores, targets, images, given;
  {
    const auto scope = device_->Charge(MemoryClass::kWeights, Tallied::kNo);
    scores = at::randn({300, 50304}, Options()).to(at::kBFloat16);
    targets = at::randint(50257, {300}, Options().dtype(at::kLong));
    images = at::randn({4, 64, 57, 56}, Options()).to(at::kBFloat16);
    given = at::randn({4, 64, 29, 28}, Options()).to(at::kBFloat16);
  }
  const auto of_loss = [&](const FlatMath* math) {
    const at::Tensor leaf = scores.detach().set_requires_grad(true);
    const at::Tensor loss = Loss(leaf, targets, math);
    return std::pair(loss.detach(), torch::autograd::grad({loss}, {leaf})[0].to(at::kFloat));
  };
  const auto of_pool = [&](const at::Tensor& pooled, const FlatMath* math) {
    const at::Tensor leaf = pooled.detach().set_requires_grad(true);
    return torch::autograd::grad({MaxPool(leaf, math)}, {leaf}, {given})[0].to(at::kFloat);
  };
  device_->BeginJob(Forward(0), false);
  const auto [loss, gradient] = of_loss(&device_->math());
  const auto [expected_loss, expected_gradient] = of_loss(nullptr);
  const at::Tensor planes = of_pool(images, &device_->math()), expected = of_pool(images, nullptr);
  const at::Tensor last = of_pool(LaidOutChannelsLast(images), &device_->math());
  ASSERT_TRUE(WaitFor(*device_->EndJob()).ok());
  EXPECT_TRUE(at::allclose(loss, expected_loss, 1e-5)) << loss << " " << expected_loss;
  EXPECT_TRUE(at::allclose(gradient, expected_gradient, 1e-2, 1e-6));
  // Sums of up to four gradients: one rounding here, up to three there.
  EXPECT_TRUE(at::allclose(planes, expected, 2e-2, 5e-2));
  EXPECT_TRUE(last.equal(planes));
}

// LibTorch's own backward of a norm sums in another order where the parameters' gradients alone are asked
// for.
TEST_F(GpuDeviceTest, GradientsOfANorm_AskedForInHalves_AreThoseOfTheWhole) {
  at::Tensor x, given, parameters[4];
  {
    const auto scope = device_->Charge(MemoryClass::kWeights, Tallied::kNo);
    x = at::randn({5, 8, 9, 9}, Options()).requires_grad_();
    given = at::randn({5, 8, 9, 9}, Options());
    for (at::Tensor& parameter : parameters) parameter = at::randn({8}, Options()).requires_grad_();
  }
  const std::vector<at::Tensor> trained(parameters, parameters + 4);
  std::vector<at::Tensor> leaves = trained;
  leaves.push_back(x);
  device_->BeginJob(Forward(0), false);
  const auto gradients = [&](const std::vector<at::Tensor>& of) {
    return torch::autograd::grad({BatchNorm(x, parameters, 1e-5, /*training=*/true)}, of, {given});
  };
  const auto whole = gradients(leaves), of_parameters = gradients(trained), of_input = gradients({x});
  ASSERT_TRUE(WaitFor(*device_->EndJob()).ok());
  for (size_t i = 0; i < trained.size(); ++i) EXPECT_TRUE(of_parameters[i].equal(whole[i])) << i;
  EXPECT_TRUE(of_input[0].equal(whole.back()));
}

TEST_F(GpuDeviceTest, GraphWithDropout_DropsByTheSeedsOfEachReplay) {
  at::Tensor x;
  {
    const auto scope = device_->Charge(MemoryClass::kWeights, Tallied::kNo);
    x = at::randn({1000}, Options()).requires_grad_();
  }
  PassNumbers numbers(device_->math(), device_->torch_device(), /*sites=*/1);
  at::Tensor y, gradient;
  const auto run = [&](const MaskKey& key) {
    y = Dropout(x, 0.3, key, 0, 1);
    gradient = torch::autograd::grad({y}, {x}, {x.detach()})[0];
  };
  const MaskKey keys[] = {{3, 0, 0, true, &device_->math()}, {3, 0, 1, true, &device_->math()}};
  device_->BeginJob(Forward(0), false);
  run(keys[0]);
  ASSERT_TRUE(WaitFor(*device_->EndJob()).ok());
  MaskKey captured = keys[0];
  captured.numbers = &numbers;
  device_->BeginJob(Forward(1), false);
  absl::StatusOr<std::unique_ptr<CapturedWork>> work = device_->Capture(
      [&] {
        run(captured);
        return absl::OkStatus();
      },
      nullptr);
  ASSERT_TRUE(work.ok()) << work.status();
  ASSERT_NE(*work, nullptr);
  const at::Tensor replayed = y, replayed_gradient = gradient;
  for (const MaskKey& key : keys) {
    numbers.Write(key);
    (*work)->Replay();
    run(key);
    EXPECT_TRUE(replayed.equal(y));
    EXPECT_TRUE(replayed_gradient.equal(gradient));
  }
  ASSERT_TRUE(WaitFor(*device_->EndJob()).ok());
}

TEST_F(GpuDeviceTest, Capture_OfWorkThatWaits_IsAFailureInWords) {
  device_->BeginJob(Forward(0), false);
  const at::Tensor x = at::randn({4}, Options());
  const absl::StatusOr<std::unique_ptr<CapturedWork>> work = device_->Capture(
      [&] {
        (void)x.cpu();
        return absl::OkStatus();
      },
      nullptr);
  EXPECT_FALSE(work.ok());
  EXPECT_NE(work.status().message().find("captur"), absl::string_view::npos) << work.status();
  (void)device_->EndJob();
}

TEST_F(GpuDeviceTest, Scope_ChargesLibTorchsTensors) {
  const auto scope = device_->Charge(MemoryClass::kActivations, Tallied::kNo);
  const int64_t before = device_->live_bytes()[static_cast<int>(MemoryClass::kActivations)];
  const at::Tensor x = at::empty({1000, 1000}, Options());
  EXPECT_EQ(device_->live_bytes()[static_cast<int>(MemoryClass::kActivations)] - before, 4000256);
}

TEST_F(GpuDeviceTest, NoMemory_NamesTheClass) {
  const absl::StatusOr<Tensor> none =
      device_->NewFlat(int64_t{1} << 40, MemoryClass::kGradients, DataType::kFloat32);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(none.status().message().find("bytes for gradients"), absl::string_view::npos) << none.status();
}

// Leaves the process's context of no use, so it is one of its own.
TEST_F(GpuDeviceTest, KernelError_FailsTheJobByName) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        device_->BeginJob(Job::Compute(7, 3, 5, JobKind::kForward), false);
        // An address that is nobody's.
        device_->math().Add(reinterpret_cast<float*>(uintptr_t{1} << 45),
                            reinterpret_cast<float*>(uintptr_t{1} << 45), 4);
        const std::shared_ptr<LaunchedJob> job = device_->EndJob();
        const absl::Status failed = WaitFor(*job);
        std::fprintf(stderr, "%s\n", failed.ToString().c_str());
        std::_Exit(failed.ok() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "step 7, stage 3, micro-batch 5.*illegal memory access");
}

}  // namespace
}  // namespace weft::gpu_device_test
