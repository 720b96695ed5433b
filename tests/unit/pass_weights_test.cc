// The weights under a pass, the parameters that wait for the next ones, and the table of passes.
#include "worker/shell/torch/pass_weights.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "run/run_schedule.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/torch/cpu_rank_device.h"
#include "worker/shell/torch/pass_table.h"
#include "worker/shell/torch/stage_files.h"

namespace weft::pass_weights_test {
namespace {

RunSpec SmallRun() {
  MlpSpec model;
  model.layers = 1;
  model.inputs = 7;
  model.classes = 3;
  RunSpec run;
  run.model = model;
  run.train = {4, 8, 2, 3, SgdSpec()};
  run.layers_of_stage = {1};
  return run;
}

class PassWeightsTest : public ::testing::Test {
 protected:
  std::unique_ptr<HeldStage> Make(const StageRole& role) {
    auto stage = std::make_unique<HeldStage>(run_, 0, role, device_);
    const ScheduledRun run = *ScheduledRun::Make(run_);
    StageFiles files(run, device_);
    if (role.holds()) {
      EXPECT_TRUE(files.Begin(stage.get()).ok());
    }
    return stage;
  }
  Tensor Fetched(const HeldStage& stage) {
    Tensor flat = *device_.NewFlat(stage.layout().elements, MemoryClass::kBuffers, DataType::kFloat32);
    device_.math().Zero(flat.data, flat.bytes);
    return flat;
  }
  static const void* ParameterOf(const Pass& pass) {
    return pass.weights->leaves().parameters.front().const_data_ptr();
  }

  const RunSpec run_ = SmallRun();
  PlainMemory memory_;
  CpuRankDevice device_{memory_};
};

TEST_F(PassWeightsTest, HeldVersion_IsUsedUntilThePassEnds) {
  const auto stage = Make(StageRole::Whole());
  PassWeights weights(*stage, device_);
  auto pass = std::make_unique<Pass>();
  ASSERT_TRUE(weights.Choose({}, 0, pass.get()).ok());
  EXPECT_TRUE(stage->versions().newest()->in_use());
  EXPECT_EQ(ParameterOf(*pass), stage->versions().newest()->data());
  PassWeights::Unbind(pass.get());  // does nothing to held ones
  EXPECT_TRUE(pass->weights->bound());
  pass.reset();
  EXPECT_FALSE(stage->versions().newest()->in_use());
}

TEST_F(PassWeightsTest, FetchedCopy_GoesBetweenJobs_AndAnotherComesUnderTheSameParameters) {
  const auto stage = Make(StageRole::Nothing());
  PassWeights weights(*stage, device_);
  Pass pass;
  Tensor first = Fetched(*stage), second = Fetched(*stage);
  const std::weak_ptr<void> kept = first.owner;
  ASSERT_TRUE(weights.Choose(std::move(first), 0, &pass).ok());
  const StageWeights* const parameters = pass.weights.get();
  PassWeights::Unbind(&pass);
  EXPECT_TRUE(kept.expired());
  const void* const place = second.data;
  ASSERT_TRUE(weights.Rebind(std::move(second), 0, &pass).ok());
  EXPECT_EQ(pass.weights.get(), parameters);
  EXPECT_EQ(ParameterOf(pass), place);
  // The next pass takes the parameters over.
  PassWeights::Unbind(&pass);
  weights.GiveBack(&pass);
  EXPECT_EQ(pass.weights, nullptr);
  Pass next;
  ASSERT_TRUE(weights.Choose(Fetched(*stage), 0, &next).ok());
  EXPECT_EQ(next.weights.get(), parameters);
}

TEST_F(PassWeightsTest, CopyThatIsNotAligned_IsCopiedOnceMore) {
  const auto stage = Make(StageRole::Nothing());
  PassWeights weights(*stage, device_);
  Tensor wide = *device_.NewFlat(stage->layout().elements + 1, MemoryClass::kBuffers, DataType::kFloat32);
  device_.math().Zero(wide.data, wide.bytes);
  Tensor cut = wide;
  cut.data = static_cast<float*>(wide.data) + 1;
  cut.bytes -= sizeof(float);
  cut.shape.size[0] -= 1;
  Pass pass;
  ASSERT_TRUE(weights.Choose(cut, 0, &pass).ok());
  EXPECT_NE(ParameterOf(pass), cut.data);
}

TEST_F(PassWeightsTest, JobWithoutWeights_OfARankThatHoldsNone_IsRefused) {
  const auto stage = Make(StageRole::Nothing());
  PassWeights weights(*stage, device_);
  Pass pass;
  EXPECT_EQ(weights.Choose({}, 0, &pass).code(), absl::StatusCode::kFailedPrecondition);
  const auto holder = Make(StageRole::Whole());
  PassWeights held(*holder, device_);
  EXPECT_EQ(held.Choose({}, /*version=*/1, &pass).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(PassTable, APass_IsThereFromInsertToErase) {
  PassTable table;
  const Job forward = Job::Compute(3, 0, 1, JobKind::kForward);
  const Job backward = Job::Compute(3, 0, 1, JobKind::kBackward);
  EXPECT_EQ(table.Find(forward), nullptr);
  Pass pass;
  pass.fetched = true;
  table.Insert(forward, std::move(pass));
  ASSERT_NE(table.Find(backward), nullptr);
  EXPECT_TRUE(table.Find(backward)->fetched);
  EXPECT_EQ(table.Find(Job::Compute(3, 0, 0, JobKind::kBackward)), nullptr);
  EXPECT_EQ(table.Find(Job::Compute(2, 0, 1, JobKind::kBackward)), nullptr);
  table.Erase(backward);
  EXPECT_EQ(table.Find(backward), nullptr);
}

}  // namespace
}  // namespace weft::pass_weights_test
