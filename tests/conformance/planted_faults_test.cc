// Faults of numerics that are planted in whole runs, of several processes, under several schedules: the
// comparison with a sound run names the job in which each one was planted. The coordinator's core, the
// workers' loops and LibTorch are real, in one process over a loopback transport.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/diff/diff_report.h"
#include "client/diff/run_diff.h"
#include "coordinator/core/coordinator_core.h"
#include "coordinator/shell/spec_planner.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/run_schedule.h"
#include "tests/conformance/faulty_compute.h"
#include "tests/conformance/link_in_process.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/loop/worker_loop.h"
#include "worker/shell/reference/reference.h"
#include "worker/shell/transport/loopback_transport.h"

namespace weft::planted_faults_test {
namespace {

using testing::MakeFaulty;
using testing::Plant;
using testing::PlantedFault;
using testing::Require;
using testing::Wrong;

constexpr int64_t kPatience = 120'000'000'000;

class FaultyDevice final : public Device {
 public:
  FaultyDevice(Device& cpu, std::shared_ptr<Plant> plant) : cpu_(cpu), plant_(std::move(plant)) {}
  absl::string_view name() const override { return cpu_.name(); }
  absl::StatusOr<std::unique_ptr<RankCompute>> CreateRank(const ScheduledRun& run, Rank rank,
                                                          MemorySource&) override {
    auto sound = cpu_.CreateRank(run, rank, memory_);
    if (!sound.ok() || plant_ == nullptr) return sound;
    return MakeFaulty(*std::move(sound), plant_);
  }

 private:
  Device& cpu_;
  const std::shared_ptr<Plant> plant_;
  PlainMemory memory_;  // is there longer than the transport
};

// One run of a coordinator's core and its workers, by plain calls, and the hashes that it records.
class RecordedRun {
 public:
  RecordedRun(const RunSpec& run, int processes, const std::shared_ptr<Plant>& plant) {
    static Device* const cpu = CreateCpuDevice().release();
    for (int p = 0; p < processes; ++p) {
      workers_.push_back(std::make_unique<Worker>(*this, p, *cpu, plant));
      Worker& w = *workers_.back();
      Step(SessionOpened{w.session});
      Step(SessionMessage{
          w.session, Hello{absl::StrCat("w", p), "h", 100 + p, p, w.transport->address(), "cpu", "", ""}});
    }
    for (auto& w : workers_) w->thread = std::thread([&w = *w] { w.loop.Run().IgnoreError(); });
    Step(
        SubmitRun{1, "", Require(PlanRun(run, Require(ScheduleOf(run)))), ToJson(run).dump(), processes, ""});
    AwaitEnd();
  }
  ~RecordedRun() {
    for (auto& w : workers_) {
      w->loop.Stop();
      w->thread.join();
    }
  }
  RecordedHashes TakeHashes() {
    MutexLock lock(mu_);
    return std::move(hashes_);
  }

 private:
  struct Worker {
    Worker(RecordedRun& run, int p, Device& cpu, const std::shared_ptr<Plant>& plant)
        : session(p + 1),
          device(cpu, plant),
          transport(plant == nullptr ? run.network_.CreateTransport()
                                     : MakeFaulty(run.network_.CreateTransport(), plant)),
          link([&run, this](FromWorker m) {
            run.Step(SessionMessage{session, std::move(m)});
          }),
          loop({/*spin_microseconds=*/0}, device, *transport, link) {}
    const SessionId session;
    FaultyDevice device;
    const std::unique_ptr<Transport> transport;
    LinkInProcess link;
    WorkerLoop loop;
    std::thread thread;
  };

  void Step(Event event) {
    MutexLock lock(mu_);
    Effects effects = core_.Step(MonotonicNow(), std::move(event));
    for (JobsEnded& ended : effects.jobs) {
      for (Completion& c : ended.jobs) {
        hashes_.Add({c.job, ended.rank, ended.process, c.has_loss ? std::optional(c.loss) : std::nullopt,
                     c.gradient_norm, std::move(c.hashes)});
      }
    }
    for (OutgoingMessage& m : effects.messages) {
      const auto to = std::find_if(workers_.begin(), workers_.end(),
                                   [&](const auto& w) { return w->session == m.session; });
      if (to != workers_.end()) (*to)->link.Say(std::move(m.message));
    }
  }

  void AwaitEnd() {
    const int64_t deadline = MonotonicNow() + kPatience;
    while (MonotonicNow() < deadline) {
      Step(Tick{});
      {
        MutexLock lock(mu_);
        const RunInfo info = *core_.GetRun(1);
        if (info.state == RunState::kFinished) return;
        if (IsFinal(info.state)) break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    MutexLock lock(mu_);
    ADD_FAILURE() << "the run did not finish: " << core_.GetRun(1)->reason;
  }

  LoopbackNetwork network_;
  std::vector<std::unique_ptr<Worker>> workers_;  // all made before the first thread
  Mutex mu_;
  CoordinatorCore core_ ABSL_GUARDED_BY(mu_){CoreOptions{}};
  RecordedHashes hashes_ ABSL_GUARDED_BY(mu_);
};

struct Arrangement {
  const char* schedule;
  int stages, microbatches, processes;

  friend bool operator==(const Arrangement&, const Arrangement&) = default;
};
constexpr Arrangement k1F1B{"1f1b", 3, 3, 3}, kLpp{"lpp,groups=2,ranks=2", 2, 4, 4}, kDdp{"ddp", 2, 3, 3},
    kFsdp{"fsdp", 2, 3, 3}, kWidth{"fsdp,shard=width", 2, 3, 3}, kZeroBubble{"zb_h1", 3, 4, 3},
    kCyclic{"ddp,rule=cdp_v2", 3, 3, 3}, kMigrating{"fsdp,residency=migrating,rule=cdp_v2", 3, 3, 3};

class PlantedFaults : public ::testing::Test {
 protected:
  RunSpec SpecOf(const Arrangement& a) const {
    RunSpec run = testing::SmallGptRun(folder_.path(), a.stages);
    run.train.steps = 3;
    run.train.microbatches = a.microbatches;
    run.train.batch = 2 * a.microbatches;
    run.schedule = Require(ParseScheduleText(a.schedule));
    run.record_hashes = true;
    return run;
  }
  RecordedHashes Record(const Arrangement& a, const std::shared_ptr<Plant>& plant = nullptr) const {
    return RecordedRun(SpecOf(a), a.processes, plant).TakeHashes();
  }
  // Returns what a sound run of the arrangement records.
  const RecordedHashes& Sound(const Arrangement& a) {
    const auto found = sound_.find(a.schedule);
    return found != sound_.end() ? found->second : sound_.emplace(a.schedule, Record(a)).first->second;
  }
  RecordedHashes Reference(const Arrangement& a) const { return Reference(SpecOf(a)); }
  static RecordedHashes Reference(const RunSpec& run) {
    RecordedHashes hashes;
    ReferenceCheckpoints callbacks;
    callbacks.hashed = [&](const JobHashes& job) { hashes.Add(job); };
    Require(RunReference(
        run, "", [](const ReferenceStep&) { return true; }, nullptr, callbacks));
    return hashes;
  }
  DiffTraining TrainingOf(const Arrangement& a) const { return TrainingOf(SpecOf(a)); }
  static DiffTraining TrainingOf(const RunSpec& run) {
    DiffTraining training{run.stages(), run.train.microbatches, {}, {}};
    const RunSchedule schedule = Require(ScheduleOf(run));
    training.inputs = schedule.terms.inputs;
    training.inputs.resize(run.stages());
    training.staleness.resize(run.stages());
    for (int s = 0; s < run.stages(); ++s) {
      if (schedule.terms.inputs.empty() && s > 0) training.inputs[s] = {s - 1};
      for (int b = 0; b < run.train.microbatches; ++b)
        training.staleness[s].push_back(schedule.scheme.StalenessOf(s, b));
    }
    return training;
  }

  TestFolder folder_;
  std::map<std::string, RecordedHashes> sound_;
};

Job F(int step, int stage, int b) { return Job::Compute(step, stage, b, JobKind::kForward); }
Job B(int step, int stage, int b) { return Job::Compute(step, stage, b, JobKind::kBackward); }
Job BI(int step, int stage, int b) { return Job::Compute(step, stage, b, JobKind::kBackwardInput); }
Job R(int step, int stage, int member) { return Job::Reduce(step, stage, member); }
Job U(int step, int stage, int member) { return Job::Update(step, stage, member); }

struct Case {
  Arrangement arrangement;
  PlantedFault fault;
  DiffedResult result;
};

const std::vector<Case>& Cases() {
  using D = DiffedResult;
  using T = TensorKind;
  static const std::vector<Case> cases = {
      {k1F1B, {Wrong::kFlipsActivation, F(0, 0, 1)}, D::kActivation},
      {k1F1B, {Wrong::kReadsStaleWeights, F(1, 1, 0)}, D::kActivation},
      {k1F1B, {Wrong::kScalesBackward, B(1, 1, 2)}, D::kInputGradient},
      {k1F1B, {Wrong::kFlipsInputGradient, B(2, 2, 0)}, D::kInputGradient},
      {k1F1B, {Wrong::kDropsBackward, B(0, 0, 1)}, D::kGradient},
      {k1F1B, {Wrong::kFlipsSum, U(1, 2, 0)}, D::kGradientSum},
      {k1F1B, {Wrong::kScalesUpdate, U(0, 1, 0)}, D::kWeights},
      {k1F1B, {Wrong::kFlipsWeights, U(1, 0, 0)}, D::kWeights},
      {k1F1B, {Wrong::kFlipsInTransfer, F(1, 2, 1), T::kActivation}, D::kLoss},
      {k1F1B, {Wrong::kFlipsInTransfer, B(1, 0, 2), T::kInputGradient}, D::kGradient},
      {kLpp, {Wrong::kFlipsActivation, F(2, 0, 3)}, D::kActivation},
      {kLpp, {Wrong::kFlipsGradient, B(1, 1, 2)}, D::kGradient},
      {kLpp, {Wrong::kDropsMicrobatch, R(1, 0, 1), {}, 2}, D::kGradientSum},
      {kLpp, {Wrong::kSwapsGradients, R(0, 1, 0), {}, 1}, D::kGradientSum},
      {kLpp, {Wrong::kFlipsWeights, U(1, 1, 1)}, D::kWeights},
      {kDdp, {Wrong::kDropsMicrobatch, R(2, 1, 2), {}, 0}, D::kGradientSum},
      {kDdp, {Wrong::kReadsStaleWeights, F(2, 0, 1)}, D::kActivation},
      {kDdp, {Wrong::kFlipsSum, R(0, 0, 1)}, D::kGradientSum},
      {kDdp, {Wrong::kScalesUpdate, U(1, 0, 2)}, D::kWeights},
      {kDdp, {Wrong::kFlipsInTransfer, R(1, 1, 0), T::kGradient}, D::kGradientSum},
      {kFsdp, {Wrong::kFlipsActivation, F(1, 0, 2)}, D::kActivation},
      {kFsdp, {Wrong::kDropsMicrobatch, U(0, 1, 0), {}, 2}, D::kGradientSum},
      {kFsdp, {Wrong::kFlipsGradient, B(2, 0, 1)}, D::kGradient},
      {kFsdp, {Wrong::kFlipsInTransfer, F(2, 0, 1), T::kWeights}, D::kActivation},
      {kWidth, {Wrong::kSwapsWeightSlices, F(1, 1, 0)}, D::kLoss},
      {kWidth, {Wrong::kSwapsGradients, U(1, 0, 1), {}, 0}, D::kGradientSum},
      {kWidth, {Wrong::kFlipsWeights, U(0, 0, 2)}, D::kWeights},
      {kZeroBubble, {Wrong::kScalesBackward, BI(1, 1, 3)}, D::kInputGradient},
      {kZeroBubble, {Wrong::kDropsBackward, BI(0, 1, 2)}, D::kInputGradient},
      {kZeroBubble, {Wrong::kFlipsSum, U(2, 0, 0)}, D::kGradientSum},
      {kCyclic, {Wrong::kFlipsRunningSum, B(1, 1, 1)}, D::kRunningSum},
      {kCyclic, {Wrong::kFlipsWeights, U(1, 2, 1)}, D::kWeights},
      {kCyclic, {Wrong::kReadsStaleWeights, F(2, 2, 1)}, D::kLoss},
      {kCyclic, {Wrong::kFlipsInTransfer, B(2, 0, 1), T::kGradientSum}, D::kRunningSum},
      {kMigrating, {Wrong::kFlipsInputGradient, B(1, 2, 1)}, D::kInputGradient},
      {kMigrating, {Wrong::kScalesUpdate, U(0, 1, 0)}, D::kWeights},
  };
  return cases;
}

// A fault of a transfer is met by whichever member's tensor comes first.
bool IsMeantJob(const Job& named, const PlantedFault& fault) {
  Job job = named;
  if (fault.wrong == Wrong::kFlipsInTransfer && !HasMicrobatch(job.kind)) job.member = fault.job.member;
  if (fault.tensor == TensorKind::kWeights || fault.tensor == TensorKind::kGradientSum)
    job.microbatch = fault.job.microbatch;
  return job == fault.job;
}

TEST_F(PlantedFaults, WithoutAFault_EveryScheduleRecordsTheHashesOfTheReference) {
  for (const Arrangement& a : {k1F1B, kLpp, kDdp, kFsdp, kWidth, kZeroBubble, kCyclic, kMigrating}) {
    SCOPED_TRACE(a.schedule);
    const RecordedHashes reference = Reference(a);
    const RunDiff diff = DiffRuns(TrainingOf(a), reference, Sound(a));
    EXPECT_TRUE(diff.equal()) << DiffText(diff, {"reference", "run"});
    EXPECT_EQ(diff.steps, 3);
    // Initial weights are read in the first steps only.
    const int passes = a.stages * a.microbatches;
    EXPECT_GE(diff.values, 3 * (passes /* activations and losses */ + passes /* gradients */ + passes -
                                a.microbatches /* input gradients */ + 2 * a.stages /* sums and weights */) +
                               passes);
  }
}

TEST_F(PlantedFaults, WithoutAFault_OtherModelsAndPrecisions_RecordTheHashesOfTheReference) {
  const TestFolder other;
  std::vector<RunSpec> runs = {SpecOf(k1F1B), SpecOf(kDdp), SpecOf(kWidth),
                               testing::SmallTwoTowerRun(folder_.path(), 4, /*stem=*/1),
                               testing::SmallResNetRun(other.path(), 3, 18)};
  for (const int narrow : {0, 1, 2}) runs[narrow].precision = Precision::kBFloat16;
  runs[1].train.clip_norm = 0.1;
  for (const int images : {3, 4}) {
    runs[images].train.steps = 2;
    runs[images].schedule = Require(ParseScheduleText(images == 3 ? "ddp,ranks=2" : "1f1b"));
    runs[images].record_hashes = true;
  }
  for (const RunSpec& run : runs) {
    SCOPED_TRACE(absl::StrCat(run.name, ", ", ToText(run.schedule)));
    const RecordedHashes recorded = RecordedRun(run, 2, nullptr).TakeHashes();
    const RunDiff diff = DiffRuns(TrainingOf(run), Reference(run), recorded);
    EXPECT_TRUE(diff.equal()) << DiffText(diff, {"reference", "run"});
    EXPECT_GE(diff.values, run.train.steps * run.stages() * (2 * run.train.microbatches + 2));
  }
}

TEST_F(PlantedFaults, InOneJob_IsNamedByTheComparisonWithASoundRun) {
  for (const Case& c : Cases()) {
    const auto plant = std::make_shared<Plant>();
    plant->fault = c.fault;
    SCOPED_TRACE(absl::StrCat("fault ", &c - Cases().data() + 1, ": ", c.arrangement.schedule, ", ",
                              Describe(c.fault.job), ", wrong ", static_cast<int>(c.fault.wrong)));
    const RecordedHashes faulty = Record(c.arrangement, plant);
    EXPECT_GT(plant->done, 0) << "the fault was not carried out";
    const RunDiff diff = DiffRuns(TrainingOf(c.arrangement), Sound(c.arrangement), faulty);
    const std::string text = DiffText(diff, {"sound", "faulty"});
    ASSERT_EQ(diff.roots.size(), 1u) << text;
    EXPECT_TRUE(IsMeantJob(diff.roots[0].b().job, c.fault)) << text;
    EXPECT_EQ(diff.roots[0].results[0].result, c.result) << text;
    EXPECT_EQ(diff.roots[0].transfers.empty(), c.fault.wrong != Wrong::kFlipsInTransfer) << text;
  }
  EXPECT_GE(Cases().size(), 30u);
}

TEST_F(PlantedFaults, InOneJob_IsNamedByTheComparisonWithTheReference) {
  for (const Arrangement& a : {k1F1B, kDdp, kWidth, kZeroBubble}) {
    const RecordedHashes reference = Reference(a);
    for (const Case& c : Cases()) {
      if (c.arrangement != a || c.fault.wrong == Wrong::kFlipsInTransfer) continue;
      const auto plant = std::make_shared<Plant>();
      plant->fault = c.fault;
      SCOPED_TRACE(absl::StrCat(a.schedule, ", ", Describe(c.fault.job)));
      const RecordedHashes faulty = Record(a, plant);
      const RunDiff diff = DiffRuns(TrainingOf(a), reference, faulty);
      ASSERT_EQ(diff.roots.size(), 1u) << DiffText(diff, {"reference", "faulty"});
      Job named = diff.roots[0].b().job;
      // The loop has no slices, and cannot tell whose is wrong.
      if (diff.roots[0].results[0].b.part == ValueCopy::kSomePart) named.member = c.fault.job.member;
      EXPECT_EQ(named, c.fault.job);
    }
  }
}

}  // namespace
}  // namespace weft::planted_faults_test
