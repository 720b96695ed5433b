#include "worker/shell/compute/stage_boundary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace weft::stage_boundary_test {
namespace {

using ::testing::HasSubstr;

RunSpec SmallRun() {
  MlpSpec model;
  model.layers = 3;
  model.inputs = 7;
  model.width = 11;
  RunSpec run;
  run.model = model;
  run.train = {4, 8, 2, 3, SgdSpec()};  // 4 samples a micro-batch
  run.layers_of_stage = {1, 1, 1};
  return run;
}

Tensor Of(DataType type, int64_t samples, int64_t width) {
  const size_t bytes = ElementBytes(type) * static_cast<size_t>(samples * width);
  auto own = std::make_shared<std::vector<char>>(bytes);
  return {{type, 2, {samples, width}}, own->data(), bytes, own};
}

TEST(StageBoundary, TensorsAsTheLayoutHasThem_Pass) {
  RunSpec run = SmallRun();
  const StageLayout layout = LayOutStage(run, 1);
  EXPECT_TRUE(CheckInputs(run, layout, {Of(DataType::kFloat32, 4, 11)}).ok());
  EXPECT_TRUE(CheckOutputGradients(run, layout, {Of(DataType::kFloat32, 4, 11)}).ok());
  EXPECT_TRUE(CheckInputs(run, LayOutStage(run, 0), {}).ok());
  run.precision = Precision::kBFloat16;
  EXPECT_TRUE(CheckInputs(run, layout, {Of(DataType::kBFloat16, 4, 11)}).ok());
}

TEST(StageBoundary, OtherSizesOrTypes_AreRefusedByStage) {
  const RunSpec run = SmallRun();
  const StageLayout layout = LayOutStage(run, 1);
  for (const Tensor& wrong : {Of(DataType::kFloat32, 4, 10), Of(DataType::kFloat32, 3, 11),
                              Of(DataType::kBFloat16, 4, 11), Tensor()}) {
    const absl::Status input = CheckInputs(run, layout, {wrong});
    EXPECT_EQ(input.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(input.message()), HasSubstr("the input of stage 1"));
    EXPECT_THAT(std::string(CheckOutputGradients(run, layout, {wrong}).message()),
                HasSubstr("the output gradient of stage 1"));
  }
}

TEST(StageBoundary, AnotherNumberOfTensors_IsRefused) {
  const RunSpec run = SmallRun();
  const StageLayout layout = LayOutStage(run, 1);
  const Tensor good = Of(DataType::kFloat32, 4, 11);
  EXPECT_EQ(CheckInputs(run, layout, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckInputs(run, layout, {good, good}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckOutputGradients(run, layout, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckOutputGradients(run, layout, {good, good}).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weft::stage_boundary_test
