// Tests what every Device must do: one numerical result, equal to the reference's to the bit, in any
// arrangement.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/conformance/device_fixture.h"
#include "tests/conformance/devices.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/compute/compute.h"

namespace weft::testing {
namespace {

using Parameters = std::tuple<std::string, std::string, std::string, int>;

class DeviceTraining : public ::testing::TestWithParam<Parameters> {
 protected:
  static Device& device() { return DeviceNamed(std::get<0>(GetParam())); }
  static Outcome ReferenceHere(const RunSpec& run) {
    return Reference(run, ReferenceOf(std::get<0>(GetParam())));
  }
  static SameOutcome Comparison(const Outcome& expected) {
    return SameOutcome(std::get<0>(GetParam()), expected);
  }
  static int stages() { return std::get<3>(GetParam()); }
  RunSpec Run() const {
    return SmallRun(std::get<1>(GetParam()), std::get<2>(GetParam()), stages(), folder_.path());
  }
  // Returns the reference's outcome of Run(). It is computed once for each run that several devices and tests
  // compare with.
  const Outcome& ReferenceOfRun() const {
    static auto* known = new std::map<std::tuple<DeviceBackend*, std::string, std::string, int>, Outcome>();
    const auto& [device, model, optimizer, stages] = GetParam();
    const auto key = std::make_tuple(ReferenceOf(device), model, optimizer, stages);
    if (known->count(key) == 0) (*known)[key] = ReferenceHere(Run());
    return known->at(key);
  }

  TestFolder folder_;
};

TEST_P(DeviceTraining, Pipeline_AnyCut_EqualsReference) {
  ExpectSame(Train(device(), Run(), {}), ReferenceOfRun());
}

TEST_P(DeviceTraining, OneRank_BackwardsOutOfOrder_EqualsReference) {
  ExpectSame(Train(device(), Run(), {Kind::kOneRank, {2, 0, 3, 1}}), ReferenceOfRun());
}

TEST_P(DeviceTraining, Pipeline_BackwardsReversedAndSplit_EqualsReference) {
  ExpectSame(Train(device(), Run(), {Kind::kPipeline, {3, 2, 1, 0}, true}), ReferenceOfRun());
}

TEST_P(DeviceTraining, Replicas_GradientsInSlices_EqualsReference) {
  ExpectSame(Train(device(), Run(), {Kind::kReplicas}), ReferenceOfRun());
}

TEST_P(DeviceTraining, RelayedSumsAndVersions_PoisonedBetweenJobs_EqualsReference) {
  SameOutcome same = Comparison(ReferenceOfRun());
  const RunSpec run = Run();
  same.Train(run, {Kind::kRelayed});
  same.Train(run, {Kind::kRelayed, {1, 0, 3, 2}, true});
}

TEST_P(DeviceTraining, SlicedWeights_PoisonedBetweenJobs_EqualsReference) {
  SameOutcome same = Comparison(ReferenceOfRun());
  const RunSpec run = Run();
  same.Train(run, {Kind::kSlices});
  same.Train(run, {Kind::kSlices, {1, 0, 3, 2}, true});
}

TEST_P(DeviceTraining, FetchedWeights_PoisonedBetweenJobs_EqualsReference) {
  SameOutcome same = Comparison(ReferenceOfRun());
  const RunSpec run = Run();
  same.Train(run, {Kind::kFetched});
  same.Train(run, {Kind::kFetched, {1, 0, 3, 2}, true});
}

// Covers recomputed and offloaded activations, fused and split backwards, held and fetched weights.
TEST_P(DeviceTraining, RecomputedAndOffloaded_EqualReference) {
  SameOutcome same = Comparison(ReferenceOfRun());
  RunSpec run = Run();
  for (const char* activations : {"recompute", "offload"}) {
    run.schedule.activations = activations;
    for (bool split : {false, true}) {
      same.Train(run, {Kind::kPipeline, {3, 1, 0, 2}, split});
      same.Train(run, {Kind::kOneRank, {0, 2, 1, 3}, split});
      same.Train(run, {Kind::kReplicas, {}, split});
      same.Train(run, {Kind::kFetched, {1, 0, 3, 2}, split});
      same.Train(run, {Kind::kSlices, {2, 1, 3, 0}, split});
    }
  }
}

TEST_P(DeviceTraining, BackwardOnAnotherRank_FromTheStagesInput_EqualsReference) {
  SameOutcome same = Comparison(ReferenceOfRun());
  RunSpec run = Run();
  for (const char* activations : {"retain", "recompute", "offload"}) {
    run.schedule.activations = activations;
    same.Train(run, {Kind::kRemoteBackward, {1, 0, 3, 2}});
    same.Train(run, {Kind::kRemoteBackward, {2, 3, 0, 1}, true});
  }
}

TEST_P(DeviceTraining, ForwardBesideABackwardOfTheSameRank_EqualsReference) {
  SameOutcome same = Comparison(ReferenceOfRun());
  RunSpec run = Run();
  for (const char* activations : {"retain", "recompute", "offload"}) {
    run.schedule.activations = activations;
    for (bool split : {false, true}) {
      same.Train(run, {Kind::kOneRank, {}, split, /*overlapped=*/true});
      same.Train(run, {Kind::kFetched, {}, split, /*overlapped=*/true});
    }
  }
}

// Every rule that reads old weights, under every arrangement and activation policy: each forward and its
// backward compute with the version that the rule says.
TEST_P(DeviceTraining, OldWeights_OfEveryRule_EqualReference) {
  const int stages = this->stages();
  std::map<int, Outcome> synchronous;  // by the number of micro-batches
  std::vector<std::pair<std::string, std::string>> schedules = {{"pipedream_2bw", "sync"},
                                                                {"pipedream", "sync"}};
  if (stages == 4) schedules.insert(schedules.end(), {{"gpipe", "cdp_v1"}, {"gpipe", "cdp_v2"}});
  for (const auto& [name, rule] : schedules) {
    SCOPED_TRACE(name + ", " + rule);
    RunSpec run = Run();
    run.train.steps = 6;
    if (name == "pipedream") run.train.microbatches = 1;
    if (synchronous.count(run.train.microbatches) == 0)
      synchronous[run.train.microbatches] = ReferenceHere(run);
    run.schedule.name = name;
    run.schedule.rule = rule;
    const Outcome reference = ReferenceHere(run);  // the plain loop has no activation policy
    const bool newest = name == "pipedream" && stages == 1;
    EXPECT_EQ(synchronous[run.train.microbatches].trained == reference.trained, newest)
        << "old weights must show";
    const bool one = run.train.microbatches == 1;
    const std::vector<int> order = one ? std::vector<int>() : std::vector<int>{3, 1, 0, 2};
    SameOutcome same = Comparison(reference);
    for (const char* activations : {"retain", "recompute", "offload"}) {
      if (stages < 3 && activations != std::string("retain")) continue;  // as others, with fewer versions
      run.schedule.activations = activations;
      same.Train(run, {Kind::kPipeline, order});
      same.Train(run, {Kind::kOneRank, order, /*split_backward=*/true});
      same.Train(run, {Kind::kReplicas});
      same.Train(run, {Kind::kRelayed, order});
      same.Train(run, {Kind::kFetched, order, /*split_backward=*/true});
      same.Train(run, {Kind::kSlices});
      same.Train(run, {Kind::kRemoteBackward, order});
    }
  }
}

// The norm of all stages' gradients clips each of them under every arrangement, on the newest and on old
// weights, in some steps and not in others, and the learning rate is that of the step.
TEST_P(DeviceTraining, ClippedGradientsAndLearningRates_OfEveryRule_EqualReference) {
  const int stages = this->stages();
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
    const Outcome unclipped = ReferenceHere(run);
    // Up to the first step with a norm as large as the largest it is the same training, and that is clipped.
    run.train.clip_norm = 0.999 * *std::max_element(unclipped.norms.begin(), unclipped.norms.end());
    const Outcome reference = ReferenceHere(run);
    EXPECT_TRUE(reference.trained != unclipped.trained) << "clipping must show";
    const auto clipped = std::count_if(reference.norms.begin(), reference.norms.end(),
                                       [&](double norm) { return norm > run.train.clip_norm; });
    EXPECT_GT(clipped, 0);
    EXPECT_LT(clipped, run.train.steps);
    const bool one = run.train.microbatches == 1;
    const std::vector<int> order = one ? std::vector<int>() : std::vector<int>{3, 1, 0, 2};
    SameOutcome same = Comparison(reference);
    same.Train(run, {Kind::kPipeline, order});
    same.Train(run, {Kind::kOneRank, order, /*split_backward=*/true});
    same.Train(run, {Kind::kReplicas});
    same.Train(run, {Kind::kFetched, order, /*split_backward=*/true});
    same.Train(run, {Kind::kSlices});
    same.Train(run, {Kind::kRemoteBackward, order});
    same.Train(run, {Kind::kRelayed});
    run.train.lr_schedule = {};
    EXPECT_TRUE(ReferenceHere(run).trained != reference.trained) << "learning rates must show";
  }
}

// A checkpoint holds all that the rest of a training needs, on whichever device it was made and is read.
TEST_P(DeviceTraining, StoppedAndGoneOnInAnotherArrangement_EqualsReference) {
  const int stages = this->stages();
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
    const Outcome reference = ReferenceHere(run);
    // The run stops before all old versions are there, and after.
    SCOPED_TRACE(name + ", " + rule);
    SameOutcome same = Comparison(reference);
    same.TrainInTwo(run, 1, {Kind::kPipeline}, {Kind::kReplicas});
    same.TrainInTwo(run, 1, {Kind::kSlices}, {Kind::kOneRank});
    same.TrainInTwo(run, 4, {Kind::kReplicas}, {Kind::kSlices});
    same.TrainInTwo(run, 4, {Kind::kOneRank}, {Kind::kFetched});
  }
}

std::string NameOf(const ::testing::TestParamInfo<Parameters>& info) {
  const auto& [device, model, optimizer, stages] = info.param;
  return model + "_" + optimizer + "_stages" + std::to_string(stages) + "_on_" + device;
}
INSTANTIATE_TEST_SUITE_P(Cpu, DeviceTraining,
                         ::testing::Combine(::testing::Values("cpu"),
                                            ::testing::Values("gpt", "mlp", "two_tower",
                                                              "two_tower_of_halves", "resnet18"),
                                            ::testing::Values("sgd", "adamw"), ::testing::Values(1, 2, 4)),
                         NameOf);
// These models have the same layers as others, or nearly.
INSTANTIATE_TEST_SUITE_P(CpuMoreLayers, DeviceTraining,
                         ::testing::Combine(::testing::Values("cpu"),
                                            ::testing::Values("resnet50", "vit_b16"),
                                            ::testing::Values("adamw"), ::testing::Values(3)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(OwnMemory, DeviceTraining,
                         ::testing::Combine(::testing::ValuesIn(OwnMemoryDevices()),
                                            ::testing::Values("gpt", "two_tower"), ::testing::Values("adamw"),
                                            ::testing::Values(4)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(OwnMemorySgd, DeviceTraining,
                         ::testing::Combine(::testing::ValuesIn(OwnMemoryDevices()),
                                            ::testing::Values("resnet18"), ::testing::Values("sgd"),
                                            ::testing::Values(2)),
                         NameOf);

}  // namespace
}  // namespace weft::testing
