// Training in bfloat16, and activations that differ from stage to stage: in any arrangement the bits of the
// reference, and bytes as they are counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"
#include "run/model_layers.h"
#include "run/run_memory.h"
#include "run/run_schedule.h"
#include "tests/conformance/device_fixture.h"
#include "tests/conformance/devices.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/segment_allocator.h"
#include "worker/shell/reference/evaluate.h"
#include "worker/shell/reference/reference.h"

namespace weft::testing {
namespace {

// The fixture of one device and one model.
class BFloat16Training : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  static Device& device() { return DeviceNamed(std::get<0>(GetParam())); }
  static Outcome ReferenceHere(const RunSpec& run) {
    return Reference(run, ReferenceOf(std::get<0>(GetParam())));
  }
  static SameOutcome Comparison(const Outcome& expected) {
    return SameOutcome(std::get<0>(GetParam()), expected);
  }
  static std::string model() { return std::get<1>(GetParam()); }
  RunSpec Run(int stages) const {
    RunSpec run = SmallRun(model(), "adamw", stages, folder_.path());
    run.precision = Precision::kBFloat16;
    return run;
  }
  TestFolder folder_;
  PlainMemory memory_;
};

TEST_P(BFloat16Training, AnyArrangement_EqualsReference) {
  const RunSpec run = Run(4);
  const Outcome reference = ReferenceHere(run);
  SameOutcome same = Comparison(reference);
  same.Train(run, {});
  same.Train(run, {Kind::kPipeline, {3, 2, 1, 0}, /*split_backward=*/true});
  same.Train(run, {Kind::kOneRank, {2, 0, 3, 1}});
  same.Train(run, {Kind::kOneRank, {}, false, /*overlapped=*/true});
  same.Train(run, {Kind::kReplicas});
  same.Train(run, {Kind::kRelayed, {1, 0, 3, 2}, true});
  same.Train(run, {Kind::kSlices, {1, 0, 3, 2}, true});
  same.Train(run, {Kind::kFetched});
  same.Train(run, {Kind::kFetched, {1, 0, 3, 2}, true});
  same.Train(run, {Kind::kRemoteBackward, {2, 3, 0, 1}, true});
}

// Old weights are narrowed copies of their own.
TEST_P(BFloat16Training, OldWeightsClippedAndStopped_EqualReference) {
  for (const char* rule : {"cdp_v1", "cdp_v2"}) {
    SCOPED_TRACE(rule);
    RunSpec run = Run(4);
    run.train.steps = 5;
    run.schedule.name = "gpipe";
    run.schedule.rule = rule;
    run.train.clip_norm = 0.5;
    const Outcome reference = ReferenceHere(run);
    SameOutcome same = Comparison(reference);
    same.Train(run, {Kind::kPipeline, {3, 1, 0, 2}});
    same.Train(run, {Kind::kReplicas});
    same.Train(run, {Kind::kRelayed});
    same.Train(run, {Kind::kFetched, {3, 1, 0, 2}, true});
    run.train.clip_norm = 0;
    const Outcome unclipped = ReferenceHere(run);
    Comparison(unclipped).TrainInTwo(run, 3, {Kind::kReplicas}, {Kind::kSlices});
  }
}

TEST_P(BFloat16Training, EveryActivationPolicy_EqualsReference) {
  RunSpec run = Run(3);
  const Outcome reference = ReferenceHere(run);
  SameOutcome same = Comparison(reference);
  for (const char* activations : {"recompute", "offload", "recompute/retain/offload"}) {
    run.schedule.activations = activations;
    for (const bool split : {false, true}) {
      same.Train(run, {Kind::kPipeline, {3, 1, 0, 2}, split});
      same.Train(run, {Kind::kFetched, {1, 0, 3, 2}, split});
    }
  }
}

// Compares with float32: other bits, yet the same training. At the small runs' own rate a vision transformer
// stands at the edge of stability: how a CPU's kernels round decides whether it learns, in either precision.
TEST_P(BFloat16Training, Loss_FallsAsInFloat32) {
  RunSpec run = Run(2);
  run.train.steps = 60;
  std::get<AdamWSpec>(run.train.optimizer).lr = 1e-3;
  const Outcome narrow = Train(device(), run, {});
  run.precision = Precision::kFloat32;
  const Outcome wide = Train(device(), run, {});
  EXPECT_EQ(narrow.initial, wide.initial) << "weights are float32";
  EXPECT_NE(narrow.losses, wide.losses);
  const auto mean = [](auto begin, auto end) {
    double sum = 0;
    for (auto loss = begin; loss != end; ++loss) sum += *loss;
    return sum / static_cast<double>(end - begin);
  };
  const auto fall = [&](const Outcome& outcome) {
    const auto& l = outcome.losses;
    return mean(l.begin(), l.begin() + 5) - mean(l.end() - 5, l.end());
  };
  EXPECT_NEAR(narrow.losses[0], wide.losses[0], 0.06 * wide.losses[0]);
  EXPECT_GT(fall(wide), 0.1);
  EXPECT_GT(fall(narrow), 0.8 * fall(wide));
}

// device_memory_test.cc has the same for float32.
TEST_P(BFloat16Training, CountedMemory_OfEveryStageAndPolicy_BoundsWhatIsMeasured) {
  if (device().name() != "cpu") GTEST_SKIP() << "what kernels need besides is the CPU's here";
  if (model() == "two_tower") GTEST_SKIP() << "its stages are no chain, as this test has them";
  for (const char* activations : {"retain", "recompute", "offload", "offload/recompute/retain"}) {
    RunSpec run = Run(3);
    run.schedule.activations = activations;
    Widen(&run.model);
    for (int s = 0; s < run.stages(); ++s) {
      SCOPED_TRACE(absl::StrFormat("%s, stage %d", activations, s));
      const StageMemory counted = CountStage(run, s);
      auto first = *device().CreateRank(*ScheduledRun::Make(run), 0, memory_);
      auto rank = *device().CreateRank(*ScheduledRun::Make(run), 1, memory_);
      ASSERT_TRUE(rank->AddStage(s, StageRole::Whole()).ok());
      const int64_t elements = rank->stage_elements(s);
      // The weights, and what is narrowed of them.
      EXPECT_LE(Live(*rank, MemoryClass::kWeights), 6 * elements + SegmentAllocator::kAlignment);
      EXPECT_GE(counted.parameters + counted.narrowed, Live(*rank, MemoryClass::kWeights));
      EXPECT_GT(Live(*rank, MemoryClass::kWeights), elements > 0 ? 4 * elements : -1);
      Tensor x;
      for (int t = 0; t < s; ++t) {
        ASSERT_TRUE(first->AddStage(t, StageRole::Whole()).ok());
        x = first->Forward(Job::Compute(0, t, 0, JobKind::kForward), One(x), {}, 0)->activation;
      }
      if (s > 0) x = CopyOf(x);
      auto forward = rank->Forward(Job::Compute(0, s, 0, JobKind::kForward), One(std::move(x)), {}, 0);
      ASSERT_TRUE(forward.ok()) << forward.status();
      EXPECT_LE(forward->activation_bytes, counted.activation_bytes);
      EXPECT_GE(1.3 * static_cast<double>(forward->activation_bytes) + 2000,
                static_cast<double>(counted.activation_bytes));
      Tensor g;
      if (s + 1 < run.stages()) {
        EXPECT_EQ(forward->activation.shape.type, DataType::kBFloat16);
        g = CopyOf(std::exchange(forward->activation, Tensor{}));
      }
      auto backward = rank->Backward(Job::Compute(0, s, 0, JobKind::kBackward), One(g), {}, 0, true);
      ASSERT_TRUE(backward.ok()) << backward.status();
      if (s > 0) {
        EXPECT_EQ(backward->input_gradients.at(0).shape.type, DataType::kBFloat16);
      }
      EXPECT_EQ(backward->gradient.shape.type, DataType::kFloat32);
      const BytesByClass peak = rank->peak_bytes();
      const auto peak_of = [&](MemoryClass c) { return peak[static_cast<int>(c)]; };
      EXPECT_LE(peak_of(MemoryClass::kActivations) + peak_of(MemoryClass::kBuffers),
                counted.activation_bytes + counted.work);
    }
  }
}

TEST_P(BFloat16Training, ActivationInFloat32_IsRefused) {
  const RunSpec run = Run(2);
  auto rank = *device().CreateRank(*ScheduledRun::Make(run), 0, memory_);
  ASSERT_TRUE(rank->AddStage(0, StageRole::Whole()).ok() && rank->AddStage(1, StageRole::Whole()).ok());
  Tensor x = rank->Forward(Job::Compute(0, 0, 0, JobKind::kForward), {}, {}, 0)->activation;
  x.shape.type = DataType::kFloat32;
  EXPECT_FALSE(rank->Forward(Job::Compute(0, 1, 0, JobKind::kForward), One(x), {}, 0).ok());
}

TEST_P(BFloat16Training, Evaluation_IsNearThatInFloat32) {
  if (device().name() != "cpu") GTEST_SKIP() << "it is of the CPU";
  RunSpec run = Run(2);
  const absl::Status trained = RunReference(run, folder_.path(), [](const ReferenceStep&) { return true; });
  ASSERT_TRUE(trained.ok()) << trained;
  const auto always = [](const Evaluation&) { return true; };
  const auto narrow = Evaluate(run, folder_.path() + "/checkpoint", always);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  run.precision = Precision::kFloat32;
  const auto wide = Evaluate(run, folder_.path() + "/checkpoint", always);
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_NE(narrow->losses.sum, wide->losses.sum);
  EXPECT_NEAR(narrow->loss(), wide->loss(), 0.05 * wide->loss());
}

std::string NameOf(const ::testing::TestParamInfo<BFloat16Training::ParamType>& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param);
}
INSTANTIATE_TEST_SUITE_P(Cpu, BFloat16Training,
                         ::testing::Combine(::testing::Values("cpu"),
                                            ::testing::Values("gpt", "mlp", "two_tower", "resnet18",
                                                              "resnet50", "vit_b16")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(OwnMemory, BFloat16Training,
                         ::testing::Combine(::testing::ValuesIn(OwnMemoryDevices()),
                                            ::testing::Values("gpt", "two_tower", "resnet50")),
                         NameOf);

TEST(Tf32Training, OnTheCpu_HasTheBitsOfFloat32) {
  TestFolder folder;
  RunSpec run = SmallGptRun(folder.path(), 2);
  const Outcome wide = Train(DeviceNamed("cpu"), run, {});
  run.precision = Precision::kTf32;
  ExpectSame(Train(DeviceNamed("cpu"), run, {}), wide);
  ExpectSame(Reference(run), wide);
}

TEST(ActivationsOfStages, DifferentInFloat32_EqualReferenceAndLeaveWhatTheySay) {
  TestFolder folder;
  RunSpec run = SmallGptRun(folder.path(), 3);
  const Outcome reference = Reference(run);
  run.schedule.activations = "offload/recompute/retain";
  for (const bool split : {false, true}) {
    ExpectSame(Train(DeviceNamed("cpu"), run, {Kind::kPipeline, {3, 1, 0, 2}, split}), reference);
    ExpectSame(Train(DeviceNamed("cpu"), run, {Kind::kOneRank, {0, 2, 1, 3}, split}), reference);
    ExpectSame(Train(DeviceNamed("cpu"), run, {Kind::kSlices, {2, 1, 3, 0}, split}), reference);
  }
  PlainMemory memory;
  auto rank = *DeviceNamed("cpu").CreateRank(*ScheduledRun::Make(run), 0, memory);
  Tensor x;
  std::vector<int64_t> activations, host;
  for (int s = 0; s < 3; ++s) {
    ASSERT_TRUE(rank->AddStage(s, StageRole::Whole()).ok());
    x = rank->Forward(Job::Compute(0, s, 0, JobKind::kForward), One(std::move(x)), {}, 0)->activation;
    activations.push_back(Live(*rank, MemoryClass::kActivations));
    host.push_back(Live(*rank, MemoryClass::kHost));
  }
  EXPECT_GT(host[0], 0);
  EXPECT_EQ(host[1], host[0]) << "the second stage is run again";
  EXPECT_EQ(host[2], host[0]) << "the third retains";
  EXPECT_GT(activations[2], activations[1]);
}

}  // namespace
}  // namespace weft::testing
