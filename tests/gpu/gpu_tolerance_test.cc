// Float32 trainings on a GPU beside those on the CPU and the true ones (docs/guide/tolerance.md). Label gpu.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/conformance/devices.h"
#include "tests/conformance/float32_tolerance.h"

namespace weft::testing {
namespace {

// The fixture of one model and one optimizer.
class GpuTolerance : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    ASSERT_NE(BackendNamed("cuda"), nullptr) << "there is a GPU, and libweft_cuda.so does not serve it";
  }
  static std::string model() { return std::get<0>(GetParam()); }
  static std::string optimizer() { return std::get<1>(GetParam()); }
  RunSpec Run() const { return ToleranceRun(model(), optimizer(), folder_.path()); }
  static const Truth& truth() { return TruthOf(model(), optimizer()); }

  static void ExpectAgreement(const std::string& what, const Trajectory& gpu, const Trajectory& cpu) {
    const Distance from_truth = DistanceOf(gpu, truth().trajectory, truth().tolerance);
    const Distance from_cpu = DistanceOf(gpu, cpu, truth().tolerance);
    Print(absl::StrCat(model(), ", ", optimizer(), ", ", what, " from the truth"), from_truth);
    Print(absl::StrCat(model(), ", ", optimizer(), ", ", what, " from the CPU"), from_cpu);
    EXPECT_LE(from_truth.ratio(), 1);
    EXPECT_LE(from_cpu.ratio(), 2);
  }

 private:
  TestFolder folder_;
};

TEST_P(GpuTolerance, PlainLoop_AgreesWithTheCpus) {
  ExpectAgreement("plain loop on cuda", TrainPlainly(Run(), BackendNamed("cuda")),
                  TrainPlainly(Run(), nullptr));
}

TEST_P(GpuTolerance, Jobs_AgreeWithTheCpusPlainLoop) {
  ExpectAgreement("jobs on cuda", TrainByJobs(Run(), DeviceNamed("cuda")), TrainPlainly(Run(), nullptr));
}

// TensorFloat-32 is trained and printed. The test expects no effect: for products as small as these the
// libraries may use kernels without it.
TEST_P(GpuTolerance, Tf32_EndsAndIsPrinted) {
  RunSpec run = Run();
  run.precision = Precision::kTf32;
  const Trajectory gpu = TrainPlainly(run, BackendNamed("cuda"));
  Print(absl::StrCat(model(), ", ", optimizer(), ", tf32 on cuda from the truth"),
        DistanceOf(gpu, truth().trajectory, truth().tolerance));
  EXPECT_EQ(gpu.losses.size(), static_cast<size_t>(run.train.steps));
}

INSTANTIATE_TEST_SUITE_P(Models, GpuTolerance,
                         ::testing::Combine(::testing::Values("gpt", "resnet18"),
                                            ::testing::Values("sgd", "adamw")),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_with_", std::get<1>(info.param));
                         });

}  // namespace
}  // namespace weft::testing
