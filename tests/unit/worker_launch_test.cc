// The worker core where a device is given jobs ahead: what goes on when a job is launched, and what waits
// until it is done.
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schedules/dispatch/claim_order.h"
#include "tests/unit/one_process.h"

namespace weft::worker_launch_test {
namespace {

Job Forward(int stage, int microbatch) { return Job::Compute(0, stage, microbatch, JobKind::kForward); }
Job Backward(int stage, int microbatch) { return Job::Compute(0, stage, microbatch, JobKind::kBackward); }

std::vector<Job> SecondForwardAfterTheFirst(const Job& j) {
  if (j.kind != JobKind::kForward || j.microbatch != 1) return {};
  return {Job::Compute(j.step, j.stage, 0, JobKind::kForward)};
}

class LaunchingProcess : public OneProcess {
 protected:
  void GrantAll(int steps = 1) {
    const auto claims = ClaimOrder(Graph(shape_.schedule))->front();
    out_.clear();
    for (int step = 0; step < steps; ++step) {
      for (Rank r = 0; r < shape_.schedule.scheme.ranks; ++r) {
        std::vector<Job> jobs = claims[r];
        for (Job& j : jobs) j.step = step;
        core_->OnMessage(2, GrantOf(r, jobs), &out_);
      }
    }
  }
  std::vector<Job> Launch(int64_t now, Rank rank, const Job& job, bool last = true,
                          std::optional<int64_t> activation_bytes = {}) {
    out_.clear();
    core_->OnJobLaunched(now, rank, job, last, activation_bytes, &out_);
    return Started();
  }
  std::vector<Job> Done(int64_t now, Rank rank, const Job& job, bool last = true) {
    out_.clear();
    JobDone done{rank, job, now - 2, now - 1, last, {}, {}};
    done.launched = true;
    core_->OnJobDone(now, done, &out_);
    return Started();
  }
  std::vector<Job> Started() const {
    std::vector<Job> jobs;
    for (const StartEffect& s : Only<StartEffect>(out_)) jobs.push_back(s.job);
    return jobs;
  }
  int Completed() const {
    int completed = 0;
    for (const SendEffect& s : Only<SendEffect>(out_))
      completed += std::holds_alternative<Completions>(s.message);
    return completed;
  }

  WorkerEffects out_;
};

using Jobs = std::vector<Job>;

TEST_F(LaunchingProcess, LaunchedJobs_AreFollowedUntilTheDeviceHasAsManyAsItTakes) {
  Begin(Shape("gpipe", 1, 4, 1), 2);
  GrantAll();
  EXPECT_EQ(Started(), Jobs{Forward(0, 0)});
  EXPECT_EQ(Launch(10, 0, Forward(0, 0)), Jobs{Forward(0, 1)});
  EXPECT_EQ(Completed(), 0) << "the device may yet fail";
  EXPECT_EQ(Launch(11, 0, Forward(0, 1)), Jobs());
  EXPECT_EQ(Done(20, 0, Forward(0, 0)), Jobs{Forward(0, 2)});
  EXPECT_EQ(Completed(), 1);
}

TEST_F(LaunchingProcess, ConsumersOfThisProcess_StartBehindTheLaunchedJob) {
  Begin(Shape("gpipe", 2, 1, 1), 2);
  GrantAll();
  EXPECT_EQ(Launch(10, 0, Forward(0, 0)), Jobs{Forward(1, 0)});
  ASSERT_EQ(Only<PublishEffect>(out_).size(), 1u);
  EXPECT_EQ(Only<PublishEffect>(out_)[0].process, -1);
  EXPECT_EQ(Launch(11, 1, Forward(1, 0)), Jobs{Backward(1, 0)});
  EXPECT_EQ(Done(20, 0, Forward(0, 0)), Jobs());
  EXPECT_TRUE(Only<PublishEffect>(out_).empty()) << "published once";
}

// It carries no bytes by which the device could keep the order.
TEST_F(LaunchingProcess, OrderEdgeToAnotherRank_WaitsUntilTheJobIsDone) {
  WorkerCore::RunShape shape = Shape("ddp", 1, 2, 1);
  shape.schedule.scheme.precedes = SecondForwardAfterTheFirst;
  Begin(shape, 2);
  GrantAll();
  EXPECT_EQ(Started(), Jobs{Forward(0, 0)});
  EXPECT_EQ(Launch(10, 0, Forward(0, 0)), Jobs{Backward(0, 0)});
  EXPECT_EQ(Done(20, 0, Forward(0, 0)), Jobs{Forward(0, 1)});
}

TEST_F(LaunchingProcess, OrderEdgeOnTheSameRank_IsKeptByTheDevice) {
  WorkerCore::RunShape shape = Shape("gpipe", 1, 2, 1);
  shape.schedule.scheme.precedes = SecondForwardAfterTheFirst;
  Begin(shape, 2);
  GrantAll();
  EXPECT_EQ(Launch(10, 0, Forward(0, 0)), Jobs{Forward(0, 1)});
}

TEST_F(LaunchingProcess, SumInRounds_TheNextIsLaunchedBeforeTheFirstIsDone) {
  Begin(Shape("ddp", 1, 2, 1), 2);
  GrantAll();
  Launch(10, 0, Forward(0, 0));
  Launch(11, 1, Forward(0, 1));
  const auto reduce_of = [&](Rank rank) {
    for (const StartEffect& s : Only<StartEffect>(out_)) {
      if (s.rank == rank && s.job.kind == JobKind::kReduce) return s;
    }
    return StartEffect{};
  };
  Done(12, 0, Forward(0, 0));
  Launch(13, 0, Backward(0, 0));
  const StartEffect first = reduce_of(0);
  ASSERT_EQ(first.gradients.size(), 1u);
  EXPECT_FALSE(first.last());
  Launch(14, 0, first.job, /*last=*/false);
  Done(15, 0, Backward(0, 0));
  Launch(16, 1, Backward(0, 1));
  const StartEffect second = reduce_of(0);
  ASSERT_EQ(second.gradients.size(), 1u) << "though the first round is not done";
  EXPECT_EQ(second.gradients[0].microbatch, 1);
  EXPECT_TRUE(second.last());
  Launch(17, 0, second.job);
  Done(18, 0, first.job, /*last=*/false);
  EXPECT_EQ(Completed(), 0);
  Done(19, 0, second.job);
  EXPECT_EQ(Completed(), 1);
}

// A rank's memory is used again in the device's order, without another process to wait for.
TEST_F(LaunchingProcess, LaunchedBackward_MakesRoomForTheNextForward) {
  WorkerCore::RunShape shape = Shape("1f1b", 1, 3, 1);
  shape.schedule.scheme.limit = [](Rank, int) -> std::optional<int> { return 1; };
  Begin(shape, 4);
  GrantAll();
  EXPECT_EQ(Launch(10, 0, Forward(0, 0)), Jobs{Backward(0, 0)});
  EXPECT_EQ(Launch(11, 0, Backward(0, 0)), Jobs{Forward(0, 1)});
  EXPECT_EQ(Launch(12, 0, Forward(0, 1)), Jobs{Backward(0, 1)});
  EXPECT_EQ(core_->peak_activations(0), 1);
}

TEST_F(LaunchingProcess, AbortWhileJobsAreLaunched_ForgetsWhenTheLastIsDone) {
  Begin(Shape("gpipe", 1, 4, 1), 2);
  GrantAll();
  Launch(10, 0, Forward(0, 0));
  out_.clear();
  core_->OnMessage(11, Abort{7, "cancelled"}, &out_);
  EXPECT_TRUE(Only<ForgetEffect>(out_).empty());
  EXPECT_EQ(Launch(12, 0, Forward(0, 1)), Jobs());
  EXPECT_TRUE(Only<PublishEffect>(out_).empty());
  Done(20, 0, Forward(0, 0));
  EXPECT_TRUE(Only<ForgetEffect>(out_).empty());
  Done(30, 0, Forward(0, 1));
  EXPECT_EQ(Only<ForgetEffect>(out_).size(), 1u);
}

TEST_F(LaunchingProcess, RankWithJobsInFlight_IsBusyByTheDevicesTimes) {
  Begin(Shape("gpipe", 1, 2, 1), 2);
  GrantAll();
  Launch(10, 0, Forward(0, 0));
  Launch(12, 0, Forward(0, 1));
  const auto done = [&](int64_t now, const Job& job, int64_t start, int64_t end) {
    JobDone report{0, job, start, end, true, {}, {}};
    report.launched = true;
    core_->OnJobDone(now, report, &out_);
  };
  done(60, Forward(0, 0), 11, 50);
  out_.clear();
  EXPECT_EQ(core_->ClockAt(61, 0).wall(), 50) << "the next runs, since when is not known yet";
  Launch(62, 0, Backward(0, 0));
  done(95, Forward(0, 1), 52, 90);
  done(150, Backward(0, 0), 93, 140);
  const RankClock& clock = core_->ClockAt(150, 0);
  EXPECT_EQ(clock.busy(JobKind::kForward), 39 + 38);
  EXPECT_EQ(clock.busy(JobKind::kBackward), 47);
  int64_t sum = 0;
  for (int k = 0; k < kJobKinds; ++k) sum += clock.busy(static_cast<JobKind>(k));
  for (int c = 0; c < kIdleCauses; ++c) sum += clock.idle(static_cast<IdleCause>(c));
  EXPECT_EQ(sum, clock.wall());
}

// The device has the job of the second rank all the while, and does it when that of the first has been done.
TEST_F(LaunchingProcess, LaunchedJobThatWaitsForAnotherRank_IsIdleForTheDependency) {
  Begin(Shape("gpipe", 2, 1, 1), 2);
  GrantAll();
  Launch(10, 0, Forward(0, 0));
  Launch(14, 1, Forward(1, 0));
  const auto done = [&](int64_t now, Rank rank, const Job& job, int64_t start, int64_t end) {
    JobDone report{rank, job, start, end, true, {}, {}};
    report.launched = true;
    core_->OnJobDone(now, report, &out_);
  };
  done(52, 0, Forward(0, 0), 11, 50);
  done(95, 1, Forward(1, 0), 53, 90);
  const RankClock& clock = core_->ClockAt(95, 1);
  EXPECT_EQ(clock.idle(IdleCause::kDependency), (10 - 2) + (50 - 10)) << "until it was given it, and after";
  EXPECT_EQ(clock.busy(JobKind::kForward), 37);
}

// Whole runs, in any order of launches and ends, keep the order: in the device's order, which is that of
// starts on each rank, a job comes after its predecessors, and those that it cannot be kept behind are done.
TEST_F(LaunchingProcess, AnyOrderOfLaunchesAndEnds_EveryJobIsDoneOnceAfterItsPredecessors) {
  constexpr int kSteps = 3;
  for (const std::string name : {"1f1b", "ddp", "fsdp", "zb_h1", "cdp"}) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(name + ", seed " + std::to_string(seed));
      std::mt19937 random(seed);
      WorkerCore::RunShape shape = Shape(name == "cdp" ? "ddp" : name, 3, 3, kSteps);
      ASSERT_TRUE(ApplyRule(name == "cdp" ? "cdp_v2" : "sync", "ddp", &shape.schedule.scheme).ok());
      const int ahead = 2 + static_cast<int>(seed % 3);
      Begin(shape, ahead);
      const Graph graph(shape.schedule);
      GrantAll(kSteps);
      std::map<Rank, std::deque<StartEffect>> given, launched;  // by rank; of the first one at most
      std::set<Job> ended, begun;
      size_t completed = 0;
      bool ran_ahead = false;
      for (int64_t now = 10;; ++now) {
        for (const StartEffect& s : Only<StartEffect>(out_)) {
          given[s.rank].push_back(s);
          ASSERT_EQ(given[s.rank].size(), 1u);
          ASSERT_LE(launched[s.rank].size() + 1, static_cast<size_t>(ahead));
          ran_ahead |= !launched[s.rank].empty();
          std::vector<Edge> edges;
          graph.Predecessors(s.job, &edges);
          for (const Edge& e : edges) {
            const bool gradient = e.tensor == TensorKind::kGradient && !s.last();
            if (e.from.step < 0 || gradient) continue;
            const bool by_order =
                e.tensor == TensorKind::kOrder && graph.RankOf(e.from) != graph.RankOf(e.to);
            EXPECT_TRUE((by_order ? ended : begun).count(e.from)) << Describe(s.job) << " too early";
          }
        }
        completed += Completed();
        std::vector<Rank> can_launch, can_end;
        for (const auto& [rank, some] : given) {
          if (!some.empty()) can_launch.push_back(rank);
        }
        for (const auto& [rank, some] : launched) {
          if (!some.empty()) can_end.push_back(rank);
        }
        if (can_launch.empty() && can_end.empty()) break;
        const size_t pick = random() % (can_launch.size() + can_end.size());
        if (pick < can_launch.size()) {
          const Rank rank = can_launch[pick];
          const StartEffect s = given[rank].front();
          given[rank].pop_front();
          launched[rank].push_back(s);
          EXPECT_TRUE(!s.last() || begun.insert(s.job).second) << Describe(s.job) << " twice";
          Launch(now, rank, s.job, s.last());
        } else {
          const Rank rank = can_end[pick - can_launch.size()];
          const StartEffect s = launched[rank].front();
          launched[rank].pop_front();
          if (s.last()) ended.insert(s.job);
          Done(now, rank, s.job, s.last());
        }
      }
      EXPECT_EQ(ended.size(), static_cast<size_t>(kSteps) * graph.jobs_per_step());
      EXPECT_EQ(completed, ended.size());
      EXPECT_TRUE(ran_ahead);
    }
  }
}

}  // namespace
}  // namespace weft::worker_launch_test
