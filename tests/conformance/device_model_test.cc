// Tests what every Device must do with each model beside training: counts, masks, tensors that others keep,
// refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "run/model_layers.h"
#include "run/run_schedule.h"
#include "run/stage_cut.h"
#include "tests/conformance/device_fixture.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/parameters.h"

namespace weft::testing {
namespace {

TEST_P(DeviceModel, Dropout_AnyCutAndArrangement_SameMasks) {
  if (model() != "gpt" && model() != "mlp") GTEST_SKIP() << "a model without dropout";
  const Outcome whole = Train(device(), RunWithDropout(1), {Kind::kOneRank});
  const Outcome cut = Train(device(), RunWithDropout(3), {Kind::kReplicas, {3, 0, 2, 1}});
  EXPECT_EQ(whole.losses, cut.losses);
  EXPECT_EQ(WithoutStages(whole.initial), WithoutStages(cut.initial));
  EXPECT_EQ(WithoutStages(whole.trained), WithoutStages(cut.trained));
  ExpectSame(cut, ReferenceHere(RunWithDropout(3)));

  const Outcome without = Train(device(), Run(1), {Kind::kOneRank});
  EXPECT_EQ(without.initial, whole.initial);
  EXPECT_NE(without.losses, whole.losses);
}

// The mask is made again where the gradient comes: in one or two halves, on another rank, in a graph made
// anew.
TEST_P(DeviceModel, Dropout_WhateverAForwardLeaves_SameMasks) {
  if (model() != "gpt" && model() != "mlp") GTEST_SKIP() << "a model without dropout";
  for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
    RunSpec run = RunWithDropout(3);
    run.precision = precision;
    const Outcome reference = ReferenceHere(run);
    SameOutcome same(std::get<0>(GetParam()), reference);
    for (const char* activations : {"retain", "recompute", "offload"}) {
      run.schedule.activations = activations;
      for (const bool split : {false, true}) {
        same.Train(run, {Kind::kPipeline, {3, 1, 0, 2}, split});
        same.Train(run, {Kind::kRemoteBackward, {1, 0, 3, 2}, split});
      }
    }
  }
}

TEST_P(DeviceModel, InitialWeights_OtherSeed_Differ) {
  RunSpec run = Run(2);
  const Outcome first = ReferenceHere(run);
  run.train.seed += 1;
  const Outcome second = ReferenceHere(run);
  EXPECT_NE(first.initial, second.initial);
}

TEST_P(DeviceModel, ParameterCounts_OfCountedChain_EqualStages) {
  const RunSpec run = Run(1);
  const std::vector<LayerCount> counts = CountLayers(run.model);
  RunSpec each = run;
  each.layers_of_stage.assign(counts.size(), 1);
  const Outcome outcome = Train(device(), each, {});
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
  auto rank = *device().CreateRank(*ScheduledRun::Make(run), 0, memory_);
  Tensor x;
  for (int s = 0; s < run.stages(); ++s) {
    ASSERT_TRUE(rank->AddStage(s, StageRole::Whole()).ok());
    auto result = rank->Forward(Job::Compute(0, s, 0, JobKind::kForward), One(x), {}, 0);
    ASSERT_TRUE(result.ok()) << result.status();
    x = result->activation;
    const int64_t elements = counts[s].output.elements(run.microbatch_samples());
    EXPECT_EQ(x.bytes, static_cast<size_t>(elements) * sizeof(float)) << counts[s].name;
  }
}

TEST_P(DeviceModel, Weights_StillReadByAPeer_AreNotWrittenOver) {
  const RunSpec run = Run(1);
  auto rank = *device().CreateRank(*ScheduledRun::Make(run), 0, memory_);
  ASSERT_TRUE(rank->AddStage(0, StageRole::Whole()).ok());
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
  auto rank = *device().CreateRank(*ScheduledRun::Make(run), 0, memory_);
  ASSERT_TRUE(rank->AddStage(0, StageRole::Whole()).ok());
  ASSERT_TRUE(rank->AddStage(1, StageRole::Whole()).ok());
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
    auto holder = *device().CreateRank(*ScheduledRun::Make(run), 0, memory_);
    auto rank = *device().CreateRank(*ScheduledRun::Make(run), 1, memory_);
    for (int s : {0, 1, 2}) {
      ASSERT_TRUE(holder->AddStage(s, StageRole::Whole()).ok());
      ASSERT_TRUE(rank->AddStage(s, StageRole::Nothing()).ok());
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

// A rank's part of a sliced stage is its slice, from the first byte on.
TEST_P(DeviceModel, SlicedStage_HoldsItsSliceAlone) {
  if (RoundsUp()) GTEST_SKIP() << "it counts to the byte";
  const RunSpec run = Run(2);
  constexpr int kParts = 3;
  auto whole = *device().CreateRank(*ScheduledRun::Make(run), 0, memory_);
  ASSERT_TRUE(whole->AddStage(0, StageRole::Whole()).ok());
  const Tensor all = *whole->Weights(0, 0);
  std::vector<Tensor> slices;
  for (int part = 0; part < kParts; ++part) {
    auto rank = *device().CreateRank(*ScheduledRun::Make(run), part, memory_);
    ASSERT_TRUE(rank->AddStage(0, StageRole::Slice(part, kParts)).ok());
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
  auto last = *device().CreateRank(*ScheduledRun::Make(run), 0, memory_);
  ASSERT_TRUE(last->AddStage(0, StageRole::Slice(2, kParts)).ok());
  slices[2] = {};
  auto gathered = last->GatherWeights(Job::Compute(0, 0, 0, JobKind::kForward), slices, 0);
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  ASSERT_EQ(gathered->bytes, all.bytes);
  EXPECT_EQ(std::memcmp(gathered->data, all.data, all.bytes), 0);
  // The copy is no weights to keep: a forward uses it up. From another device it has come to the host here.
  const bool on_host = device().name() == "cpu";
  EXPECT_EQ(Live(*last, MemoryClass::kBuffers), on_host ? static_cast<int64_t>(all.bytes) : 0);
  ASSERT_TRUE(last->Forward(Job::Compute(0, 0, 0, JobKind::kForward), {}, *std::move(gathered), 0).ok());
  EXPECT_EQ(Live(*last, MemoryClass::kBuffers), 0);
  EXPECT_EQ(Live(*last, MemoryClass::kWeights), static_cast<int64_t>(Slice(all, 2, kParts).bytes));
  EXPECT_EQ(last->AddStage(1, StageRole::Slice(3, 3)).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(DeviceModel, BoundaryTensors_OutliveTheRank) {
  const RunSpec run = Run(2);
  auto rank = *device().CreateRank(*ScheduledRun::Make(run), 0, memory_);
  ASSERT_TRUE(rank->AddStage(0, StageRole::Whole()).ok());
  Tensor x = rank->Forward(Job::Compute(0, 0, 0, JobKind::kForward), {}, {}, 0)->activation;
  Tensor w = *rank->Weights(0, 0);
  const Tensor copy = CopyOf(x);
  rank.reset();
  EXPECT_EQ(std::memcmp(x.data, copy.data, x.bytes), 0);
  std::thread([x = std::move(x), w = std::move(w)]() mutable { x = w = {}; }).join();
}

TEST_P(DeviceModel, Job_OutOfPlace_FailsAndNamesTheJob) {
  const RunSpec run = Run(2);
  auto rank = *device().CreateRank(*ScheduledRun::Make(run), 0, memory_);
  ASSERT_TRUE(rank->AddStage(1, StageRole::Nothing()).ok());
  EXPECT_EQ(rank->AddStage(1, StageRole::Whole()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rank->AddStage(2, StageRole::Whole()).code(), absl::StatusCode::kInvalidArgument);
  StageRole sums_for_nobody = StageRole::Nothing();
  sums_for_nobody.sums_own = true;
  EXPECT_EQ(rank->AddStage(0, sums_for_nobody).code(), absl::StatusCode::kInvalidArgument);

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
  auto rank = *device().CreateRank(*ScheduledRun::Make(run), 0, memory_);
  ASSERT_TRUE(rank->AddStage(0, StageRole::Whole()).ok());
  for (int b : {0, 2}) {
    ASSERT_TRUE(rank->Forward(Job::Compute(0, 0, b, JobKind::kForward), {}, {}, 0).ok());
    ASSERT_TRUE(rank->Backward(Job::Compute(0, 0, b, JobKind::kBackward), {}, {}, 0, false).ok());
  }
  const absl::Status status = rank->Update(Job::Update(0, 0, 0), {}, {}, false);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("lacks micro-batch 1"));
}

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceModel,
                         ::testing::Combine(::testing::Values("cpu"),
                                            ::testing::Values("gpt", "mlp", "resnet18", "resnet50",
                                                              "vit_b16")),
                         NameOfModel);
INSTANTIATE_TEST_SUITE_P(OwnMemory, DeviceModel,
                         ::testing::Combine(::testing::ValuesIn(OwnMemoryDevices()),
                                            ::testing::Values("gpt", "resnet18")),
                         NameOfModel);

class EveryDevice : public ::testing::TestWithParam<std::string> {
 protected:
  static Device& device() { return DeviceNamed(GetParam()); }
  static Outcome ReferenceHere(const RunSpec& run) { return Reference(run, ReferenceOf(GetParam())); }
};

TEST_P(EveryDevice, SmallText_ThirtySteps_LossFalls) {
  TestFolder folder;
  RunSpec run = SmallGptRun(folder.path(), 2);
  run.train.steps = 30;
  const Outcome outcome = Train(device(), run, {});
  EXPECT_GT(outcome.losses.front(), 5);
  EXPECT_LT(outcome.losses.back(), 0.6 * outcome.losses.front());
}

// The libraries choose other kernels at these sizes than for the small ones.
TEST_P(EveryDevice, SizesOfUse_CutAndReplicated_EqualReference) {
  TestFolder folder;
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
    const Outcome reference = ReferenceHere(run);
    ExpectSame(Train(device(), run, {}), reference);
    ExpectSame(Train(device(), run, {Kind::kFetched}), reference);
    ExpectSame(Train(device(), run, {Kind::kReplicas}), reference);
  }
}

// The needs of a run of two towers are counted as they are: parameters to the element, activations as a
// bound.
TEST_P(EveryDevice, TwoTower_CountsOfLayers_HoldForTheCompute) {
  if (!TakesBytesAsAsked(GetParam())) GTEST_SKIP() << "it counts to the byte";
  for (const int stem : {0, 2}) {
    TestFolder folder;
    RunSpec run = SmallTwoTowerRun(folder.path(), 1, stem);
    const std::vector<LayerCount> counts = CountLayers(run.model);
    run.layers_of_stage.assign(counts.size(), 1);
    PlainMemory memory;
    auto rank = *device().CreateRank(*ScheduledRun::Make(run), 0, memory);
    const std::vector<std::vector<int>> inputs = StageInputs(counts, run.layers_of_stage);
    std::vector<Tensor> outputs;
    for (int s = 0; s < run.stages(); ++s) {
      SCOPED_TRACE(counts[s].name);
      ASSERT_TRUE(rank->AddStage(s, StageRole::Whole()).ok());
      int64_t elements = 0;
      for (const ParameterSlot& slot : LayOutStage(run, s).slots) elements += slot.parameter.elements();
      EXPECT_EQ(elements, counts[s].parameters);
      std::vector<Tensor> read;
      for (const int from : inputs[s]) read.push_back(outputs[from]);
      auto result = rank->Forward(Job::Compute(0, s, 0, JobKind::kForward), read, {}, 0);
      ASSERT_TRUE(result.ok()) << result.status();
      const int64_t size = counts[s].output.elements(run.microbatch_samples());
      EXPECT_EQ(result->activation.bytes, static_cast<size_t>(size) * sizeof(float));
      const int64_t activation_bytes = KeptTensorBytes(counts, s, s + 1, run.microbatch_samples());
      EXPECT_LE(result->activation_bytes, activation_bytes);
      // Data that a copy brought to a device are counted, and not tallied.
      if (device().name() == "cpu") {
        EXPECT_EQ(result->activation_bytes, activation_bytes);
      }
      outputs.push_back(result->activation);
    }
  }
}

TEST_P(EveryDevice, TwoTower_WrongNumberOfTensors_IsRefused) {
  TestFolder folder;
  const RunSpec run = SmallTwoTowerRun(folder.path(), 6, /*stem=*/1);
  PlainMemory memory;
  auto rank = *device().CreateRank(*ScheduledRun::Make(run), 0, memory);
  ASSERT_TRUE(rank->AddStage(0, StageRole::Whole()).ok() && rank->AddStage(5, StageRole::Whole()).ok());
  const Tensor x = rank->Forward(Job::Compute(0, 0, 0, JobKind::kForward), {}, {}, 0)->activation;
  absl::Status status = rank->Forward(Job::Compute(0, 5, 0, JobKind::kForward), {x}, {}, 0).status();
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("stage 5 reads the outputs of 2 stages, 1 came"));
  status = rank->Backward(Job::Compute(0, 0, 0, JobKind::kBackward), {x}, {}, 0, false).status();
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("the output of stage 0 is read by 2 stages, 1 gradients came"));
}

TEST_P(EveryDevice, WithoutData_CreateRank_NamesTheFile) {
  TestFolder folder;
  RunSpec run = SmallGptRun(folder.path(), 1);
  run.data.source = TextData{folder.path() + "/missing.txt"};
  PlainMemory memory;
  const absl::Status status = device().CreateRank(*ScheduledRun::Make(run), 5, memory).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("missing.txt"));
}

TEST_P(EveryDevice, TwoRanksOnTwoThreads_AtOnce_EqualReference) {
  TestFolder folder;
  const RunSpec run = SmallGptRun(folder.path(), 2);
  const Outcome reference = ReferenceHere(run);
  Outcome outcomes[2];
  std::thread threads[2];
  for (int i = 0; i < 2; ++i) {
    threads[i] = std::thread([&, i] { outcomes[i] = Train(device(), run, {Kind::kPipeline, {1, 3, 0, 2}}); });
  }
  for (std::thread& t : threads) t.join();
  for (const Outcome& outcome : outcomes) ExpectSame(outcome, reference);
}

INSTANTIATE_TEST_SUITE_P(Cpu, EveryDevice, ::testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(OwnMemory, EveryDevice, ::testing::ValuesIn(OwnMemoryDevices()));

}  // namespace
}  // namespace weft::testing
