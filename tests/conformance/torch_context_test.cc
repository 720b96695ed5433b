// LibTorch's state as a run sets it, and what it says of kernels that are refused; the deterministic maximum.
#include "worker/shell/torch/torch_context.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>

#include "worker/shell/torch/max_pool.h"
#include "worker/shell/torch/torch_guard.h"

namespace weft::torch_context_test {
namespace {

using ::testing::HasSubstr;

absl::Status UsesAKernelThatIsNotDeterministic() {
  return Guarded([] { return "backward of step 3, stage 1"; },
                 []() -> absl::Status {
                   at::Tensor x = at::zeros({4});
                   // An operation without a deterministic kernel also on the CPU.
                   x.put_(at::zeros({2}, at::kLong), at::zeros({2}), /*accumulate=*/false);
                   return absl::OkStatus();
                 });
}

RunSpec RunWith(Precision precision, Kernels kernels, ModelSpec model = MlpSpec{}) {
  RunSpec run;
  run.precision = precision;
  run.kernels = kernels;
  run.model = std::move(model);
  return run;
}

// Prepares LibTorch for the run, which ends at once.
void ExpectPrepared(const RunSpec& run) {
  const auto prepared = PrepareRun(run);
  EXPECT_TRUE(prepared.ok()) << prepared.status();
}

TEST(TorchContext, KernelThatIsNotDeterministic_IsRefusedByNameUnlessAllowed) {
  PrepareProcess();
  ExpectPrepared(RunWith(Precision::kFloat32, Kernels::kDeterministic));
  const absl::Status refused = UsesAKernelThatIsNotDeterministic();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("backward of step 3, stage 1: the operation put_"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("`kernels: any` in the run file allows it"));
  ExpectPrepared(RunWith(Precision::kBFloat16, Kernels::kDeterministic, ResNetSpec{}));
  EXPECT_FALSE(at::globalContext().userEnabledMkldnn());
  ExpectPrepared(RunWith(Precision::kFloat32, Kernels::kDeterministic, ResNetSpec{}));
  // The next run of the process decides anew.
  ExpectPrepared(RunWith(Precision::kFloat32, Kernels::kAny));
  EXPECT_TRUE(UsesAKernelThatIsNotDeterministic().ok());
  ExpectPrepared(RunWith(Precision::kBFloat16, Kernels::kDeterministic));
  EXPECT_FALSE(UsesAKernelThatIsNotDeterministic().ok());
}

TEST(TorchContext, RunBesideAnother_IsRefusedIfItWantsOtherSettings) {
  PrepareProcess();
  auto first = PrepareRun(RunWith(Precision::kFloat32, Kernels::kDeterministic, ResNetSpec{}));
  ASSERT_TRUE(first.ok());
  auto second = PrepareRun(RunWith(Precision::kFloat32, Kernels::kDeterministic, ResNetSpec{}));
  ASSERT_TRUE(second.ok());
  const absl::Status refused =
      PrepareRun(RunWith(Precision::kFloat32, Kernels::kDeterministic, GptSpec{})).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("serves another run with deterministic kernels, float32, oneDNN"));
  EXPECT_TRUE(at::globalContext().userEnabledMkldnn());
  first->reset();
  EXPECT_FALSE(PrepareRun(RunWith(Precision::kTf32, Kernels::kDeterministic, ResNetSpec{})).ok());
  second->reset();
  ExpectPrepared(RunWith(Precision::kTf32, Kernels::kDeterministic, GptSpec{}));
  EXPECT_FALSE(at::globalContext().userEnabledMkldnn());
}

TEST(TorchContext, Tf32_IsForTheRunThatAsksForIt) {
  PrepareProcess();
  for (const auto& [precision, tf32] : {std::pair(Precision::kTf32, true),
                                        {Precision::kFloat32, false},
                                        {Precision::kTf32, true},
                                        {Precision::kBFloat16, false}}) {
    ExpectPrepared(RunWith(precision, Kernels::kDeterministic));
    EXPECT_EQ(at::globalContext().allowTF32CuBLAS(), tf32);
    EXPECT_EQ(at::globalContext().allowTF32CuDNN(), tf32);
  }
}

TEST(TorchContext, OneDnn_ServesModelsThatConvolve) {
  PrepareProcess();
  EXPECT_FALSE(at::globalContext().userEnabledMkldnn());
  ExpectPrepared(RunWith(Precision::kFloat32, Kernels::kDeterministic, ResNetSpec{}));
  EXPECT_TRUE(at::globalContext().userEnabledMkldnn());
  ExpectPrepared(RunWith(Precision::kBFloat16, Kernels::kDeterministic, ResNetSpec{}));
  EXPECT_FALSE(at::globalContext().userEnabledMkldnn());
  ExpectPrepared(RunWith(Precision::kFloat32, Kernels::kDeterministic, ResNetSpec{}));
  // The next run of the process decides anew.
  ExpectPrepared(RunWith(Precision::kFloat32, Kernels::kDeterministic, GptSpec{}));
  EXPECT_FALSE(at::globalContext().userEnabledMkldnn());
}

// In one operation each, forward and backward: the bits of LibTorch's own, also where maxima are equal and
// windows overlap.
TEST(MaxPool, AnySize_HasTheBitsOfLibTorchsOnTheCpu) {
  PrepareProcess();
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>(16, 16), {7, 7}, {6, 9}, {1, 1}, {2, 2}, {1, 5}, {112, 3}}) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    // Few different values, so that many are equal; and a ReLU's zeros.
    const at::Tensor values = (at::rand({3, 2, rows, columns}) * 8 - 3).floor().clamp_min(0);
    at::Tensor made[2], gradient[2];
    const at::Tensor scale = at::rand(at::max_pool2d(values, 3, 2, 1).sizes()) - 0.5;
    for (const int own : {0, 1}) {
      at::Tensor x = values.clone();
      x.set_requires_grad(true);
      made[own] = own == 1 ? MaxPool(x, nullptr) : at::max_pool2d(x, 3, 2, 1);
      made[own].backward(scale);
      gradient[own] = x.grad();
    }
    EXPECT_TRUE(at::equal(made[0], made[1]));
    EXPECT_TRUE(at::equal(gradient[0], gradient[1]));
    EXPECT_NE(gradient[1].abs().sum().item<float>(), 0);
  }
}

}  // namespace
}  // namespace weft::torch_context_test
