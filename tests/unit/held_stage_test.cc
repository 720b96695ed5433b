// Tests what a rank holds of a stage: versions, the optimizer's steps, slices, norms, and states that go on
// elsewhere.
#include "worker/shell/torch/held_stage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "run/run_schedule.h"
#include "worker/shell/compute/sum_of_squares.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/torch/cpu_rank_device.h"
#include "worker/shell/torch/stage_files.h"
#include "worker/shell/torch/stage_packing.h"

namespace weft::held_stage_test {
namespace {

using ::testing::HasSubstr;

RunSpec SmallRun() {
  MlpSpec model;
  model.layers = 2;
  model.inputs = 7;
  model.width = 11;
  model.classes = 3;
  AdamWSpec adamw;
  adamw.lr = 0.01;
  RunSpec run;
  run.model = model;
  run.train = {4, 8, 2, 3, adamw};
  run.layers_of_stage = {1, 1};
  return run;
}

std::vector<float> ValuesOf(const Tensor& flat) {
  const auto* begin = static_cast<const float*>(flat.data);
  return {begin, begin + flat.bytes / sizeof(float)};
}

int64_t Live(const RankDevice& device, MemoryClass c) { return device.live_bytes()[static_cast<int>(c)]; }

class HeldStageTest : public ::testing::Test {
 protected:
  // Makes stage 0 in this role, begun if it holds something.
  std::unique_ptr<HeldStage> Make(const StageRole& role) {
    auto stage = std::make_unique<HeldStage>(run_, 0, role, device_);
    const ScheduledRun run = *ScheduledRun::Make(run_);
    StageFiles files(run, device_);
    if (role.holds()) {
      EXPECT_TRUE(files.Begin(stage.get()).ok());
    }
    return stage;
  }

  Tensor Flat(const std::vector<float>& values) {
    Tensor flat =
        *device_.NewFlat(static_cast<int64_t>(values.size()), MemoryClass::kBuffers, DataType::kFloat32);
    device_.math().Copy(flat.data, values.data(), flat.bytes);
    return flat;
  }
  // Makes a summed gradient whose elements differ from step to step.
  Tensor Gradient(const HeldStage& stage, int step) {
    std::vector<float> values(stage.layout().elements);
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i * 7 + step * 3 + 1));
    return Flat(values);
  }
  static std::vector<float> At(HeldStage& stage, int version) { return ValuesOf(*stage.Share(version)); }

  RunSpec run_ = SmallRun();
  PlainMemory memory_;
  CpuRankDevice device_{memory_};
};

TEST_F(HeldStageTest, UpdateThatKeeps_LeavesTheVersionBefore) {
  const auto stage = Make(StageRole::Whole());
  const std::vector<float> initial = At(*stage, 0);
  ASSERT_TRUE(stage->Update(0, {Gradient(*stage, 0)}, {}, /*keep=*/true).ok());
  EXPECT_EQ(At(*stage, 0), initial);
  EXPECT_NE(At(*stage, 1), initial);
  stage->Drop(0);
  EXPECT_FALSE(stage->Share(0).ok());
  EXPECT_TRUE(stage->Share(1).ok());
}

TEST_F(HeldStageTest, UpdateThatKeepsNothing_WritesOverWeightsThatNobodyUses) {
  const auto stage = Make(StageRole::Whole());
  const void* const place = stage->versions().newest()->data();
  ASSERT_TRUE(stage->Update(0, {Gradient(*stage, 0)}, {}, /*keep=*/false).ok());
  EXPECT_EQ(stage->versions().newest()->data(), place);
  EXPECT_FALSE(stage->Share(0).ok());
}

TEST_F(HeldStageTest, UpdateWhileAVersionIsShared_LeavesItsBytes) {
  const auto stage = Make(StageRole::Whole());
  const Tensor shared = *stage->Share(0);
  const std::vector<float> initial = ValuesOf(shared);
  ASSERT_TRUE(stage->Update(0, {Gradient(*stage, 0)}, {}, /*keep=*/false).ok());
  EXPECT_EQ(ValuesOf(shared), initial);
  EXPECT_NE(At(*stage, 1), initial);
}

TEST_F(HeldStageTest, Slices_UpdatedApart_HaveTheBitsOfTheWhole) {
  constexpr int kParts = 3;
  const auto whole = Make(StageRole::Whole());
  std::vector<std::unique_ptr<HeldStage>> slices;
  for (int part = 0; part < kParts; ++part) slices.push_back(Make(StageRole::Slice(part, kParts)));
  for (int step = 0; step < 3; ++step) {
    const Tensor gradient = Gradient(*whole, step);
    ASSERT_TRUE(whole->Update(step, {gradient}, {}, false).ok());
    for (int part = 0; part < kParts; ++part) {
      ASSERT_TRUE(slices[part]->Update(step, {Slice(gradient, part, kParts)}, {}, false).ok());
    }
  }
  // The first holder puts all together; its own slice it has.
  std::vector<Tensor> parts(kParts);
  for (int part = 1; part < kParts; ++part) parts[part] = *slices[part]->Share(3);
  EXPECT_EQ(ValuesOf(*slices[0]->Gather(parts, 3)), At(*whole, 3));
}

TEST_F(HeldStageTest, SumInParts_HasTheBitsOfOneSum) {
  const auto one = Make(StageRole::Whole()), parts = Make(StageRole::Whole());
  const Tensor gradient = Gradient(*one, 0);
  ASSERT_TRUE(one->Update(0, {gradient}, {}, false).ok());
  ASSERT_TRUE(parts->Update(0, {Slice(gradient, 0, 2), Slice(gradient, 1, 2)}, {}, false).ok());
  EXPECT_EQ(At(*parts, 1), At(*one, 1));
  EXPECT_EQ(parts->optimizer().steps(), 1);
}

TEST_F(HeldStageTest, PackedState_GoesOnInAnotherStageWithTheSameBits) {
  const auto stays = Make(StageRole::Whole());
  auto leaves = Make(StageRole::Whole());
  const auto comes = Make(StageRole::Nothing());
  for (HeldStage* stage : {stays.get(), leaves.get()}) {
    ASSERT_TRUE(stage->Update(0, {Gradient(*stays, 0)}, {}, /*keep=*/true).ok());
  }
  const Tensor state = *PackState(device_, leaves.get());
  EXPECT_FALSE(leaves->holds());
  ASSERT_TRUE(UnpackState(state, device_, comes.get()).ok());
  EXPECT_TRUE(comes->holds_whole());
  EXPECT_EQ(At(*comes, 0), At(*stays, 0));
  EXPECT_EQ(At(*comes, 1), At(*stays, 1));
  for (HeldStage* stage : {stays.get(), comes.get()}) {
    ASSERT_TRUE(stage->Update(1, {Gradient(*stays, 1)}, {}, /*keep=*/false).ok());
  }
  EXPECT_EQ(At(*comes, 2), At(*stays, 2));
}

TEST_F(HeldStageTest, PackState_LeavesNoBytesOfTheStage) {
  const auto stage = Make(StageRole::Whole());
  EXPECT_GT(Live(device_, MemoryClass::kOptimizer), 0);
  const Tensor state = *PackState(device_, stage.get());
  EXPECT_EQ(Live(device_, MemoryClass::kWeights), 0);
  EXPECT_EQ(Live(device_, MemoryClass::kOptimizer), 0);
  EXPECT_GT(Live(device_, MemoryClass::kBuffers), 0);
}

TEST_F(HeldStageTest, UnpackState_OfOtherBytes_IsDataLoss) {
  const auto stage = Make(StageRole::Nothing());
  const absl::Status status = UnpackState(Flat(std::vector<float>(200, 1)), device_, stage.get());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(stage->holds());
}

TEST_F(HeldStageTest, InstalledWeights_AreCopiedAndNotUpdatedHere) {
  const auto stage = Make(StageRole::Installed());
  EXPECT_EQ(Live(device_, MemoryClass::kOptimizer), 0);
  const Tensor gradient = Gradient(*stage, 0);
  const absl::Status refused = stage->Update(0, {gradient}, {}, false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(stage->Install(gradient, /*keep=*/false).ok());
  EXPECT_EQ(At(*stage, 1), ValuesOf(gradient));
  EXPECT_NE(stage->versions().newest()->data(), gradient.data);
}

TEST_F(HeldStageTest, UpdateWithANormAboveTheLimit_ClipsTheGradient) {
  SgdSpec sgd;
  sgd.lr = 1;
  run_.train.optimizer = sgd;
  run_.train.clip_norm = 0.5;
  const auto stage = Make(StageRole::Whole());
  const std::vector<float> initial = At(*stage, 0);
  const Tensor gradient = Gradient(*stage, 0);
  const Tensor squares = *stage->norm().SumSquares(gradient, 0, 1, {});
  ASSERT_GT(SumOfSquares::FromTensor(squares)->Norm(), 0.5);
  ASSERT_TRUE(stage->Update(0, {gradient}, squares, false).ok());
  const std::vector<float> updated = At(*stage, 1);
  double moved = 0;
  for (size_t i = 0; i < updated.size(); ++i)
    moved += std::pow(static_cast<double>(updated[i]) - static_cast<double>(initial[i]), 2);
  EXPECT_NEAR(std::sqrt(moved), 0.5, 1e-5);
}

TEST_F(HeldStageTest, UpdateWithoutANorm_IsLeftOutWhereTheRunSkips) {
  run_.train.non_finite = NonFinite::kSkip;
  const auto stage = Make(StageRole::Whole());
  const std::vector<float> initial = At(*stage, 0);
  std::vector<float> values(stage->layout().elements, 1);
  values[3] = std::numeric_limits<float>::infinity();
  const Tensor gradient = Flat(values);
  const Tensor squares = *stage->norm().SumSquares(gradient, 0, 1, {});
  ASSERT_TRUE(stage->Update(0, {gradient}, squares, /*keep=*/true).ok());
  EXPECT_EQ(At(*stage, 1), initial);
  EXPECT_EQ(stage->optimizer().steps(), 0);
}

TEST_F(HeldStageTest, SumOfSquaresThatIsNotFinite_StopsTheRunAndNamesTheParameter) {
  const auto stage = Make(StageRole::Whole());
  std::vector<float> values(stage->layout().elements, 1);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  const absl::Status status = stage->norm().SumSquares(Flat(values), 0, 1, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), HasSubstr("weight"));
}

TEST_F(HeldStageTest, TensorsOfAnotherSize_AreRefused) {
  const auto stage = Make(StageRole::Whole());
  const Tensor small = Flat(std::vector<float>(16));
  EXPECT_EQ(stage->Update(0, {small}, {}, false).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stage->Install(small, false).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stage->AddToSum(small, small).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stage->Gather({small, small}, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weft::held_stage_test
