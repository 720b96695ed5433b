// The tolerance between float32 trainings on two devices (docs/guide/tolerance.md) without a GPU: arithmetics
// that round otherwise than the CPU stay within, wrong ones do not.
#include "tests/conformance/float32_tolerance.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/conformance/devices.h"
#include "tests/conformance/exact_training.h"
#include "tests/testgpu/load_testgpu.h"

namespace weft::testing {
namespace {

// The test device, computing so.
std::unique_ptr<DeviceBackend> DeviceOf(const std::string& arithmetic) {
  setenv("WEFT_TESTGPU_ARITHMETIC", arithmetic.c_str(), 1);
  setenv("WEFT_TESTGPU_DELAY_US", "0", 1);
  std::unique_ptr<DeviceBackend> backend = LoadTestGpu();
  unsetenv("WEFT_TESTGPU_ARITHMETIC");
  unsetenv("WEFT_TESTGPU_DELAY_US");
  return backend;
}

// The fixture of one model and one optimizer.
class Float32Tolerance : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  static std::string model() { return std::get<0>(GetParam()); }
  static std::string optimizer() { return std::get<1>(GetParam()); }
  RunSpec Run() const { return ToleranceRun(model(), optimizer(), folder_.path()); }
  static const Truth& truth() { return TruthOf(model(), optimizer()); }
  Distance FromTruth(const std::string& what, const Trajectory& trajectory) const {
    const Distance distance = DistanceOf(trajectory, truth().trajectory, truth().tolerance);
    Print(absl::StrCat(model(), ", ", optimizer(), ", ", what), distance);
    return distance;
  }

 private:
  TestFolder folder_;
};

// The sum over all parameters of what `of` makes of a parameter's name.
template <typename F>
double Total(const Trajectory::Weights& weights, F of) {
  double total = 0;
  for (const auto& [name, values] : weights) total += of(name) * static_cast<double>(values.size());
  return total;
}

// A tolerance as large as what training does would tell nothing.
TEST_P(Float32Tolerance, Tolerance_IsSmallBesideWhatTrainingMoves) {
  const Trajectory& trajectory = truth().trajectory;
  const Tolerance& tolerance = truth().tolerance;
  const Trajectory::Weights& begun = trajectory.weights.at(0);
  for (int t = 1; t <= Run().train.steps; ++t) {
    const Trajectory::Weights& weights = trajectory.weights.at(t);
    const double allowed =
        Total(weights, [&](const std::string& name) { return tolerance.weights.at(t).at(name); });
    const double moved = Total(
        weights, [&](const std::string& name) { return MeanDifference(weights.at(name), begun.at(name)); });
    const double of_loss = tolerance.losses[t - 1] / trajectory.losses[t - 1];
    std::printf("%s, %s, step %d: %.1e of the loss, %.1e of what the weights have moved\n", model().c_str(),
                optimizer().c_str(), t - 1, of_loss, allowed / moved);
    EXPECT_LT(of_loss, 0.02);
    EXPECT_LT(allowed / moved, 0.1);
  }
}

TEST_P(Float32Tolerance, TheCpu_IsWithinOfTheTruth) {
  EXPECT_LE(FromTruth("cpu", TrainPlainly(Run(), nullptr)).ratio(), 1);
}

TEST_P(Float32Tolerance, OtherRounding_IsWithinOfTheTruthAndTwiceOfTheCpu) {
  const Trajectory cpu = TrainPlainly(Run(), nullptr);
  std::vector<std::string> arithmetics = {"wide", "split", "other_kernels"};
  if (model() != "gpt") arithmetics.emplace_back("winograd");
  for (const std::string& arithmetic : arithmetics) {
    SCOPED_TRACE(arithmetic);
    const std::unique_ptr<DeviceBackend> device = DeviceOf(arithmetic);
    const Trajectory other = TrainPlainly(Run(), device.get());
    EXPECT_LE(FromTruth(arithmetic, other).ratio(), 1);
    const Distance distance = DistanceOf(other, cpu, truth().tolerance);
    EXPECT_LE(distance.ratio(), 2);
    EXPECT_GT(distance.ratio(), 0) << "it does not round otherwise";
  }
}

TEST_P(Float32Tolerance, WrongArithmetic_IsFurtherOff) {
  for (const char* arithmetic : {"tf32", "bf16", "no_bias", "wrong_epsilon"}) {
    SCOPED_TRACE(arithmetic);
    const std::unique_ptr<DeviceBackend> device = DeviceOf(arithmetic);
    const Trajectory other = TrainPlainly(Run(), device.get());
    EXPECT_GT(FromTruth(arithmetic, other).ratio(), 1);
  }
}

TEST_P(Float32Tolerance, ForgottenMicrobatch_IsFurtherOff) {
  const Trajectory without = TrainExactly(Run(), {0, 0, Run().train.microbatches - 1});
  EXPECT_GT(FromTruth("a micro-batch forgotten", without).ratio(), 1);
}

const auto kModels = ::testing::Values("gpt", "resnet18");
const auto kOptimizers = ::testing::Values("sgd", "adamw");

INSTANTIATE_TEST_SUITE_P(Models, Float32Tolerance, ::testing::Combine(kModels, kOptimizers),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_with_", std::get<1>(info.param));
                         });

// The fixture of a device, a model and an optimizer. On a GPU: tests/gpu/gpu_tolerance_test.cc.
class Float32Jobs : public ::testing::TestWithParam<std::tuple<std::string, std::string, std::string>> {};

TEST_P(Float32Jobs, Training_IsWithinOfTheTruth) {
  const auto& [device, model, optimizer] = GetParam();
  TestFolder folder;
  const Trajectory trajectory =
      TrainByJobs(ToleranceRun(model, optimizer, folder.path()), DeviceNamed(device));
  const Truth& truth = TruthOf(model, optimizer);
  const Distance distance = DistanceOf(trajectory, truth.trajectory, truth.tolerance);
  Print(absl::StrCat(model, ", ", optimizer, ", jobs on ", device), distance);
  EXPECT_LE(distance.ratio(), 1);
}

INSTANTIATE_TEST_SUITE_P(Devices, Float32Jobs,
                         ::testing::Combine(::testing::Values("cpu", "testgpu"), kModels, kOptimizers),
                         [](const auto& info) {
                           return absl::StrCat(std::get<1>(info.param), "_with_", std::get<2>(info.param),
                                               "_on_", std::get<0>(info.param));
                         });

}  // namespace
}  // namespace weft::testing
