// Whole steps of the built-in models over a GPU of the tests: the host's side of LibTorch's CUDA operations,
// its autograd, allocator and graphs are real, kernels and products do nothing. So it shows what a step asks
// of the device, not what comes of it. cuDNN cannot be had without a driver: residual networks are not here.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "proto/run/run_schedule.h"
#include "tests/conformance/small_runs.h"
#include "tests/conformance/training_driver.h"
#include "tests/gpu/fake_gpu.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/cuda/cuda_backend.h"
#include "worker/shell/memory_source.h"

namespace weft::testing {
namespace {

struct Case {
  std::string name;
  RunSpec (*run)(const std::string& folder, int stages);
  Precision precision = Precision::kFloat32;
  std::string activations = "retain";
  bool graphs = true;
};

Device& Gpu(bool graphs) {
  const auto make = [](bool with_graphs) {
    DeviceOptions options;
    options.graphs = with_graphs;
    return CreateTorchDevice(Require(CreateCudaBackend(options))).release();
  };
  static Device* const with = make(true);
  static Device* const without = make(false);
  return graphs ? *with : *without;
}

class CudaModelTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    run_ = GetParam().run(folder_.path(), 1);
    Widen(&run_.model);
    if (auto* const gpt = std::get_if<GptSpec>(&run_.model)) gpt->dropout = 0;
    run_.precision = GetParam().precision;
    run_.schedule = Require(ParseScheduleText("lpp,groups=1,ranks=1"));
    run_.schedule.activations = GetParam().activations;
    run_.train.steps = 12;
    rank_ = Require(Gpu(GetParam().graphs).CreateRank(run_, 0, memory_));
    Require(rank_->AddStage(0, /*holds_weights=*/true));
  }

  void Do(const Job& job, const std::function<absl::Status()>& work) {
    rank_->BeginJob(job, /*beside=*/false);
    Require(work());
    const std::shared_ptr<LaunchedJob> launched = rank_->EndJob();
    FakeGpu::Run();
    EXPECT_TRUE(Require(launched->Reached()));
  }
  void Step(int t) {
    for (int b = 0; b < run_.train.microbatches; ++b) {
      const Job forward = Job::Compute(t, 0, b, JobKind::kForward);
      Do(forward, [&] { return rank_->Forward(forward, {}, {}, t).status(); });
    }
    for (int b = 0; b < run_.train.microbatches; ++b) {
      const Job backward = Job::Compute(t, 0, b, JobKind::kBackward);
      Do(backward, [&] { return rank_->Backward(backward, {}, {}, t, /*hand_out=*/false).status(); });
    }
    const Job update = Job::Update(t, 0, 0);
    Do(update, [&] { return rank_->Update(update, {}, {}, /*keep=*/false); });
  }

  TemporaryFolder folder_;
  PlainMemory memory_;
  RunSpec run_;
  std::unique_ptr<RankCompute> rank_;
};

TEST_P(CudaModelTest, StepsInSteadyState_NeverWaitForTheDevice) {
  const bool captures = GetParam().graphs && GetParam().activations == "retain";
  int t = 0;
  while (t < 5) Step(t++);
  FakeGpu::ResetWaits();
  const int kernels = FakeGpu::kernels(), graphs = FakeGpu::graphs();
  while (t < 8) Step(t++);
  EXPECT_EQ(FakeGpu::waits(), 0);
  const int microbatches = run_.train.microbatches;
  EXPECT_EQ(FakeGpu::graphs() - graphs, captures ? 3 * 2 * microbatches : 0);
  if (!captures) return;
  // Beside the graphs: the loss is copied out and the gradients summed; then an update.
  EXPECT_LE(FakeGpu::kernels() - kernels, 3 * (4 * microbatches + 8));
}

INSTANTIATE_TEST_SUITE_P(
    Models, CudaModelTest,
    ::testing::Values(Case{"gpt", &SmallGptRun}, Case{"gpt_bf16", &SmallGptRun, Precision::kBFloat16},
                      Case{"gpt_offload", &SmallGptRun, Precision::kFloat32, "offload"},
                      Case{"gpt_recompute", &SmallGptRun, Precision::kFloat32, "recompute"},
                      Case{"gpt_without_graphs", &SmallGptRun, Precision::kFloat32, "retain", false},
                      Case{"mlp", &SmallMlpRun}, Case{"vit", &SmallVitRun},
                      Case{"vit_bf16", &SmallVitRun, Precision::kBFloat16}),
    [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace weft::testing
