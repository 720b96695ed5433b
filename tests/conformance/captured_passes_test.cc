// Passes that are captured and replayed, over a device that does captured work again when it is replayed: the
// numbers are those of passes that are not captured, whatever is alive at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/torch/cpu_rank_device.h"

namespace weft::testing::captured_passes_test {
namespace {

using ::testing::HasSubstr;
using Kind = Arrangement::Kind;

struct Counts {
  int captured = 0, replayed = 0, released = 0;
  bool captures = true;
  absl::Status failure;        // of each capture, after its work has run
  int other_lane_from = -1;    // how often something was replayed; then jobs are on another lane
  bool changes_lanes = false;  // again and again
  bool is_busy = false;        // cannot capture beside something else
};

class WorkDoneAgain final : public CapturedWork {
 public:
  WorkDoneAgain(std::function<absl::Status()> work, Counts* counts)
      : work_(std::move(work)), counts_(counts) {}
  void Replay() override {
    ++counts_->replayed;
    Require(work_());
  }

 private:
  const std::function<absl::Status()> work_;
  Counts* const counts_;
};

// The CPU, but that it captures.
class CapturingDevice final : public RankDevice {
 public:
  CapturingDevice(MemorySource& memory, Counts* counts) : cpu_(memory), counts_(counts) {}
  c10::Device torch_device() const override { return cpu_.torch_device(); }
  const FlatMath& math() const override { return cpu_.math(); }
  absl::StatusOr<Tensor> NewFlat(int64_t elements, MemoryClass memory_class, DataType type) override {
    return cpu_.NewFlat(elements, memory_class, type);
  }
  Tensor Await(Tensor tensor) override { return tensor; }
  std::unique_ptr<Scope> Charge(MemoryClass memory_class, Tallied tallied) override {
    return cpu_.Charge(memory_class, tallied);
  }
  void BeginTally() override { cpu_.BeginTally(); }
  int64_t tally(MemoryClass memory_class) const override { return cpu_.tally(memory_class); }
  BytesByClass live_bytes() const override { return cpu_.live_bytes(); }
  BytesByClass peak_bytes() const override { return cpu_.peak_bytes(); }
  int64_t most_bytes() const override { return cpu_.most_bytes(); }
  absl::StatusOr<Tensor> ToHost(const Tensor& tensor, HostUse use) override {
    return cpu_.ToHost(tensor, use);
  }
  absl::StatusOr<Tensor> ToDevice(const Tensor& tensor, MemoryClass memory_class) override {
    return cpu_.ToDevice(tensor, memory_class);
  }
  at::Tensor NewHostTensor(at::IntArrayRef sizes, c10::ScalarType type) override {
    return cpu_.NewHostTensor(sizes, type);
  }
  absl::Status Load(void* to, const void* host, size_t bytes) override { return cpu_.Load(to, host, bytes); }
  absl::Status ReadBack(void* host, const void* from, size_t bytes) override {
    return cpu_.ReadBack(host, from, bytes);
  }
  void BeginJob(const Job& job, bool overlapped) override { cpu_.BeginJob(job, overlapped); }
  std::shared_ptr<LaunchedJob> EndJob() override { return cpu_.EndJob(); }
  void ReportLoss(const at::Tensor& loss) override { cpu_.ReportLoss(loss); }
  void ReportSquares(const Tensor& limbs) override { cpu_.ReportSquares(limbs); }
  int lane() const override {
    if (counts_->changes_lanes) return counts_->replayed / 3 % 2;
    return counts_->other_lane_from >= 0 && counts_->replayed >= counts_->other_lane_from ? 1 : 0;
  }
  void ReleaseUnused() override { ++counts_->released; }
  bool captures() const override { return counts_->captures; }
  absl::StatusOr<std::unique_ptr<CapturedWork>> Capture(const std::function<absl::Status()>& work,
                                                        CapturedWork*) override {
    ++counts_->captured;
    if (counts_->is_busy) return nullptr;
    if (absl::Status s = work(); !s.ok()) return s;
    if (!counts_->failure.ok()) return counts_->failure;
    return std::make_unique<WorkDoneAgain>(work, counts_);
  }

 private:
  CpuRankDevice cpu_;
  Counts* const counts_;
};

class CapturingBackend final : public DeviceBackend {
 public:
  explicit CapturingBackend(Counts* counts) : counts_(counts) {}
  const std::string& name() const override { return name_; }
  const std::string& uuid() const override { return name_; }
  void PrepareThread() override {}
  absl::StatusOr<std::unique_ptr<RankDevice>> CreateRankDevice(Rank, MemorySource& host) override {
    return std::make_unique<CapturingDevice>(host, counts_);
  }
  MemorySource& memory() override { return memory_; }
  CommunicationLibrary* communication() override { return nullptr; }

 private:
  const std::string name_ = "capturing";
  PlainMemory memory_;
  Counts* const counts_;
};

class CapturedPasses : public ::testing::Test {
 protected:
  // Trains with and without, and expects the same.
  void ExpectSame(RunSpec run, const Arrangement& arrangement) {
    const Outcome plain = Train(*cpu_, run, arrangement), captured = Train(*capturing_, run, arrangement);
    EXPECT_EQ(captured.losses, plain.losses);
    EXPECT_EQ(captured.norms, plain.norms);
    EXPECT_EQ(captured.trained, plain.trained);
  }
  // Does the same, and returns what was said on standard error.
  std::string SaidInSame(const RunSpec& run) {
    ::testing::internal::CaptureStderr();
    ExpectSame(run, {Kind::kPipeline, {}});
    return ::testing::internal::GetCapturedStderr();
  }

  TestFolder folder_;
  Counts counts_;
  const std::unique_ptr<Device> cpu_ = CreateCpuDevice();
  const std::unique_ptr<Device> capturing_ = CreateTorchDevice(std::make_unique<CapturingBackend>(&counts_));
};

TEST_F(CapturedPasses, AllMicrobatchesAliveAtOnce_HaveOneEach) {
  RunSpec run = SmallGptRun(folder_.path(), 2);
  ExpectSame(run, {Kind::kPipeline, {}});
  const int microbatches = run.train.microbatches;
  // None of a stage's passes has ended when the forwards of the first step run; then each is captured once.
  EXPECT_EQ(counts_.captured, 2 * 2 * microbatches);
  EXPECT_EQ(counts_.replayed, 2 * 2 * microbatches * (run.train.steps - 1));
}

TEST_F(CapturedPasses, BackwardsInAnyOrder_GiveTheSame) {
  RunSpec run = SmallGptRun(folder_.path(), 2);
  run.train.clip_norm = 0.5;
  std::vector<int> reversed;
  for (int b = run.train.microbatches; b-- > 0;) reversed.push_back(b);
  ExpectSame(run, {Kind::kOneRank, reversed});
  EXPECT_GT(counts_.replayed, 0);
}

TEST_F(CapturedPasses, ModelsWithImages_GiveTheSame) {
  const TestFolder vit, towers;  // images of each model's size
  for (const RunSpec& run : {SmallResNetRun(folder_.path(), 2, 18), SmallVitRun(vit.path(), 3),
                             SmallTwoTowerRun(towers.path(), 3, 1)}) {
    counts_ = {};
    ExpectSame(run, {Kind::kPipeline, {}});
    EXPECT_GT(counts_.replayed, 0) << run.name;
  }
}

TEST_F(CapturedPasses, SplitBackward_IsCapturedInHalves) {
  RunSpec run = SmallGptRun(folder_.path(), 2);
  run.schedule = Require(ParseScheduleText("zb_h1"));
  Arrangement arrangement{Kind::kPipeline, {}};
  arrangement.split_backward = true;
  ExpectSame(run, arrangement);
  // A forward and two halves; the first stage has no inputs whose gradients there would be.
  EXPECT_EQ(counts_.captured, (3 + 2) * run.train.microbatches);
}

TEST_F(CapturedPasses, StagesThatComeToAnotherLane_AreCapturedAnew) {
  RunSpec run = SmallGptRun(folder_.path(), 2);
  run.train.steps = 3;
  const int of_a_step = 2 * 2 * run.train.microbatches;
  counts_.other_lane_from = of_a_step;
  ExpectSame(run, {Kind::kPipeline, {}});
  EXPECT_EQ(counts_.captured, 2 * of_a_step);
}

TEST_F(CapturedPasses, LaneThatChangesAgainAndAgain_RunsWithoutAndSaysWhy) {
  RunSpec run = SmallGptRun(folder_.path(), 2);
  run.train.steps = 6;
  counts_.changes_lanes = true;
  const std::string err = SaidInSame(run);
  EXPECT_THAT(err,
              HasSubstr("stage 0 runs without graphs, with the same bits: its weights or its lane change"));
}

TEST_F(CapturedPasses, DeviceThatIsBusyWheneverItIsAsked_RunsWithoutAndSaysWhy) {
  RunSpec run = SmallGptRun(folder_.path(), 2);
  run.train.steps = 4;
  counts_.is_busy = true;
  const std::string err = SaidInSame(run);
  for (const int stage : {0, 1})
    EXPECT_THAT(err, HasSubstr(absl::StrCat("stage ", stage,
                                            " runs without graphs, with the same bits: the device "
                                            "cannot capture")));
  EXPECT_EQ(counts_.captured, 2 * 8);
  EXPECT_EQ(counts_.replayed, 0);
}

TEST_F(CapturedPasses, CaptureThatFails_IsNotTriedAgainAndTheRunGoesOn) {
  RunSpec run = SmallGptRun(folder_.path(), 2);
  counts_.failure = absl::InternalError("this device captures nothing after all");
  ExpectSame(run, {Kind::kPipeline, {}});
  EXPECT_EQ(counts_.captured, 2);  // once a stage
  EXPECT_EQ(counts_.released, 0);
  EXPECT_EQ(counts_.replayed, 0);
}

TEST_F(CapturedPasses, NoMemoryForACapture_GivesBackWhatIsUnusedAndTriesOnceMore) {
  RunSpec run = SmallGptRun(folder_.path(), 2);
  counts_.failure = absl::ResourceExhaustedError("no 512 bytes for activations");
  ExpectSame(run, {Kind::kPipeline, {}});
  EXPECT_EQ(counts_.captured, 2 * 2);
  EXPECT_EQ(counts_.released, 2);
  EXPECT_EQ(counts_.replayed, 0);
}

// One captured pass drops otherwise for each micro-batch and step that it serves.
TEST_F(CapturedPasses, Dropout_HasTheMasksOfEachMicrobatch) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
    RunSpec gpt = SmallGptRun(folder_.path(), 2);
    std::get<GptSpec>(gpt.model).dropout = 0.2;
    RunSpec mlp = SmallMlpRun(folder_.path(), 3);
    std::get<MlpSpec>(mlp.model).dropout = 0.2;
    for (RunSpec run : {gpt, mlp}) {
      run.precision = precision;
      for (const bool split : {false, true}) {
        SCOPED_TRACE(run.name + (split ? ", split" : ", fused"));
        if (split) run.schedule = Require(ParseScheduleText("zb_h1"));
        counts_ = {};
        ExpectSame(run, {Kind::kPipeline, {2, 0, 3, 1}, split});
        const int of_a_microbatch = split ? 3 * run.stages() - 1 : 2 * run.stages();
        const int passes = of_a_microbatch * run.train.microbatches;
        EXPECT_EQ(counts_.captured, passes);
        EXPECT_EQ(counts_.replayed, passes * (run.train.steps - 1));
      }
    }
  }
}

// A forward that is run again for its backward is not captured, and drops what it dropped the first time,
// beside stages whose passes are.
TEST_F(CapturedPasses, DropoutBesideForwardsRunAgain_GivesTheSame) {
  RunSpec run = SmallGptRun(folder_.path(), 2);
  std::get<GptSpec>(run.model).dropout = 0.2;
  run.schedule.activations = "recompute/retain";
  ExpectSame(run, {Kind::kPipeline, {}});
  EXPECT_EQ(counts_.captured, 2 * run.train.microbatches);
}

// Dropout, tied parameters, running averages, frozen parameters, fields of many types, and a sum of losses
// over a count that differs from step to step.
TEST_F(CapturedPasses, ExportedModels_GiveTheSame) {
  for (const char* const model : {"mlp", "cnn", "cnn_norms", "gpt_dropout", "gpt_tied", "gpt_counted",
                                  "typed", "lstm", "functions", "known_llama", "known_t5", "known_vit"}) {
    for (const bool split : {false, true}) {
      SCOPED_TRACE(absl::StrCat(model, split ? ", split" : ", fused"));
      RunSpec run = SmallExportedRun(model, 3);
      run.train.clip_norm = 0.5;
      if (split) run.schedule = Require(ParseScheduleText("zb_h1"));
      counts_ = {};
      ExpectSame(run, {Kind::kPipeline, {2, 0, 3, 1}, split});
      EXPECT_GT(counts_.captured, run.train.microbatches * run.stages());
      EXPECT_EQ(counts_.replayed, counts_.captured * (run.train.steps - 1));
    }
  }
}

TEST_F(CapturedPasses, StagesOfExportedModelsThatDrawNumbers_RunWithout) {
  RunSpec run = SmallExportedRun("drawing", 4);
  const std::string err = SaidInSame(run);
  EXPECT_EQ(counts_.captured, 2 * run.train.microbatches);  // one of the four stages draws nothing
  for (const int stage : {0, 1, 3})
    EXPECT_THAT(err, HasSubstr(absl::StrCat("from here on stage ", stage, " runs without graphs")));
  EXPECT_THAT(err, HasSubstr("layer layers.0: aten::randn_like (modules.py:"));
  EXPECT_THAT(err, HasSubstr("draws numbers by LibTorch's generator"));
}

// Captured passes keep what measured buffers do not count, and the run would end in CheckBudget.
TEST_F(CapturedPasses, RanksWithABudgetAndMeasuredBuffers_RunWithout) {
  RunSpec run = SmallGptRun(folder_.path(), 2);
  run.memory = int64_t{1} << 40;
  run.buffers = MeasuredBuffers();
  EXPECT_THAT(SaidInSame(run), HasSubstr("weft: rank 0 runs without graphs"));
  EXPECT_EQ(counts_.captured, 0);
  run.buffers.reset();
  ExpectSame(run, {Kind::kPipeline, {}});
  EXPECT_GT(counts_.captured, 0);
}

TEST_F(CapturedPasses, FetchedWeights_AreNotCaptured) {
  RunSpec run = SmallGptRun(folder_.path(), 2);
  ExpectSame(run, {Kind::kFetched, {}});
  EXPECT_EQ(counts_.captured, 0);
}

TEST_F(CapturedPasses, DeviceThatDoesNotCapture_IsNotAskedTo) {
  RunSpec run = SmallGptRun(folder_.path(), 2);
  counts_.captures = false;
  ExpectSame(run, {Kind::kPipeline, {}});
  EXPECT_EQ(counts_.captured, 0);
}

}  // namespace
}  // namespace weft::testing::captured_passes_test
