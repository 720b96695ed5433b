// Tests what every Device must do with memory: bytes by class, measured and counted, and an end that names
// the job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"
#include "run/run_memory.h"
#include "run/run_schedule.h"
#include "tests/conformance/device_fixture.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/segment_allocator.h"

namespace weft::testing {
namespace {

TEST_P(DeviceModel, Memory_AfterAStep_ReturnsToTheLevelBefore) {
  if (RoundsUp()) GTEST_SKIP() << "it counts to the byte";
  const RunSpec run = Run(2);
  auto rank = *device().CreateRank(*ScheduledRun::Make(run), 0, memory_);
  ASSERT_TRUE(rank->AddStage(0, StageRole::Whole()).ok());
  ASSERT_TRUE(rank->AddStage(1, StageRole::Whole()).ok());
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
struct KeptBytes {
  int64_t activations = 0, host = 0;
};
KeptBytes BytesKeptByForward(Device& device, const RunSpec& run, MemorySource& memory) {
  auto first = *device.CreateRank(*ScheduledRun::Make(run), 0, memory);
  auto rank = *device.CreateRank(*ScheduledRun::Make(run), 1, memory);
  EXPECT_TRUE(first->AddStage(0, StageRole::Whole()).ok());
  EXPECT_TRUE(rank->AddStage(1, StageRole::Whole()).ok());
  Tensor g;
  for (int b = 0; b < 2; ++b) {
    Tensor x = first->Forward(Job::Compute(0, 0, b, JobKind::kForward), {}, {}, 0)->activation;
    Tensor y = rank->Forward(Job::Compute(0, 1, b, JobKind::kForward), One(std::move(x)), {}, 0)->activation;
    g = CopyOf(y);
  }
  const KeptBytes kept{Live(*rank, MemoryClass::kActivations) / 2, Live(*rank, MemoryClass::kHost) / 2};
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
  EXPECT_GT(rank->peak_bytes()[static_cast<int>(MemoryClass::kActivations)], kept.activations);
  return kept;
}

TEST_P(DeviceModel, Activations_ByPolicy_AreWhereItSays) {
  if (RoundsUp()) GTEST_SKIP() << "it counts to the byte";
  std::map<std::string, KeptBytes> kept;
  for (const char* activations : {"retain", "recompute", "offload"}) {
    RunSpec run = RunWithDropout(3);
    run.schedule.activations = activations;
    kept[activations] = BytesKeptByForward(device(), run, memory_);
  }
  EXPECT_GT(kept["retain"].activations, 0);
  EXPECT_EQ(kept["retain"].host, 0);
  // The outputs went with their consumers here: of a forward that is run again nothing stays on its rank.
  EXPECT_EQ(kept["recompute"].activations, 0);
  EXPECT_EQ(kept["recompute"].host, 0);
  EXPECT_EQ(kept["offload"].activations, 0);
  // All that was retained went to the host, and the stage's input, which was its maker's, besides.
  EXPECT_GE(kept["offload"].host, kept["retain"].activations);
  EXPECT_LT(kept["offload"].host, 2 * kept["retain"].activations);
}

// Admission by bytes rests on counts that are never too small, and are of use only if they are not much too
// large.
void ExpectCountsHold(Device& device, const RunSpec& run, MemorySource& memory) {
  for (int s = 0; s < run.stages(); ++s) {
    SCOPED_TRACE(absl::StrFormat("%s, stage %d of %d", run.schedule.activations, s, run.stages()));
    const StageMemory counted = CountStage(run, s);
    auto first = s > 0 ? *device.CreateRank(*ScheduledRun::Make(run), 0, memory) : nullptr;
    auto rank = *device.CreateRank(*ScheduledRun::Make(run), 1, memory);
    ASSERT_TRUE(rank->AddStage(s, StageRole::Whole()).ok());
    if (device.name() == "cpu") {
      ASSERT_EQ(counted.parameters + counted.narrowed, Live(*rank, MemoryClass::kWeights));
    } else {
      ASSERT_GE(counted.parameters + counted.narrowed, Live(*rank, MemoryClass::kWeights));
    }
    Tensor x;
    for (int t = 0; t < s; ++t) {
      ASSERT_TRUE(first->AddStage(t, StageRole::Whole()).ok());
      x = first->Forward(Job::Compute(0, t, 0, JobKind::kForward), One(x), {}, 0)->activation;
    }
    if (s > 0) x = CopyOf(x);
    const Tensor input = x;
    auto forward = rank->Forward(Job::Compute(0, s, 0, JobKind::kForward), One(std::move(x)), {}, 0);
    ASSERT_TRUE(forward.ok()) << forward.status();
    // The output of another device has come to the host here.
    if (device.name() == "cpu") {
      EXPECT_EQ(forward->activation_bytes, Live(*rank, MemoryClass::kActivations));
    }
    // A tensor that does not stay goes when another device than the host has come to it, which is after the
    // call.
    const bool late = device.name() != "cpu" && run.schedule.activations != "retain";
    if (device.name() == "cpu") {
      EXPECT_EQ(forward->activation_bytes, counted.activation_bytes);
    } else {
      EXPECT_LE(forward->activation_bytes, counted.activation_bytes + counted.gpu_activations);
      EXPECT_GE(1.3 * static_cast<double>(forward->activation_bytes) + 2000,
                static_cast<double>(counted.activation_bytes));
    }
    Tensor g;
    if (s + 1 < run.stages()) g = CopyOf(std::exchange(forward->activation, Tensor{}));
    ASSERT_TRUE(rank->Backward(Job::Compute(0, s, 0, JobKind::kBackward), One(g), {}, 0, false).ok());
    // A GPU's libraries have workspaces among the buffers.
    if (late || device.name() == "cuda") continue;
    const BytesByClass peak = rank->peak_bytes();
    const auto peak_of = [&](MemoryClass c) { return peak[static_cast<int>(c)]; };
    if (device.name() == "cpu") {
      EXPECT_EQ(peak_of(MemoryClass::kActivations), counted.activation_bytes);
    }
    EXPECT_LE(peak_of(MemoryClass::kActivations) + peak_of(MemoryClass::kBuffers),
              counted.activation_bytes + counted.work);
  }
}

TEST_P(DeviceModel, CountedMemory_OfEveryStageAndPolicy_BoundsWhatIsMeasured) {
  for (const char* activations : {"retain", "recompute", "offload"}) {
    for (const bool dropout : {false, true}) {
      RunSpec run = dropout ? RunWithDropout(3) : Run(3);
      run.schedule.activations = activations;
      ExpectCountsHold(device(), run, memory_);
      // This size is so large that alignment hardly counts.
      Widen(&run.model);
      ExpectCountsHold(device(), run, memory_);
    }
  }
}

// Memory that ends after some bytes.
class LittleMemory final : public MemorySource {
 public:
  explicit LittleMemory(size_t bytes) : remaining_(bytes) {}
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (bytes > remaining_) return absl::ResourceExhaustedError("the little memory is used up");
    remaining_ -= bytes;
    taken_ += bytes;
    return memory_.Allocate(bytes);
  }
  void Free(void* segment, size_t bytes) override {
    taken_ -= bytes;
    memory_.Free(segment, bytes);
  }
  size_t taken() const { return taken_; }  // bytes that were not given back

 private:
  size_t remaining_, taken_ = 0;
  PlainMemory memory_;
};

// The host's memory comes from the source; another device's is its own.
class HostModel : public DeviceModel {};

TEST_P(HostModel, Memory_UsedUp_IsAStatusThatNamesTheJob) {
  RunSpec run = Run(1);
  // There are so few samples that a backward's gradients need more than what it frees.
  run.train.batch = 2 * run.train.microbatches;
  LittleMemory memory(SegmentAllocator::kSegmentBytes);
  auto rank = *device().CreateRank(*ScheduledRun::Make(run), 0, memory);
  ASSERT_TRUE(rank->AddStage(0, StageRole::Whole()).ok());
  absl::Status status;
  Job job;
  for (int t = 0; t < 10000 && status.ok(); ++t) {
    job = Job::Compute(t, 0, 0, JobKind::kForward);
    status = rank->Forward(job, {}, {}, 0).status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(Describe(job)));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("the little memory is used up"));

  // The allocation also fails within the engine of a backward: the exception crosses it.
  status = absl::OkStatus();
  std::vector<Tensor> kept;
  for (int t = 0; t < 10000 && status.ok(); ++t) {
    job = Job::Compute(t, 0, 0, JobKind::kBackward);
    auto result = rank->Backward(job, {}, {}, 0, true);
    status = result.status();
    if (result.ok()) kept.push_back(std::move(result->gradient));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  // The failed backward leaves nothing on this thread.
  kept.clear();
  rank.reset();
  EXPECT_EQ(memory.taken(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Cpu, HostModel,
                         ::testing::Combine(::testing::Values("cpu"),
                                            ::testing::Values("gpt", "mlp", "resnet18", "resnet50",
                                                              "vit_b16")),
                         NameOfModel);

}  // namespace
}  // namespace weft::testing
