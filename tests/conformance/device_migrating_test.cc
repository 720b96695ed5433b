// Tests what every Device must do with the state of a stage that migrates: compute on it where it is, keep
// nothing of it when it has left, and end with the reference's bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "run/run_schedule.h"
#include "schedules/graph/graph.h"
#include "schedules/sync/state_route.h"
#include "tests/conformance/device_fixture.h"
#include "tests/conformance/devices.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/compute/compute.h"

namespace weft::testing::device_migrating_test {
namespace {

using ::testing::HasSubstr;

RunSpec MigratingRun(const std::string& model, const std::string& optimizer, const std::string& rule, int n,
                     const std::string& folder) {
  RunSpec run = model == "gpt" ? SmallGptRun(folder, n) : SmallMlpRun(folder, n);
  run.train.optimizer = optimizer == "adamw" ? AdamW() : Sgd();
  run.train.microbatches = n;
  run.train.batch = 3 * n;
  run.train.steps = 6;
  run.schedule.name = "fsdp";
  run.schedule.parameters = {{"residency", "migrating"}};
  run.schedule.rule = rule;
  return run;
}

// All jobs of a run, one after the other in the order of the states' ways.
class Walk {
 public:
  Walk(Device& device, const RunSpec& run)
      : run_(run),
        schedule_(Require(CheckedScheduleOf(run))),
        graph_(schedule_, run.train.steps),
        losses_(run.train.steps, std::vector<double>(run.train.microbatches, 0)),
        states_(run.stages()) {
    for (int r = 0; r < schedule_.scheme.ranks; ++r) {
      ranks_.push_back(Require(device.CreateRank(*ScheduledRun::Make(run), r, memory_)));
      for (int s = 0; s < run.stages(); ++s) Require(ranks_.back()->AddStage(s, StageRole::Nothing()));
    }
  }

  Outcome Run() {
    Outcome outcome;
    for (int s = 0; s < run_.stages(); ++s)
      Require(ranks_[0]->SaveInitial(s, folder_.path() + "/checkpoint-0"));
    outcome.initial = Index("/checkpoint-0");
    for (const Job& job : Jobs()) Do(job);
    for (const std::vector<double>& of_step : losses_) {
      double sum = 0;
      for (const double loss : of_step) sum += loss;
      outcome.losses.push_back(sum / run_.train.microbatches);
    }
    for (int s = 0; s < run_.stages(); ++s) {
      for (int r = 0; r < schedule_.scheme.ranks; ++r)
        EXPECT_EQ(ranks_[r]->HasState(s), r == graph_.members(s)[0]) << "stage " << s << " on rank " << r;
      Require(ranks_[graph_.members(s)[0]]->Save(s, folder_.path() + "/checkpoint"));
    }
    outcome.trained = Index("/checkpoint");
    return outcome;
  }

 private:
  std::map<std::string, std::vector<uint8_t>> Index(const std::string& name) {
    Require(WriteCheckpointIndex(folder_.path() + name, run_));
    return ReadCheckpoint(folder_.path() + name);
  }

  std::vector<Job> Jobs() const {
    std::vector<std::pair<int64_t, Job>> jobs;
    for (int t = 0; t < run_.train.steps; ++t) {
      for (int i = 0; i < graph_.jobs_per_step(); ++i) {
        const Job job = graph_.JobAt(t, i);
        jobs.push_back({graph_.route()->PlaceOf(job), job});
      }
    }
    std::sort(jobs.begin(), jobs.end());
    std::vector<Job> sorted;
    for (const auto& [place, job] : jobs) sorted.push_back(job);
    return sorted;
  }

  void Receive(const Job& job, RankCompute& rank) {
    const std::optional<Job> before = graph_.route()->Before(job);
    if (!before.has_value()) return Require(rank.BeginState(job));
    if (graph_.RankOf(*before) == graph_.RankOf(job)) return;
    const Tensor arrived = CopyOf(states_[job.stage]);
    Poison(states_[job.stage]);
    states_[job.stage] = {};
    Require(rank.InstallState(job, arrived));
    Poison(arrived);
  }

  void PassOn(const Job& job, RankCompute& rank) {
    const StateRoute& route = *graph_.route();
    const int version = graph_.VersionOf(job);
    if (HasMicrobatch(job.kind) && version < route.NewestAfter(job) && !route.IsReadAfter(job, version))
      rank.DropWeights(job.stage, version);
    const std::optional<Job> after = route.After(job);
    if (!after.has_value() || graph_.RankOf(*after) == graph_.RankOf(job)) return;
    states_[job.stage] = Require(rank.GiveState(job));
    EXPECT_FALSE(rank.HasState(job.stage));
    ExpectNothingKept(rank);
  }

  // Expects nothing of a stage's state on a rank that has none any more.
  void ExpectNothingKept(const RankCompute& rank) const {
    for (int s = 0; s < run_.stages(); ++s) {
      if (rank.HasState(s)) return;
    }
    for (const MemoryClass c : {MemoryClass::kWeights, MemoryClass::kGradients, MemoryClass::kOptimizer})
      EXPECT_EQ(Live(rank, c), 0) << std::string(MemoryClassName(c));
  }

  void Do(const Job& job) {
    RankCompute& rank = *ranks_[graph_.RankOf(job)];
    Receive(job, rank);
    if (job.kind == JobKind::kForward) {
      Forward(job, rank);
    } else if (job.kind == JobKind::kBackward) {
      Backward(job, rank);
    } else {
      Require(rank.Update(job, {}, Tensor{}, graph_.route()->IsReadAfter(job, job.step)));
    }
    PassOn(job, rank);
  }

  void Forward(const Job& job, RankCompute& rank) {
    const int version = graph_.VersionOf(job);
    const auto here = std::pair(job.step, job.microbatch);
    ForwardResult result = Require(
        rank.Forward(job, One(activation_[here]), Require(rank.Weights(job.stage, version)), version));
    activation_[here] = result.activation.empty() ? Tensor{} : CopyOf(result.activation);
    if (result.loss.has_value()) losses_[job.step][job.microbatch] = *result.loss;
  }

  void Backward(const Job& job, RankCompute& rank) {
    const int version = graph_.VersionOf(job);
    const auto here = std::pair(job.step, job.microbatch);
    BackwardResult result = Require(rank.Backward(
        job, One(gradient_[here]), Require(rank.Weights(job.stage, version)), version, /*hand_out=*/false));
    gradient_[here] = result.input_gradients.empty() ? Tensor{} : CopyOf(result.input_gradients[0]);
  }

  const RunSpec run_;
  const RunSchedule schedule_;
  const Graph graph_;
  PlainMemory memory_;
  TestFolder folder_;
  std::vector<std::unique_ptr<RankCompute>> ranks_;
  std::vector<std::vector<double>> losses_;
  std::vector<Tensor> states_;                                   // by stage, on their way
  std::map<std::pair<int, int>, Tensor> activation_, gradient_;  // by step and micro-batch
};

class MigratingState
    : public ::testing::TestWithParam<std::tuple<std::string, std::string, std::string, std::string, int>> {
 protected:
  RunSpec Run() const {
    const auto& [device, model, optimizer, rule, n] = GetParam();
    return MigratingRun(model, optimizer, rule, n, folder_.path());
  }
  TestFolder folder_;
};

TEST_P(MigratingState, PoisonedWhereItHasLeft_EqualsReference) {
  const Outcome reference = Reference(Run());
  for (const char* activations : {"retain", "recompute", "offload"}) {
    SCOPED_TRACE(activations);
    RunSpec run = Run();
    run.schedule.activations = activations;
    const Outcome got = Walk(DeviceNamed(std::get<0>(GetParam())), run).Run();
    EXPECT_EQ(got.losses, reference.losses);
    EXPECT_EQ(got.initial, reference.initial);
    EXPECT_EQ(got.trained, reference.trained);
  }
  EXPECT_NE(reference.trained, reference.initial);
}

std::string NameOf(const ::testing::TestParamInfo<MigratingState::ParamType>& info) {
  const auto& [device, model, optimizer, rule, n] = info.param;
  return model + "_" + optimizer + "_" + rule + "_" + std::to_string(n) + "_on_" + device;
}
INSTANTIATE_TEST_SUITE_P(Cpu, MigratingState,
                         ::testing::Combine(::testing::Values("cpu"), ::testing::Values("gpt", "mlp"),
                                            ::testing::Values("sgd", "adamw"),
                                            ::testing::Values("cdp_v1", "cdp_v2"),
                                            ::testing::Values(1, 2, 3, 4)),
                         NameOf);

TEST(MigratingOnAnotherDevice, IsRefusedInASentence) {
  const TestFolder folder;
  PlainMemory memory;
  const RunSpec run = MigratingRun("gpt", "adamw", "cdp_v1", 2, folder.path());
  for (const std::string& device : OwnMemoryDevices()) {
    const absl::Status refused = DeviceNamed(device).CreateRank(*ScheduledRun::Make(run), 0, memory).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("use --device cpu, or choose a schedule whose weights stay on their ranks"));
  }
}

class MigratingRank : public ::testing::Test {
 protected:
  MigratingRank() : run_(MigratingRun("mlp", "adamw", "cdp_v1", 2, folder_.path())) {
    for (auto* rank : {&one_, &other_}) {
      *rank = Require(DeviceNamed("cpu").CreateRank(*ScheduledRun::Make(run_), 0, memory_));
      Require((*rank)->AddStage(0, StageRole::Nothing()));
      Require((*rank)->AddStage(1, StageRole::Nothing()));
    }
  }
  const Job job_ = Job::Compute(0, 0, 0, JobKind::kForward);
  TestFolder folder_;
  PlainMemory memory_;
  RunSpec run_;
  std::unique_ptr<RankCompute> one_, other_;
};

TEST_F(MigratingRank, BytesByClass_AreWithTheRankThatHasTheState) {
  Require(one_->BeginState(job_));
  const int64_t weights = one_->stage_elements(0) * static_cast<int64_t>(sizeof(float));
  EXPECT_EQ(Live(*one_, MemoryClass::kWeights), weights);
  EXPECT_EQ(Live(*one_, MemoryClass::kOptimizer), 2 * weights);
  Tensor state = Require(one_->GiveState(job_));
  EXPECT_EQ(Live(*one_, MemoryClass::kWeights), 0);
  EXPECT_EQ(Live(*one_, MemoryClass::kOptimizer), 0);
  EXPECT_EQ(Live(*one_, MemoryClass::kBuffers), static_cast<int64_t>(state.bytes));
  Require(other_->InstallState(job_, std::move(state)));
  EXPECT_EQ(Live(*one_, MemoryClass::kBuffers), 0);
  EXPECT_EQ(Live(*other_, MemoryClass::kWeights), weights);
  EXPECT_EQ(Live(*other_, MemoryClass::kOptimizer), 2 * weights);
}

TEST_F(MigratingRank, StateOfAnotherStageOrCutShort_IsRefused) {
  Require(one_->BeginState(job_));
  const Tensor state = Require(one_->GiveState(job_));
  const absl::Status other = other_->InstallState(Job::Compute(0, 1, 0, JobKind::kForward), state);
  EXPECT_EQ(other.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(other.message()), HasSubstr("that of another stage"));
  Tensor cut = state;
  cut.bytes -= 64;
  EXPECT_THAT(std::string(other_->InstallState(job_, cut).message()),
              HasSubstr("not as long as its head says"));
  cut.bytes = 64;
  EXPECT_THAT(std::string(other_->InstallState(job_, cut).message()), HasSubstr("too short"));
  EXPECT_FALSE(other_->HasState(0));
}

using MigratingRankDeathTest = MigratingRank;

TEST_F(MigratingRankDeathTest, SecondStateOrNone_EndsTheProcessNamingTheJob) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Require(one_->BeginState(job_));
  EXPECT_DEATH(one_->BeginState(job_).IgnoreError(),
               "a state begins on a rank that has it, at forward .step 0, stage 0, micro-batch 0");
  const Tensor state = Require(one_->GiveState(job_));
  EXPECT_DEATH(one_->GiveState(job_).status().IgnoreError(), "a state leaves a rank that does not have it");
  Require(one_->InstallState(job_, state));
  EXPECT_DEATH(one_->InstallState(job_, state).IgnoreError(), "a state comes to a rank that has it");
}

}  // namespace
}  // namespace weft::testing::device_migrating_test
