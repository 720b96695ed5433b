// Losses and gradients that are infinite or not a number: where a run stops at them, what it skips, and that
// what goes on has the same bits in every arrangement and in the plain loop.
#include "worker/shell/compute/non_finite.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "run/run_schedule.h"
#include "tests/conformance/device_fixture.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/checkpoint/safetensors.h"
#include "worker/shell/compute/elementwise.h"
#include "worker/shell/reference/reference.h"

namespace weft::testing::non_finite_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kSide = 7, kBatch = 20;

// An mlp on images whose first pixel is black but for some `bad` ones, and which goes on, at step 1, from
// weights of which those of that pixel are near the largest float: an image with that pixel bright has no
// finite scores, and the others do not notice.
class NonFiniteValues : public ::testing::Test {
 protected:
  RunSpec Run(const std::string& optimizer, int stages, const std::vector<int>& order, int bad) {
    RunSpec run = SmallRun("mlp", optimizer, stages, folder_.path());
    WriteImages(order, bad);
    run.train.steps = static_cast<int>(order.size()) / kBatch;
    return run;
  }

  // Images in this order; number `bad` has the bright pixel.
  void WriteImages(const std::vector<int>& order, int bad) const {
    const auto count = static_cast<uint32_t>(order.size());
    std::string images = Number(0x803) + Number(count) + Number(kSide) + Number(kSide);
    std::string labels = Number(0x801) + Number(count);
    for (const int i : order) {
      labels.push_back(static_cast<char>(i % 10));
      for (int p = 0; p < kSide * kSide; ++p)
        images.push_back(static_cast<char>(p > 0 ? (i + p * p) * 37 % 256 : i == bad ? 255 : 0));
    }
    WriteFile(folder_.path() + "/images", images);
    WriteFile(folder_.path() + "/labels", labels);
  }

  // Lets the run go on from step 1 with the large weights.
  void Prepare(RunSpec* run) const {
    const std::string out = folder_.path() + "/first";
    RunSpec first = *run;
    first.until = 1;
    Require(RunReference(first, out, [](const ReferenceStep&) { return true; }));
    const std::string path = out + "/checkpoint/stage00.safetensors";
    SafetensorsFile file = Require(ReadSafetensors(path));
    const SafetensorsEntry* weights = file.header.Find("stage00.linear0.weight");
    auto* values = reinterpret_cast<float*>(file.data.data() + weights->begin);
    for (int64_t row = 0; row < weights->shape[0]; ++row) values[row * weights->shape[1]] = 3e38f;
    std::vector<SafetensorsSource> tensors;
    for (const SafetensorsEntry& entry : file.header.entries)
      tensors.push_back({entry.name, *entry.type, entry.shape, file.data.data() + entry.begin});
    std::map<std::string, std::string> metadata = file.header.metadata;
    metadata.erase("crc32");
    Require(WriteSafetensors(path, tensors, metadata));
    Require(WriteCheckpointIndex(out + "/checkpoint", first));
    run->resume = {out + "/checkpoint", 1};
  }

  static std::string Number(uint32_t value) {
    return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
            static_cast<char>(value)};
  }
  static std::vector<int> Numbers(int first, int end) {
    std::vector<int> numbers;
    for (int i = first; i < end; ++i) numbers.push_back(i);
    return numbers;
  }

  Device& cpu_ = DeviceNamed("cpu");
  TestFolder folder_;
};

constexpr int kBad = 47;  // in step 2, the second micro-batch

TEST_F(NonFiniteValues, SkippedUnderEveryRuleAndArrangement_EqualReference) {
  for (const std::string optimizer : {"adamw", "sgd"}) {
    for (const auto& [name, rule] : std::vector<std::pair<std::string, std::string>>{
             {"gpipe", "sync"}, {"pipedream_2bw", "sync"}, {"gpipe", "cdp_v1"}, {"gpipe", "cdp_v2"}}) {
      SCOPED_TRACE(absl::StrCat(optimizer, ", ", name, ", ", rule));
      RunSpec run = Run(optimizer, 4, Numbers(0, 6 * kBatch), kBad);
      run.schedule.name = name;
      run.schedule.rule = rule;
      Prepare(&run);
      run.train.non_finite = NonFinite::kSkip;
      const Outcome reference = Reference(run);
      EXPECT_EQ(reference.skipped, 1);
      ASSERT_EQ(reference.norms.size(), 5u);
      EXPECT_EQ(reference.norms[1], -1);
      EXPECT_EQ(std::count(reference.norms.begin(), reference.norms.end(), -1), 1);
      for (const auto& [tensor, bytes] : reference.trained) {
        const auto* values = reinterpret_cast<const float*>(bytes.data());
        EXPECT_TRUE(AllFinite(values, static_cast<int64_t>(bytes.size() / sizeof(float)))) << tensor;
      }
      const std::vector<int> order = {3, 1, 0, 2};
      ExpectSame(Train(cpu_, run, {Kind::kPipeline, order}), reference);
      ExpectSame(Train(cpu_, run, {Kind::kOneRank, order, /*split_backward=*/true}), reference);
      ExpectSame(Train(cpu_, run, {Kind::kReplicas}), reference);
      ExpectSame(Train(cpu_, run, {Kind::kFetched, order, /*split_backward=*/true}), reference);
      ExpectSame(Train(cpu_, run, {Kind::kSlices}), reference);
      ExpectSame(Train(cpu_, run, {Kind::kRemoteBackward, order}), reference);
      ExpectSame(Train(cpu_, run, {Kind::kRelayed}), reference);
    }
  }
}

// No update is no change: not of the weights, nor of the optimizer's state and its count of steps.
TEST_F(NonFiniteValues, ASkippedStep_IsAsIfItHadNotBeen) {
  RunSpec run = Run("adamw", 2, Numbers(0, 5 * kBatch), kBad);
  Prepare(&run);
  run.train.non_finite = NonFinite::kSkip;
  const Outcome skipped = Reference(run);
  EXPECT_EQ(skipped.skipped, 1);
  std::vector<int> without = Numbers(0, 2 * kBatch);
  const std::vector<int> rest = Numbers(3 * kBatch, 5 * kBatch);
  without.insert(without.end(), rest.begin(), rest.end());
  WriteImages(without, kBad);
  run.train.steps = 4;
  const Outcome plain = Reference(run);
  EXPECT_EQ(plain.skipped, 0);
  EXPECT_TRUE(skipped.trained == plain.trained);
}

// The optimizer's steps are fewer than the updates then, and a checkpoint keeps their number.
TEST_F(NonFiniteValues, StoppedBehindASkippedStepAndGoneOn_EqualsReference) {
  for (const std::string optimizer : {"adamw", "sgd"}) {
    RunSpec run = Run(optimizer, 4, Numbers(0, 6 * kBatch), kBad);
    Prepare(&run);
    run.train.non_finite = NonFinite::kSkip;
    const Outcome reference = Reference(run);
    EXPECT_EQ(reference.skipped, 1);
    ExpectSame(TrainInTwo(cpu_, run, 4, {Kind::kPipeline}, {Kind::kReplicas}), reference);
    ExpectSame(TrainInTwo(cpu_, run, 4, {Kind::kSlices}, {Kind::kOneRank}), reference);
  }
}

TEST_F(NonFiniteValues, Continued_EqualReferenceToTheLastNaN) {
  for (const double clip_norm : {0.0, 1.0}) {
    RunSpec run = Run("adamw", 4, Numbers(0, 5 * kBatch), kBad);
    Prepare(&run);
    run.train.non_finite = NonFinite::kContinue;
    run.train.clip_norm = clip_norm;
    const Outcome reference = Reference(run);
    EXPECT_EQ(reference.losses.back(), -1);
    EXPECT_EQ(Train(cpu_, run, {Kind::kPipeline}).losses, reference.losses);
    EXPECT_EQ(Train(cpu_, run, {Kind::kSlices}).norms, reference.norms);
  }
}

TEST_F(NonFiniteValues, ALoss_StopsTheReferenceWithStepStageAndMicrobatch) {
  for (const double clip_norm : {0.0, 1.0}) {
    RunSpec run = Run("adamw", 4, Numbers(0, 5 * kBatch), kBad);
    Prepare(&run);
    run.train.clip_norm = clip_norm;
    std::vector<double> losses;
    const absl::Status stopped = RunReference(run, folder_.path() + "/out", [&](const ReferenceStep& step) {
      losses.push_back(step.loss);
      return true;
    });
    EXPECT_EQ(stopped.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(stopped.message()),
                AllOf(HasSubstr("forward (step 2, stage 3, micro-batch 1): the loss is "),
                      HasSubstr("train.non_finite")));
    EXPECT_EQ(losses.size(), 1u);
    EXPECT_FALSE(std::ifstream(folder_.path() + "/out/checkpoint/model.safetensors.index.json").is_open());
  }
}

TEST_F(NonFiniteValues, ALoss_FailsItsForward) {
  RunSpec run = Run("adamw", 1, Numbers(0, 5 * kBatch), kBad);
  Prepare(&run);
  PlainMemory memory;
  for (const bool stops : {true, false}) {
    run.train.non_finite = stops ? NonFinite::kStop : NonFinite::kContinue;
    const auto rank = Require(cpu_.CreateRank(*ScheduledRun::Make(run), 0, memory));
    Require(rank->AddStage(0, StageRole::Whole()));
    EXPECT_TRUE(rank->Forward(Job::Compute(2, 0, 0, JobKind::kForward), {}, {}, 1).ok());
    const auto result = rank->Forward(Job::Compute(2, 0, 1, JobKind::kForward), {}, {}, 1);
    EXPECT_EQ(result.ok(), !stops);
    EXPECT_THAT(std::string(result.status().message()),
                HasSubstr(stops ? "micro-batch 1): the loss is " : ""));
  }
}

// A gradient that comes with finite losses: where it is summed, the update finds it and names the parameter.
TEST_F(NonFiniteValues, ASummedGradient_FailsItsUpdateAndNamesTheParameter) {
  RunSpec run = Run("adamw", 2, Numbers(0, kBatch), -1);
  PlainMemory memory;
  for (const double clip_norm : {0.0, 1.0}) {
    run.train.clip_norm = clip_norm;
    const auto rank = Require(cpu_.CreateRank(*ScheduledRun::Make(run), 0, memory));
    Require(rank->AddStage(0, StageRole::Whole()));
    const StageLayout layout = LayOutStage(run, 0);
    std::vector<float> gradient(layout.elements, 0.5f);
    gradient[layout.slots[1].offset + 3] = -INFINITY;
    const Tensor sum = {TensorShape{DataType::kFloat32, 1, {layout.elements}}, gradient.data(),
                        gradient.size() * sizeof(float), nullptr};
    absl::Status failed;
    if (clip_norm > 0) {
      failed = rank->SumSquares(Job::Reduce(0, 0, 0), sum, 0, 1, {}).status();
    } else {
      failed = rank->Update(Job::Update(0, 0, 0), {sum}, {}, false);
    }
    EXPECT_EQ(failed.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(
        std::string(failed.message()),
        AllOf(HasSubstr("(step 0, stage 0, member 0): the gradient of stage 0, summed over the "
                        "micro-batches, is not finite: "),
              HasSubstr(layout.slots[1].layer_name + "." + layout.slots[1].parameter.name + " has -inf")));
  }
}

// In a step that is made again for such a number, the backward of the micro-batch finds it.
TEST_F(NonFiniteValues, AGradientInAnExaminedStep_FailsItsBackward) {
  RunSpec run = Run("adamw", 2, Numbers(0, kBatch), -1);
  PlainMemory memory;
  for (const int examined : {-1, 0}) {
    run.examined_step = examined;
    const auto rank = Require(cpu_.CreateRank(*ScheduledRun::Make(run), 0, memory));
    Require(rank->AddStage(0, StageRole::Whole()));
    const ForwardResult forward = Require(rank->Forward(Job::Compute(0, 0, 1, JobKind::kForward), {}, {}, 0));
    Tensor gradient = forward.activation;
    std::vector<float> values(gradient.bytes / sizeof(float), 1.0f);
    values[0] = INFINITY;
    gradient.data = values.data();
    const auto made =
        rank->Backward(Job::Compute(0, 0, 1, JobKind::kBackward), {gradient}, {}, 0, /*hand_out=*/false);
    EXPECT_EQ(made.ok(), examined < 0) << "else the update finds it";
    EXPECT_EQ(IsNonFinite(made.status()), examined == 0);
    EXPECT_THAT(
        std::string(made.status().message()),
        HasSubstr(examined < 0 ? ""
                               : "backward (step 0, stage 0, micro-batch 1): the gradient of stage 0 is"));
  }
}

// An update can still make weights that are not finite of a finite gradient.
TEST_F(NonFiniteValues, AnUpdateThatOverflows_Fails) {
  RunSpec run = Run("sgd", 2, Numbers(0, kBatch), -1);
  std::get<SgdSpec>(run.train.optimizer).lr = 1e40;
  for (const NonFinite choice : {NonFinite::kStop, NonFinite::kSkip}) {
    run.train.non_finite = choice;
    const absl::Status stopped = RunReference(run, "", [](const ReferenceStep&) { return true; });
    EXPECT_THAT(
        std::string(stopped.message()),
        HasSubstr("update (step 0, stage 0, member 0): the update made weights of stage 0 that are not"));
  }
}

TEST_F(NonFiniteValues, SkippingOnADeviceOfOwnMemory_IsRefusedInWords) {
  RunSpec run = Run("sgd", 2, Numbers(0, kBatch), -1);
  run.train.non_finite = NonFinite::kSkip;
  PlainMemory memory;
  const absl::Status refused =
      DeviceNamed("testgpu").CreateRank(*ScheduledRun::Make(run), 0, memory).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("train.non_finite: skip works on the CPU only"));
}

TEST(CheckExamined, NumberThatIsNotFinite_IsFoundInThatStepAlone) {
  RunSpec run;
  StageLayout layout;
  layout.stage = 2;
  const std::vector<float> values = {1, -2, std::numeric_limits<float>::infinity()};
  const std::vector<FlatPiece> pieces = {{0, 2, values.data()}, {2, 0, nullptr}, {2, 1, values.data() + 2}};
  EXPECT_TRUE(CheckExamined(run, layout, 3, pieces).ok());
  run.examined_step = 3;
  EXPECT_TRUE(CheckExamined(run, layout, 4, pieces).ok());
  EXPECT_TRUE(CheckExamined(run, layout, 3, {pieces[0], pieces[1]}).ok());
  const absl::Status found = CheckExamined(run, layout, 3, pieces);
  EXPECT_TRUE(IsNonFinite(found));
  EXPECT_THAT(std::string(found.message()), HasSubstr("the gradient of stage 2 is not finite"));
  run.train.non_finite = NonFinite::kSkip;
  EXPECT_TRUE(CheckExamined(run, layout, 3, pieces).ok()) << "the step is left out";
}

TEST(CheckFigures, OfADevice_AreJudgedByTheRunsChoice) {
  RunSpec run;
  const Job forward = Job::Compute(3, 1, 2, JobKind::kForward), reduce = Job::Reduce(3, 1, 0),
            update = Job::Update(3, 1, 0);
  const double none = std::nan("");
  EXPECT_TRUE(CheckFigures(run, forward, 1.5, std::nullopt).ok());
  EXPECT_TRUE(CheckFigures(run, reduce, std::nullopt, 2.5).ok());
  EXPECT_THAT(std::string(CheckFigures(run, forward, none, std::nullopt).message()),
              HasSubstr("forward (step 3, stage 1, micro-batch 2): the loss is nan"));
  EXPECT_THAT(std::string(CheckFigures(run, reduce, std::nullopt, none).message()),
              HasSubstr("summed gradients"));
  EXPECT_THAT(std::string(CheckFigures(run, update, std::nullopt, none).message()), HasSubstr("weights"));
  run.train.non_finite = NonFinite::kSkip;
  EXPECT_TRUE(CheckFigures(run, reduce, std::nullopt, none).ok());
  EXPECT_FALSE(CheckFigures(run, update, std::nullopt, none).ok());
  run.train.non_finite = NonFinite::kContinue;
  EXPECT_TRUE(CheckFigures(run, forward, none, std::nullopt).ok());
  EXPECT_TRUE(CheckFigures(run, update, std::nullopt, none).ok());
}

TEST(AllFinite, AnyElementThatIsNot_IsFound) {
  std::vector<float> values(1003, 1e38f);
  values[5] = 0;
  values[6] = -3e38f;
  values[7] = 1e-45f;
  EXPECT_TRUE(AllFinite(values.data(), 1003));
  EXPECT_TRUE(AllFinite(values.data(), 0));
  for (const size_t at : {0, 1, 500, 1001, 1002}) {
    for (const float bad : {INFINITY, -INFINITY, NAN, -NAN}) {
      std::vector<float> with = values;
      with[at] = bad;
      EXPECT_FALSE(AllFinite(with.data(), 1003)) << at << " " << bad;
    }
  }
}

}  // namespace
}  // namespace weft::testing::non_finite_test
