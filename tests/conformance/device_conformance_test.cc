// What every Device must do: one numerical result, equal to the reference's to the bit, in any arrangement.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "proto/run/model_layers.h"
#include "proto/run/run_memory.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/segment_allocator.h"

namespace weft::testing {
namespace {

using Kind = Arrangement::Kind;

Device& Cpu() {
  static const std::unique_ptr<Device> device = CreateCpuDevice();
  return *device;
}

RunSpec SmallRun(const std::string& model, const std::string& optimizer, int stages,
                 const std::string& folder) {
  RunSpec run = model == "gpt"         ? SmallGptRun(folder, stages)
                : model == "mlp"       ? SmallMlpRun(folder, stages)
                : model == "resnet18"  ? SmallResNetRun(folder, stages, 18)
                : model == "resnet50"  ? SmallResNetRun(folder, stages, 50)
                : model == "vit_b16"   ? SmallVitRun(folder, stages)
                : model == "two_tower" ? SmallTwoTowerRun(folder, stages, /*stem=*/1)
                                       : SmallTwoTowerRun(folder, stages, /*stem=*/0);
  run.train.optimizer = optimizer == "adamw" ? AdamW() : Sgd();
  return run;
}

void ExpectSame(const Outcome& got, const Outcome& expected) {
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.norms, expected.norms);
  ASSERT_EQ(got.trained.size(), expected.trained.size());
  for (const auto& [name, bytes] : expected.initial)
    EXPECT_EQ(got.initial.at(name), bytes) << "initial " << name;
  for (const auto& [name, bytes] : expected.trained)
    EXPECT_EQ(got.trained.at(name), bytes) << "trained " << name;
  EXPECT_NE(expected.trained, expected.initial);
}

// Names without the stage, so that different cuts can be compared.
std::map<std::string, std::vector<uint8_t>> WithoutStages(
    const std::map<std::string, std::vector<uint8_t>>& by_name) {
  std::map<std::string, std::vector<uint8_t>> result;
  for (const auto& [name, bytes] : by_name) result[name.substr(name.find('.') + 1)] = bytes;
  return result;
}

class DeviceTraining : public ::testing::TestWithParam<std::tuple<std::string, std::string, int>> {
 protected:
  RunSpec Run() const {
    return SmallRun(std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam()),
                    folder_.path());
  }
  TemporaryFolder folder_;
};

TEST_P(DeviceTraining, Pipeline_AnyCut_EqualsReference) {
  ExpectSame(Train(Cpu(), Run(), {}), Reference(Run()));
}

TEST_P(DeviceTraining, OneRank_BackwardsOutOfOrder_EqualsReference) {
  ExpectSame(Train(Cpu(), Run(), {Kind::kOneRank, {2, 0, 3, 1}}), Reference(Run()));
}

TEST_P(DeviceTraining, Pipeline_BackwardsReversedAndSplit_EqualsReference) {
  ExpectSame(Train(Cpu(), Run(), {Kind::kPipeline, {3, 2, 1, 0}, true}), Reference(Run()));
}

TEST_P(DeviceTraining, Replicas_GradientsInSlices_EqualsReference) {
  ExpectSame(Train(Cpu(), Run(), {Kind::kReplicas}), Reference(Run()));
}

TEST_P(DeviceTraining, RelayedSumsAndVersions_PoisonedBetweenJobs_EqualsReference) {
  ExpectSame(Train(Cpu(), Run(), {Kind::kRelayed}), Reference(Run()));
  ExpectSame(Train(Cpu(), Run(), {Kind::kRelayed, {1, 0, 3, 2}, true}), Reference(Run()));
}

TEST_P(DeviceTraining, SlicedWeights_PoisonedBetweenJobs_EqualsReference) {
  ExpectSame(Train(Cpu(), Run(), {Kind::kSlices}), Reference(Run()));
  ExpectSame(Train(Cpu(), Run(), {Kind::kSlices, {1, 0, 3, 2}, true}), Reference(Run()));
}

TEST_P(DeviceTraining, FetchedWeights_PoisonedBetweenJobs_EqualsReference) {
  ExpectSame(Train(Cpu(), Run(), {Kind::kFetched}), Reference(Run()));
  ExpectSame(Train(Cpu(), Run(), {Kind::kFetched, {1, 0, 3, 2}, true}), Reference(Run()));
}

// Whatever a forward leaves for its backward, fused or split, with held and with fetched weights.
TEST_P(DeviceTraining, RecomputedAndOffloaded_EqualReference) {
  const Outcome reference = Reference(Run());
  for (const char* activations : {"recompute", "offload"}) {
    RunSpec run = Run();
    run.schedule.activations = activations;
    for (bool split : {false, true}) {
      SCOPED_TRACE(std::string(activations) + (split ? ", split" : ", fused"));
      ExpectSame(Train(Cpu(), run, {Kind::kPipeline, {3, 1, 0, 2}, split}), reference);
      ExpectSame(Train(Cpu(), run, {Kind::kOneRank, {0, 2, 1, 3}, split}), reference);
      ExpectSame(Train(Cpu(), run, {Kind::kReplicas, {}, split}), reference);
      ExpectSame(Train(Cpu(), run, {Kind::kFetched, {1, 0, 3, 2}, split}), reference);
      ExpectSame(Train(Cpu(), run, {Kind::kSlices, {2, 1, 3, 0}, split}), reference);
    }
  }
}

TEST_P(DeviceTraining, BackwardOnAnotherRank_FromTheStagesInput_EqualsReference) {
  const Outcome reference = Reference(Run());
  for (const char* activations : {"retain", "recompute", "offload"}) {
    RunSpec run = Run();
    run.schedule.activations = activations;
    ExpectSame(Train(Cpu(), run, {Kind::kApart, {1, 0, 3, 2}}), reference);
    ExpectSame(Train(Cpu(), run, {Kind::kApart, {2, 3, 0, 1}, true}), reference);
  }
}

TEST_P(DeviceTraining, ForwardBesideABackwardOfTheSameRank_EqualsReference) {
  const Outcome reference = Reference(Run());
  for (const char* activations : {"retain", "recompute", "offload"}) {
    RunSpec run = Run();
    run.schedule.activations = activations;
    for (bool split : {false, true}) {
      SCOPED_TRACE(std::string(activations) + (split ? ", split" : ", fused"));
      ExpectSame(Train(Cpu(), run, {Kind::kOneRank, {}, split, /*overlapped=*/true}), reference);
      ExpectSame(Train(Cpu(), run, {Kind::kFetched, {}, split, /*overlapped=*/true}), reference);
    }
  }
}

// Every rule that reads old weights, under every arrangement and activation policy: each forward and its
// backward compute with the version that the rule says.
TEST_P(DeviceTraining, OldWeights_OfEveryRule_EqualReference) {
  const int stages = std::get<2>(GetParam());
  std::vector<std::pair<std::string, std::string>> schedules = {{"pipedream_2bw", "sync"},
                                                                {"pipedream", "sync"}};
  if (stages == 4) schedules.insert(schedules.end(), {{"gpipe", "cdp_v1"}, {"gpipe", "cdp_v2"}});
  for (const auto& [name, rule] : schedules) {
    for (const char* activations : {"retain", "recompute", "offload"}) {
      if (stages < 3 && activations != std::string("retain")) continue;  // as others, with fewer versions
      SCOPED_TRACE(name + ", " + rule + ", " + activations);
      RunSpec run = Run();
      run.train.steps = 6;
      run.schedule.name = name;
      run.schedule.rule = rule;
      run.schedule.activations = activations;
      if (name == "pipedream") run.train.microbatches = 1;
      const Outcome reference = Reference(run);
      const bool one = run.train.microbatches == 1;
      const std::vector<int> order = one ? std::vector<int>() : std::vector<int>{3, 1, 0, 2};
      ExpectSame(Train(Cpu(), run, {Kind::kPipeline, order}), reference);
      ExpectSame(Train(Cpu(), run, {Kind::kOneRank, order, /*split_backward=*/true}), reference);
      ExpectSame(Train(Cpu(), run, {Kind::kReplicas}), reference);
      ExpectSame(Train(Cpu(), run, {Kind::kRelayed, order}), reference);
      ExpectSame(Train(Cpu(), run, {Kind::kFetched, order, /*split_backward=*/true}), reference);
      ExpectSame(Train(Cpu(), run, {Kind::kSlices}), reference);
      ExpectSame(Train(Cpu(), run, {Kind::kApart, order}), reference);
      run.schedule = {};
      const bool newest = name == "pipedream" && stages == 1;
      EXPECT_EQ(Reference(run).trained == reference.trained, newest) << "old weights must show";
    }
  }
}

// Under every arrangement, on the newest and on old weights: the norm of all stages' gradients clips each of
// them, in some steps and not in others, and the learning rate is that of the step.
TEST_P(DeviceTraining, ClippedGradientsAndLearningRates_OfEveryRule_EqualReference) {
  const int stages = std::get<2>(GetParam());
  std::vector<std::pair<std::string, std::string>> schedules = {{"gpipe", "sync"}};
  if (stages == 4)
    schedules.insert(schedules.end(), {{"pipedream", "sync"}, {"gpipe", "cdp_v1"}, {"gpipe", "cdp_v2"}});
  for (const auto& [name, rule] : schedules) {
    SCOPED_TRACE(name + ", " + rule);
    RunSpec run = Run();
    run.train.steps = 6;
    run.schedule.name = name;
    run.schedule.rule = rule;
    if (name == "pipedream") run.train.microbatches = 1;
    run.train.lr_schedule = {LearningRateSchedule::Decay::kCosine, /*warmup=*/2, /*min_lr=*/1e-4};
    run.train.clip_norm = 1e9;
    const Outcome unclipped = Reference(run);
    // Up to the first step with a norm as large as the largest it is the same training, and that is clipped.
    run.train.clip_norm = 0.999 * *std::max_element(unclipped.norms.begin(), unclipped.norms.end());
    const Outcome reference = Reference(run);
    EXPECT_TRUE(reference.trained != unclipped.trained) << "clipping must show";
    const auto clipped = std::count_if(reference.norms.begin(), reference.norms.end(),
                                       [&](double norm) { return norm > run.train.clip_norm; });
    EXPECT_GT(clipped, 0);
    EXPECT_LT(clipped, run.train.steps);
    const bool one = run.train.microbatches == 1;
    const std::vector<int> order = one ? std::vector<int>() : std::vector<int>{3, 1, 0, 2};
    ExpectSame(Train(Cpu(), run, {Kind::kPipeline, order}), reference);
    ExpectSame(Train(Cpu(), run, {Kind::kOneRank, order, /*split_backward=*/true}), reference);
    ExpectSame(Train(Cpu(), run, {Kind::kReplicas}), reference);
    ExpectSame(Train(Cpu(), run, {Kind::kFetched, order, /*split_backward=*/true}), reference);
    ExpectSame(Train(Cpu(), run, {Kind::kSlices}), reference);
    ExpectSame(Train(Cpu(), run, {Kind::kApart, order}), reference);
    ExpectSame(Train(Cpu(), run, {Kind::kRelayed}), reference);
    run.train.lr_schedule = {};
    EXPECT_TRUE(Reference(run).trained != reference.trained) << "learning rates must show";
  }
}

// A checkpoint holds all that the rest of a training needs, whoever made it and whoever goes on.
TEST_P(DeviceTraining, StoppedAndGoneOnInAnotherArrangement_EqualsReference) {
  const int stages = std::get<2>(GetParam());
  std::vector<std::pair<std::string, std::string>> schedules = {
      {"gpipe", "sync"}, {"pipedream_2bw", "sync"}, {"pipedream", "sync"}};
  if (stages == 4) schedules.insert(schedules.end(), {{"gpipe", "cdp_v1"}, {"gpipe", "cdp_v2"}});
  for (const auto& [name, rule] : schedules) {
    RunSpec run = Run();
    run.train.steps = 6;
    run.schedule.name = name;
    run.schedule.rule = rule;
    if (name == "pipedream") run.train.microbatches = 1;
    run.train.lr_schedule = {LearningRateSchedule::Decay::kCosine, /*warmup=*/2};
    const Outcome reference = Reference(run);
    // Before all old versions are there, and after.
    SCOPED_TRACE(name + ", " + rule);
    ExpectSame(TrainInTwo(Cpu(), run, 1, {Kind::kPipeline}, {Kind::kReplicas}), reference);
    ExpectSame(TrainInTwo(Cpu(), run, 1, {Kind::kSlices}, {Kind::kOneRank}), reference);
    ExpectSame(TrainInTwo(Cpu(), run, 4, {Kind::kReplicas}, {Kind::kSlices}), reference);
    ExpectSame(TrainInTwo(Cpu(), run, 4, {Kind::kOneRank}, {Kind::kFetched}), reference);
  }
}

std::string NameOf(const ::testing::TestParamInfo<DeviceTraining::ParamType>& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param) + "_stages" +
         std::to_string(std::get<2>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Cpu, DeviceTraining,
                         ::testing::Combine(::testing::Values("gpt", "mlp", "two_tower",
                                                              "two_tower_of_halves", "resnet18"),
                                            ::testing::Values("sgd", "adamw"), ::testing::Values(1, 2, 4)),
                         NameOf);
// Of the same layers as others, or nearly.
INSTANTIATE_TEST_SUITE_P(CpuMoreLayers, DeviceTraining,
                         ::testing::Combine(::testing::Values("resnet50", "vit_b16"),
                                            ::testing::Values("adamw"), ::testing::Values(3)),
                         NameOf);

class DeviceModel : public ::testing::TestWithParam<std::string> {
 protected:
  RunSpec Run(int stages) const { return SmallRun(GetParam(), "adamw", stages, folder_.path()); }
  RunSpec RunWithDropout(int stages) const {
    RunSpec run = Run(stages);
    if (auto* gpt = std::get_if<GptSpec>(&run.model)) gpt->dropout = 0.2;
    if (auto* mlp = std::get_if<MlpSpec>(&run.model)) mlp->dropout = 0.2;
    return run;
  }
  TemporaryFolder folder_;
  PlainMemory memory_;
};

TEST_P(DeviceModel, Dropout_AnyCutAndArrangement_SameMasks) {
  if (GetParam() != "gpt" && GetParam() != "mlp") GTEST_SKIP() << "a model without dropout";
  const Outcome whole = Train(Cpu(), RunWithDropout(1), {Kind::kOneRank});
  const Outcome cut = Train(Cpu(), RunWithDropout(3), {Kind::kReplicas, {3, 0, 2, 1}});
  EXPECT_EQ(whole.losses, cut.losses);
  EXPECT_EQ(WithoutStages(whole.initial), WithoutStages(cut.initial));
  EXPECT_EQ(WithoutStages(whole.trained), WithoutStages(cut.trained));
  ExpectSame(cut, Reference(RunWithDropout(3)));

  const Outcome without = Train(Cpu(), Run(1), {Kind::kOneRank});
  EXPECT_EQ(without.initial, whole.initial);
  EXPECT_NE(without.losses, whole.losses);
}

TEST_P(DeviceModel, InitialWeights_OtherSeed_Differ) {
  RunSpec run = Run(2);
  const Outcome first = Reference(run);
  run.train.seed += 1;
  const Outcome second = Reference(run);
  EXPECT_NE(first.initial, second.initial);
}

TEST_P(DeviceModel, ParameterCounts_OfCountedChain_EqualStages) {
  const RunSpec run = Run(1);
  const std::vector<LayerCount> counts = CountLayers(run.model);
  RunSpec each = run;
  each.layers_of_stage.assign(counts.size(), 1);
  const Outcome outcome = Train(Cpu(), each, {});
  for (size_t l = 0; l < counts.size(); ++l) {
    const std::string prefix = absl::StrFormat("stage%02d.%s.", l, counts[l].name);
    size_t bytes = 0;
    for (const auto& [name, data] : outcome.initial)
      bytes += absl::StartsWith(name, prefix) ? data.size() : 0;
    EXPECT_EQ(bytes, static_cast<size_t>(counts[l].parameters + counts[l].statistics) * sizeof(float))
        << counts[l].name;
  }
}

TEST_P(DeviceModel, OutputElements_OfCountedChain_EqualActivations) {
  RunSpec run = Run(1);
  const std::vector<LayerCount> counts = CountLayers(run.model);
  run.layers_of_stage.assign(counts.size(), 1);
  auto rank = *Cpu().CreateRank(run, 0, memory_);
  Tensor x;
  for (int s = 0; s < run.stages(); ++s) {
    ASSERT_TRUE(rank->AddStage(s, true).ok());
    auto result = rank->Forward(Job::Compute(0, s, 0, JobKind::kForward), One(x), {}, 0);
    ASSERT_TRUE(result.ok()) << result.status();
    x = result->activation;
    const int64_t elements = counts[s].output_elements() * run.microbatch_samples();
    EXPECT_EQ(x.bytes, static_cast<size_t>(elements) * sizeof(float)) << counts[s].name;
  }
}

int64_t Live(const RankCompute& rank, MemoryClass c) { return rank.live_bytes()[static_cast<int>(c)]; }

TEST_P(DeviceModel, Memory_AfterAStep_ReturnsToTheLevelBefore) {
  const RunSpec run = Run(2);
  auto rank = *Cpu().CreateRank(run, 0, memory_);
  ASSERT_TRUE(rank->AddStage(0, true).ok());
  ASSERT_TRUE(rank->AddStage(1, true).ok());
  const int64_t weights = (rank->stage_elements(0) + rank->stage_elements(1)) * sizeof(float);
  EXPECT_EQ(Live(*rank, MemoryClass::kWeights), weights);
  EXPECT_EQ(Live(*rank, MemoryClass::kOptimizer), 2 * weights);
  const BytesByClass before = rank->live_bytes();
  EXPECT_EQ(before[static_cast<int>(MemoryClass::kActivations)], 0);
  for (int t = 0; t < 2; ++t) {
    for (int b = 0; b < run.train.microbatches; ++b) {
      const int64_t alive = Live(*rank, MemoryClass::kActivations);
      Tensor x = rank->Forward(Job::Compute(t, 0, b, JobKind::kForward), {}, {}, t)->activation;
      ASSERT_TRUE(rank->Forward(Job::Compute(t, 1, b, JobKind::kForward), One(x), {}, t).ok());
      EXPECT_GT(Live(*rank, MemoryClass::kActivations), alive);
    }
    for (int b = 0; b < run.train.microbatches; ++b) {
      Tensor g =
          rank->Backward(Job::Compute(t, 1, b, JobKind::kBackward), {}, {}, t, false)->input_gradients.at(0);
      ASSERT_TRUE(rank->Backward(Job::Compute(t, 0, b, JobKind::kBackward), One(g), {}, t, false).ok());
    }
    EXPECT_EQ(Live(*rank, MemoryClass::kActivations), 0);
    EXPECT_EQ(Live(*rank, MemoryClass::kGradients), weights);
    for (int s = 0; s < 2; ++s) ASSERT_TRUE(rank->Update(Job::Update(t, s, 0), {}, {}, false).ok());
    EXPECT_EQ(rank->live_bytes(), before);
  }
  EXPECT_GT(rank->peak_bytes()[static_cast<int>(MemoryClass::kActivations)], 0);
  EXPECT_GT(rank->peak_bytes()[static_cast<int>(MemoryClass::kBuffers)], 0);
}

// Bytes that a micro-batch leaves on the middle stage, in the rank's memory and in the host's.
struct Left {
  int64_t activations = 0, host = 0;
};
Left LeftByForward(const RunSpec& run, MemorySource& memory) {
  auto first = *Cpu().CreateRank(run, 0, memory);
  auto rank = *Cpu().CreateRank(run, 1, memory);
  EXPECT_TRUE(first->AddStage(0, true).ok());
  EXPECT_TRUE(rank->AddStage(1, true).ok());
  Tensor g;
  for (int b = 0; b < 2; ++b) {
    Tensor x = first->Forward(Job::Compute(0, 0, b, JobKind::kForward), {}, {}, 0)->activation;
    Tensor y = rank->Forward(Job::Compute(0, 1, b, JobKind::kForward), One(std::move(x)), {}, 0)->activation;
    g = CopyOf(y);
  }
  const Left left{Live(*rank, MemoryClass::kActivations) / 2, Live(*rank, MemoryClass::kHost) / 2};
  for (int b = 0; b < 2; ++b) {
    auto backward = rank->Backward(Job::Compute(0, 1, b, JobKind::kBackward), One(g), {}, 0, false);
    EXPECT_TRUE(backward.ok());
    Tensor of_input = CopyOf(backward->input_gradients.at(0));
    backward->input_gradients.clear();
    EXPECT_TRUE(first->Backward(Job::Compute(0, 0, b, JobKind::kBackward), One(of_input), {}, 0, false).ok());
  }
  for (const MemoryClass c : {MemoryClass::kActivations, MemoryClass::kHost}) {
    EXPECT_EQ(Live(*rank, c), 0);
    EXPECT_EQ(Live(*first, c), 0);
  }
  EXPECT_GT(rank->peak_bytes()[static_cast<int>(MemoryClass::kActivations)], left.activations);
  return left;
}

TEST_P(DeviceModel, Activations_ByPolicy_AreWhereItSays) {
  std::map<std::string, Left> left;
  for (const char* activations : {"retain", "recompute", "offload"}) {
    RunSpec run = RunWithDropout(3);
    run.schedule.activations = activations;
    left[activations] = LeftByForward(run, memory_);
  }
  EXPECT_GT(left["retain"].activations, 0);
  EXPECT_EQ(left["retain"].host, 0);
  // The outputs went with their consumers here: of a forward that is run again nothing stays on its rank.
  EXPECT_EQ(left["recompute"].activations, 0);
  EXPECT_EQ(left["recompute"].host, 0);
  EXPECT_EQ(left["offload"].activations, 0);
  // All that was retained went to the host, and the stage's input, which was its maker's, besides.
  EXPECT_GE(left["offload"].host, left["retain"].activations);
  EXPECT_LT(left["offload"].host, 2 * left["retain"].activations);
}

// Admission by bytes rests on counts that are never too small, and are of use only if they are not much too
// large.
void ExpectCountsHold(const RunSpec& run, MemorySource& memory) {
  for (int s = 0; s < run.stages(); ++s) {
    SCOPED_TRACE(absl::StrFormat("%s, stage %d of %d", run.schedule.activations, s, run.stages()));
    const StageMemory counted = CountStage(run, s);
    auto first = s > 0 ? *Cpu().CreateRank(run, 0, memory) : nullptr;
    auto rank = *Cpu().CreateRank(run, 1, memory);
    ASSERT_TRUE(rank->AddStage(s, true).ok());
    ASSERT_GE(counted.parameters, Live(*rank, MemoryClass::kWeights));
    Tensor x;
    for (int t = 0; t < s; ++t) {
      ASSERT_TRUE(first->AddStage(t, true).ok());
      x = first->Forward(Job::Compute(0, t, 0, JobKind::kForward), One(x), {}, 0)->activation;
    }
    if (s > 0) x = CopyOf(x);
    const Tensor input = x;
    auto forward = rank->Forward(Job::Compute(0, s, 0, JobKind::kForward), One(std::move(x)), {}, 0);
    ASSERT_TRUE(forward.ok()) << forward.status();
    EXPECT_EQ(forward->left_bytes, Live(*rank, MemoryClass::kActivations));
    EXPECT_LE(forward->left_bytes, counted.left);
    EXPECT_GE(1.3 * static_cast<double>(forward->left_bytes) + 2000, static_cast<double>(counted.left));
    Tensor g;
    if (s + 1 < run.stages()) g = CopyOf(std::exchange(forward->activation, Tensor{}));
    ASSERT_TRUE(rank->Backward(Job::Compute(0, s, 0, JobKind::kBackward), One(g), {}, 0, false).ok());
    const BytesByClass peak = rank->peak_bytes();
    const auto peak_of = [&](MemoryClass c) { return peak[static_cast<int>(c)]; };
    EXPECT_LE(peak_of(MemoryClass::kActivations) + peak_of(MemoryClass::kBuffers),
              counted.left + counted.work);
  }
}

TEST_P(DeviceModel, CountedMemory_OfEveryStageAndPolicy_BoundsWhatIsMeasured) {
  for (const char* activations : {"retain", "recompute", "offload"}) {
    for (const bool dropout : {false, true}) {
      RunSpec run = dropout ? RunWithDropout(3) : Run(3);
      run.schedule.activations = activations;
      ExpectCountsHold(run, memory_);
      // At a size at which alignment is nothing.
      if (auto* gpt = std::get_if<GptSpec>(&run.model)) {
        gpt->width = 192;
        gpt->context = 64;
      } else if (auto* resnet = std::get_if<ResNetSpec>(&run.model)) {
        resnet->width = 16;
      } else if (auto* vit = std::get_if<VitSpec>(&run.model)) {
        vit->width = 192;
        vit->patch = 2;
      } else {
        std::get<MlpSpec>(run.model).width = 512;
      }
      ExpectCountsHold(run, memory_);
    }
  }
}

TEST_P(DeviceModel, Weights_StillReadByAPeer_AreNotWrittenOver) {
  const RunSpec run = Run(1);
  auto rank = *Cpu().CreateRank(run, 0, memory_);
  ASSERT_TRUE(rank->AddStage(0, true).ok());
  const Tensor shared = *rank->Weights(0, 0);
  const Tensor copy = CopyOf(shared);
  for (int b = 0; b < run.train.microbatches; ++b) {
    ASSERT_TRUE(rank->Forward(Job::Compute(0, 0, b, JobKind::kForward), {}, {}, 0).ok());
    ASSERT_TRUE(rank->Backward(Job::Compute(0, 0, b, JobKind::kBackward), {}, {}, 0, false).ok());
  }
  ASSERT_TRUE(rank->Update(Job::Update(0, 0, 0), {}, {}, false).ok());
  EXPECT_EQ(std::memcmp(shared.data, copy.data, copy.bytes), 0);
  EXPECT_NE(std::memcmp(rank->Weights(0, 1)->data, copy.data, copy.bytes), 0);
}

TEST_P(DeviceModel, OutputGradient_DuringBackward_StaysUnchanged) {
  const RunSpec run = Run(2);
  auto rank = *Cpu().CreateRank(run, 0, memory_);
  ASSERT_TRUE(rank->AddStage(0, true).ok());
  ASSERT_TRUE(rank->AddStage(1, true).ok());
  const Tensor x = rank->Forward(Job::Compute(0, 0, 0, JobKind::kForward), {}, {}, 0)->activation;
  const Tensor x_before = CopyOf(x);
  ASSERT_TRUE(rank->Forward(Job::Compute(0, 1, 0, JobKind::kForward), One(x), {}, 0).ok());
  const Tensor g =
      rank->Backward(Job::Compute(0, 1, 0, JobKind::kBackward), {}, {}, 0, false)->input_gradients.at(0);
  const Tensor g_before = CopyOf(g);
  ASSERT_TRUE(rank->Backward(Job::Compute(0, 0, 0, JobKind::kBackward), One(g), {}, 0, false).ok());
  EXPECT_EQ(std::memcmp(x.data, x_before.data, x.bytes), 0);
  EXPECT_EQ(std::memcmp(g.data, g_before.data, g.bytes), 0);
}

// The same tensor, four bytes off.
Tensor Misaligned(const Tensor& tensor) {
  auto memory = std::make_shared<std::vector<char>>(tensor.bytes + 128);
  char* data = memory->data();
  while (reinterpret_cast<uintptr_t>(data) % 64 != 4) ++data;
  std::memcpy(data, tensor.data, tensor.bytes);
  return {tensor.shape, data, tensor.bytes, memory};
}

TEST_P(DeviceModel, MisalignedTensors_GiveTheSameBits) {
  const RunSpec run = Run(3);
  Tensor outputs[2][3];
  for (bool misaligned : {false, true}) {
    auto deliver = [&](const Tensor& t) { return misaligned ? Misaligned(t) : t; };
    auto holder = *Cpu().CreateRank(run, 0, memory_);
    auto rank = *Cpu().CreateRank(run, 1, memory_);
    for (int s : {0, 1, 2}) {
      ASSERT_TRUE(holder->AddStage(s, true).ok());
      ASSERT_TRUE(rank->AddStage(s, false).ok());
    }
    auto weights = [&](int s) { return deliver(*holder->Weights(s, 0)); };
    Tensor x = rank->Forward(Job::Compute(0, 0, 0, JobKind::kForward), {}, weights(0), 0)->activation;
    x = rank->Forward(Job::Compute(0, 1, 0, JobKind::kForward), One(deliver(x)), weights(1), 0)->activation;
    ASSERT_TRUE(rank->Forward(Job::Compute(0, 2, 0, JobKind::kForward), One(deliver(x)), weights(2), 0).ok());
    Tensor g = rank->Backward(Job::Compute(0, 2, 0, JobKind::kBackward), {}, weights(2), 0, true)
                   ->input_gradients.at(0);
    auto result =
        rank->Backward(Job::Compute(0, 1, 0, JobKind::kBackward), One(deliver(g)), weights(1), 0, true);
    ASSERT_TRUE(result.ok()) << result.status();
    outputs[misaligned][0] = x;
    outputs[misaligned][1] = result->input_gradients.at(0);
    outputs[misaligned][2] = result->gradient;
  }
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(outputs[0][i].bytes, outputs[1][i].bytes);
    EXPECT_EQ(std::memcmp(outputs[0][i].data, outputs[1][i].data, outputs[0][i].bytes), 0) << i;
  }
}

// What a rank holds of a sliced stage is its slice, from the first byte on.
TEST_P(DeviceModel, SlicedStage_HoldsItsSliceAlone) {
  const RunSpec run = Run(2);
  constexpr int kParts = 3;
  auto whole = *Cpu().CreateRank(run, 0, memory_);
  ASSERT_TRUE(whole->AddStage(0, true).ok());
  const Tensor all = *whole->Weights(0, 0);
  std::vector<Tensor> slices;
  for (int part = 0; part < kParts; ++part) {
    auto rank = *Cpu().CreateRank(run, part, memory_);
    ASSERT_TRUE(rank->AddSlicedStage(0, part, kParts).ok());
    const Tensor expected = Slice(all, part, kParts), slice = *rank->Weights(0, 0);
    ASSERT_EQ(slice.bytes, expected.bytes);
    EXPECT_EQ(std::memcmp(slice.data, expected.data, slice.bytes), 0) << part;
    EXPECT_EQ(Live(*rank, MemoryClass::kWeights), static_cast<int64_t>(slice.bytes));
    EXPECT_EQ(Live(*rank, MemoryClass::kOptimizer), 2 * static_cast<int64_t>(slice.bytes));
    EXPECT_EQ(Live(*rank, MemoryClass::kBuffers), 0);
    const Job update = Job::Update(0, 0, part);
    for (int b = 0; b < run.train.microbatches; ++b) {
      ASSERT_TRUE(rank->Accumulate(update, b, CopyOf(slice), part, kParts).ok());
      EXPECT_EQ(Live(*rank, MemoryClass::kGradients), static_cast<int64_t>(slice.bytes));
    }
    // A job of it cannot do without the others' slices.
    EXPECT_EQ(rank->Forward(Job::Compute(0, 0, 0, JobKind::kForward), {}, {}, 0).status().code(),
              absl::StatusCode::kFailedPrecondition);
    slices.push_back(CopyOf(slice));
    auto gathered = rank->GatherWeights(Job::Compute(0, 0, 0, JobKind::kForward), {slices[0], {}, {}}, 0);
    EXPECT_EQ(gathered.status().code(), absl::StatusCode::kInvalidArgument);
  }
  auto last = *Cpu().CreateRank(run, 0, memory_);
  ASSERT_TRUE(last->AddSlicedStage(0, 2, kParts).ok());
  slices[2] = {};
  auto gathered = last->GatherWeights(Job::Compute(0, 0, 0, JobKind::kForward), slices, 0);
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  ASSERT_EQ(gathered->bytes, all.bytes);
  EXPECT_EQ(std::memcmp(gathered->data, all.data, all.bytes), 0);
  // The copy is no weights to keep: a forward uses it up.
  EXPECT_EQ(Live(*last, MemoryClass::kBuffers), static_cast<int64_t>(all.bytes));
  ASSERT_TRUE(last->Forward(Job::Compute(0, 0, 0, JobKind::kForward), {}, *std::move(gathered), 0).ok());
  EXPECT_EQ(Live(*last, MemoryClass::kBuffers), 0);
  EXPECT_EQ(Live(*last, MemoryClass::kWeights), static_cast<int64_t>(Slice(all, 2, kParts).bytes));
  EXPECT_EQ(last->AddSlicedStage(1, 3, 3).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(DeviceModel, BoundaryTensors_OutliveTheRank) {
  const RunSpec run = Run(2);
  auto rank = *Cpu().CreateRank(run, 0, memory_);
  ASSERT_TRUE(rank->AddStage(0, true).ok());
  Tensor x = rank->Forward(Job::Compute(0, 0, 0, JobKind::kForward), {}, {}, 0)->activation;
  Tensor w = *rank->Weights(0, 0);
  const Tensor copy = CopyOf(x);
  rank.reset();
  EXPECT_EQ(std::memcmp(x.data, copy.data, x.bytes), 0);
  std::thread([x = std::move(x), w = std::move(w)]() mutable { x = w = {}; }).join();
}

TEST_P(DeviceModel, Job_OutOfPlace_FailsAndNamesTheJob) {
  const RunSpec run = Run(2);
  auto rank = *Cpu().CreateRank(run, 0, memory_);
  ASSERT_TRUE(rank->AddStage(1, false).ok());
  EXPECT_EQ(rank->AddStage(1, true).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rank->AddStage(2, true).code(), absl::StatusCode::kInvalidArgument);

  const Job other = Job::Compute(3, 0, 2, JobKind::kForward);
  absl::Status status = rank->Forward(other, {}, {}, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(Describe(other)));

  const Job forward = Job::Compute(0, 1, 0, JobKind::kForward);
  status = rank->Forward(forward, {}, {}, 0).status();  // no input
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(Describe(forward)));

  status = rank->Backward(Job::Compute(0, 1, 0, JobKind::kBackward), {}, {}, 0, true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rank->Weights(1, 0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rank->Update(Job::Update(0, 1, 0), {}, {}, false).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(DeviceModel, Update_BeforeAllGradients_SaysWhichIsMissing) {
  const RunSpec run = Run(1);
  auto rank = *Cpu().CreateRank(run, 0, memory_);
  ASSERT_TRUE(rank->AddStage(0, true).ok());
  for (int b : {0, 2}) {
    ASSERT_TRUE(rank->Forward(Job::Compute(0, 0, b, JobKind::kForward), {}, {}, 0).ok());
    ASSERT_TRUE(rank->Backward(Job::Compute(0, 0, b, JobKind::kBackward), {}, {}, 0, false).ok());
  }
  const absl::Status status = rank->Update(Job::Update(0, 0, 0), {}, {}, false);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("lacks micro-batch 1"));
}

// Memory that ends after some bytes.
class LittleMemory final : public MemorySource {
 public:
  explicit LittleMemory(size_t bytes) : left_(bytes) {}
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (bytes > left_) return absl::ResourceExhaustedError("the little memory is used up");
    left_ -= bytes;
    return memory_.Allocate(bytes);
  }
  void Free(void* segment, size_t bytes) override { memory_.Free(segment, bytes); }

 private:
  size_t left_;
  PlainMemory memory_;
};

TEST_P(DeviceModel, Memory_UsedUp_IsAStatusThatNamesTheJob) {
  RunSpec run = Run(1);
  // So few samples that a backward's gradients need more than what it frees.
  run.train.batch = 2 * run.train.microbatches;
  LittleMemory memory(SegmentAllocator::kSegmentBytes);
  auto rank = *Cpu().CreateRank(run, 0, memory);
  ASSERT_TRUE(rank->AddStage(0, true).ok());
  absl::Status status;
  Job job;
  for (int t = 0; t < 10000 && status.ok(); ++t) {
    job = Job::Compute(t, 0, 0, JobKind::kForward);
    status = rank->Forward(job, {}, {}, 0).status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(Describe(job)));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("the little memory is used up"));

  // Also from within the engine of a backward: the exception crosses it.
  status = absl::OkStatus();
  std::vector<Tensor> kept;
  for (int t = 0; t < 10000 && status.ok(); ++t) {
    job = Job::Compute(t, 0, 0, JobKind::kBackward);
    auto result = rank->Backward(job, {}, {}, 0, true);
    status = result.status();
    if (result.ok()) kept.push_back(std::move(result->gradient));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceModel, ::testing::Values("gpt", "mlp", "resnet18", "resnet50", "vit_b16"),
                         [](const auto& info) { return info.param; });

TEST(DeviceTrainingTest, SmallText_ThirtySteps_LossFalls) {
  TemporaryFolder folder;
  RunSpec run = SmallGptRun(folder.path(), 2);
  run.train.steps = 30;
  const Outcome outcome = Train(Cpu(), run, {});
  EXPECT_GT(outcome.losses.front(), 5);
  EXPECT_LT(outcome.losses.back(), 0.6 * outcome.losses.front());
}

// At sizes where the libraries choose other kernels than for the small ones.
TEST(DeviceTrainingTest, SizesOfUse_CutAndReplicated_EqualReference) {
  TemporaryFolder folder;
  RunSpec gpt = SmallGptRun(folder.path(), 3);
  auto& g = std::get<GptSpec>(gpt.model);
  g.width = 256;
  g.heads = 4;
  g.context = 128;
  gpt.train = {2, 8, 2, 1, AdamW()};
  RunSpec mlp = SmallMlpRun(folder.path(), 5);
  std::get<MlpSpec>(mlp.model).width = 768;
  mlp.train = {2, 96, 3, 1, Sgd()};
  for (const RunSpec& run : {gpt, mlp}) {
    const Outcome reference = Reference(run);
    ExpectSame(Train(Cpu(), run, {}), reference);
    ExpectSame(Train(Cpu(), run, {Kind::kFetched}), reference);
    ExpectSame(Train(Cpu(), run, {Kind::kReplicas}), reference);
  }
}

// What a run of two towers needs is counted as it is: parameters to the element, activations as a bound.
TEST(DeviceTrainingTest, TwoTower_CountsOfLayers_HoldForTheCompute) {
  for (const int stem : {0, 2}) {
    TemporaryFolder folder;
    RunSpec run = SmallTwoTowerRun(folder.path(), 1, stem);
    const std::vector<LayerCount> counts = CountLayers(run.model);
    run.layers_of_stage.assign(counts.size(), 1);
    PlainMemory memory;
    auto rank = *Cpu().CreateRank(run, 0, memory);
    const std::vector<std::vector<int>> inputs = StageInputs(counts, run.layers_of_stage);
    std::vector<Tensor> outputs;
    for (int s = 0; s < run.stages(); ++s) {
      SCOPED_TRACE(counts[s].name);
      ASSERT_TRUE(rank->AddStage(s, true).ok());
      int64_t elements = 0;
      for (const ParameterSlot& slot : LayOutStage(run, s).slots) elements += slot.parameter.elements();
      EXPECT_EQ(elements, counts[s].parameters);
      std::vector<Tensor> read;
      for (const int from : inputs[s]) read.push_back(outputs[from]);
      auto result = rank->Forward(Job::Compute(0, s, 0, JobKind::kForward), read, {}, 0);
      ASSERT_TRUE(result.ok()) << result.status();
      const int64_t size = counts[s].output_elements() * run.microbatch_samples();
      EXPECT_EQ(result->activation.bytes, static_cast<size_t>(size) * sizeof(float));
      const int64_t left = counts[s].left_bytes * run.microbatch_samples() + counts[s].left_fixed;
      EXPECT_LE(result->left_bytes, left);
      EXPECT_GE(result->left_bytes, left / 2);
      outputs.push_back(result->activation);
    }
  }
}

TEST(DeviceTrainingTest, TwoTower_WrongNumberOfTensors_IsRefused) {
  TemporaryFolder folder;
  const RunSpec run = SmallTwoTowerRun(folder.path(), 6, /*stem=*/1);
  PlainMemory memory;
  auto rank = *Cpu().CreateRank(run, 0, memory);
  ASSERT_TRUE(rank->AddStage(0, true).ok() && rank->AddStage(5, true).ok());
  const Tensor x = rank->Forward(Job::Compute(0, 0, 0, JobKind::kForward), {}, {}, 0)->activation;
  absl::Status status = rank->Forward(Job::Compute(0, 5, 0, JobKind::kForward), {x}, {}, 0).status();
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("stage 5 reads the outputs of 2 stages, 1 came"));
  status = rank->Backward(Job::Compute(0, 0, 0, JobKind::kBackward), {x}, {}, 0, false).status();
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("the output of stage 0 is read by 2 stages, 1 gradients came"));
}

TEST(DeviceTrainingTest, WithoutData_CreateRank_NamesTheFile) {
  TemporaryFolder folder;
  RunSpec run = SmallGptRun(folder.path(), 1);
  run.data.source = TextData{folder.path() + "/missing.txt"};
  PlainMemory memory;
  const absl::Status status = Cpu().CreateRank(run, 5, memory).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("missing.txt"));
}

TEST(DeviceTrainingTest, TwoRanksOnTwoThreads_AtOnce_EqualReference) {
  TemporaryFolder folder;
  const RunSpec run = SmallGptRun(folder.path(), 2);
  const Outcome reference = Reference(run);
  Outcome outcomes[2];
  std::thread threads[2];
  for (int i = 0; i < 2; ++i) {
    threads[i] = std::thread([&, i] { outcomes[i] = Train(Cpu(), run, {Kind::kPipeline, {1, 3, 0, 2}}); });
  }
  for (std::thread& t : threads) t.join();
  for (const Outcome& outcome : outcomes) ExpectSame(outcome, reference);
}

}  // namespace
}  // namespace weft::testing
