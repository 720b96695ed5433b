// The worker core by itself: two processes' cores are driven by hand through small runs, without clock,
// threads or sockets.
#include "worker/core/worker_core.h"

#include <algorithm>
#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/families/families.h"
#include "tests/unit/one_process.h"
#include "tests/unit/without_terms.h"

namespace weft::worker_core_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(OneProcess, GrantsInClaimOrder_EveryJobStartsOnceAfterItsPredecessors) {
  Begin(Shape("1f1b", 3, 4, 3));
  const Graph graph(shape_.schedule);
  const auto order = ClaimOrder(graph)->front();
  WorkerEffects out;
  for (int step = 0; step < 3; ++step) {
    for (Rank r = 0; r < 3; ++r) {
      std::vector<Job> jobs = order[r];
      for (Job& j : jobs) j.step = step;
      core_->OnMessage(2, GrantOf(r, jobs), &out);
    }
  }
  std::set<Job> done;
  int64_t now = 10;
  std::deque<StartEffect> running;
  size_t completions = 0;
  for (;;) {
    for (const auto& s : Only<StartEffect>(out)) running.push_back(s);
    for (const auto& s : Only<SendEffect>(out)) completions += std::holds_alternative<Completions>(s.message);
    out.clear();
    if (running.empty()) break;
    const StartEffect s = running.front();
    running.pop_front();
    std::vector<Edge> edges;
    graph.Predecessors(s.job, &edges);
    for (const Edge& e : edges) EXPECT_TRUE(e.from.step < 0 || done.count(e.from)) << Describe(s.job);
    EXPECT_TRUE(done.insert(s.job).second) << Describe(s.job) << " started twice";
    core_->OnJobDone(now + 2, {s.rank, s.job, now, now + 1, true, {}}, &out);
    now += 3;
  }
  EXPECT_EQ(done.size(), 3u * graph.jobs_per_step());
  EXPECT_EQ(completions, done.size());
  for (Rank r = 0; r < 3; ++r) EXPECT_EQ(core_->peak_activations(r), 3 - r);
}

// The step may be complete with that job; the others' completions may wait.
TEST_F(OneProcess, LastJobOfAStepInTheProcess_IsToldSoon) {
  Begin(Shape("gpipe", 2, 1, 1));
  WorkerEffects out;
  for (const Rank rank : {0, 1}) {
    core_->OnMessage(2,
                     GrantOf(rank, {Job::Compute(0, rank, 0, JobKind::kForward),
                                    Job::Compute(0, rank, 0, JobKind::kBackward), Job::Update(0, rank, 0)}),
                     &out);
  }
  std::vector<bool> soon;
  for (std::vector<StartEffect> starts = Only<StartEffect>(out); !starts.empty();) {
    const StartEffect start = starts.front();
    starts.erase(starts.begin());
    out.clear();
    core_->OnJobDone(10, {start.rank, start.job, 8, 9, true, {}}, &out);
    for (const SendEffect& sent : Only<SendEffect>(out)) soon.push_back(sent.soon);
    for (const StartEffect& next : Only<StartEffect>(out)) starts.push_back(next);
  }
  EXPECT_THAT(soon, ElementsAre(false, false, false, false, false, true));
}

// A validation of the last weights follows their checkpoint: nothing comes from peers any more.
TEST_F(OneProcess, ValidationOfTheLastStep_SaysThatTheRunHasItsResults) {
  Begin(Shape("gpipe", 2, 1, 3));
  WorkerEffects out;
  EXPECT_FALSE(core_->has_results());
  core_->OnMessage(2, Validate{core_->run_id(), 2}, &out);
  EXPECT_FALSE(core_->has_results()) << "on the way";
  core_->OnMessage(3, Validate{core_->run_id(), 3}, &out);
  EXPECT_TRUE(core_->has_results());
  EXPECT_EQ(Only<ValidateEffect>(out).size(), 2u);
  core_->OnMessage(4, Abort{core_->run_id()}, &out);
  core_->Forget(5, &out);
  EXPECT_FALSE(core_->has_results());
}

// Every rank starts its compute jobs in the order of its list, although all its jobs are granted and many are
// ready.
TEST_F(OneProcess, FixedOrder_StartsComputeJobsInTheOrderOfTheList) {
  constexpr int kSteps = 2;
  for (const char* family : {"zb_h1", "zb_v", "v_min"}) {
    Begin(Shape(family, 4, 4, kSteps));
    const Schedule& schedule = shape_.schedule.scheme;
    const auto claims = ClaimOrder(Graph(shape_.schedule))->front();
    WorkerEffects out;
    for (int step = 0; step < kSteps; ++step) {
      for (Rank r = 0; r < schedule.ranks; ++r) {
        std::vector<Job> jobs = claims[r];
        for (Job& j : jobs) j.step = step;
        core_->OnMessage(2, GrantOf(r, jobs), &out);
      }
    }
    std::vector<std::vector<Job>> started(schedule.ranks);
    std::deque<StartEffect> running;
    for (int64_t now = 10;; now += 3) {
      for (const auto& s : Only<StartEffect>(out)) {
        running.push_back(s);
        if (HasMicrobatch(s.job.kind)) started[s.rank].push_back(s.job);
      }
      out.clear();
      if (running.empty()) break;
      // The newest first, so that ranks run ahead of each other where their lists let them.
      const StartEffect s = running.back();
      running.pop_back();
      core_->OnJobDone(now + 2, {s.rank, s.job, now, now + 1, true, {}}, &out);
    }
    for (Rank r = 0; r < schedule.ranks; ++r) {
      const std::vector<Job>& order = schedule.order[r];
      ASSERT_EQ(started[r].size(), kSteps * order.size()) << family << ", rank " << r;
      for (size_t i = 0; i < started[r].size(); ++i) {
        Job listed = order[i % order.size()];
        listed.step = static_cast<int>(i / order.size());
        ASSERT_EQ(started[r][i], listed) << family << ", rank " << r << ": " << Describe(started[r][i]);
      }
    }
  }
}

TEST_F(OneProcess, StaleToken_ChangesNothing) {
  Begin(Shape("gpipe", 1, 1, 1));
  WorkerEffects out;
  Grant stale = GrantOf(0, {Job::Compute(0, 0, 0, JobKind::kForward)});
  stale.token.sequence = 0;
  core_->OnMessage(2, stale, &out);
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(core_->stale_grants(), 1u);
}

TEST_F(OneProcess, JobGrantedTwice_StartsOnce) {
  Begin(Shape("gpipe", 1, 1, 1));
  WorkerEffects out;
  const Grant grant = GrantOf(0, {Job::Compute(0, 0, 0, JobKind::kForward)});
  core_->OnMessage(2, grant, &out);
  core_->OnMessage(3, grant, &out);
  ASSERT_EQ(Only<StartEffect>(out).size(), 1u);
  out.clear();
  core_->OnJobDone(9, {0, grant.jobs[0], 4, 8, true, {}}, &out);
  core_->OnMessage(10, grant, &out);
  EXPECT_TRUE(Only<StartEffect>(out).empty());
}

// A process that is stopped loses its time around the jobs, where the times of the computation do not show
// it.
TEST_F(OneProcess, JobThatBeginsAndIsSeenLate_IsReportedWithItsDelay) {
  Begin(Shape("gpipe", 1, 2, 1));
  WorkerEffects out;
  const Job first = Job::Compute(0, 0, 0, JobKind::kForward),
            second = Job::Compute(0, 0, 1, JobKind::kForward);
  core_->OnMessage(10, GrantOf(0, {first, second}), &out);
  EXPECT_EQ(DelayReported(45, {0, first, 12, 40, true, {}}), 2 + 5);
  EXPECT_EQ(DelayReported(70, {0, second, 45, 70, true, {}}), 0) << "it was taken when the first was seen";
}

TEST_F(OneProcess, RoundsOfASum_AreReportedAsDelayOfThatSum) {
  Begin(Shape("ddp", 2, 2, 1));
  const auto order = ClaimOrder(Graph(shape_.schedule))->front();
  WorkerEffects out;
  for (Rank r = 0; r < 2; ++r) core_->OnMessage(2, GrantOf(r, order[r]), &out);
  const auto end = [&](int64_t start, int64_t now, JobKind kind, int stage, Rank rank) {
    return DelayReported(now, {rank, Job::Compute(0, stage, rank, kind), start, now, true, {}});
  };
  for (Rank r = 0; r < 2; ++r) {
    EXPECT_EQ(end(2, 10, JobKind::kForward, 0, r), 0);
    EXPECT_EQ(end(10, 15, JobKind::kForward, 1, r), 0);
  }
  EXPECT_EQ(end(15, 20, JobKind::kBackward, 1, 0), 0);
  ASSERT_EQ(started_.size(), 1u);
  const Job reduce = started_[0].job;
  EXPECT_EQ(reduce.kind, JobKind::kReduce);
  EXPECT_FALSE(started_[0].last());
  EXPECT_EQ(DelayReported(27, {0, reduce, 20, 26, false, {}}), -1) << "it goes on";
  EXPECT_EQ(end(27, 35, JobKind::kBackward, 0, 0), 0) << "the rounds are not its own";
  ASSERT_EQ(started_.size(), 1u);
  EXPECT_EQ(DelayReported(36, {0, started_[0].job, 35, 36, false, {}}), -1);
  EXPECT_EQ(end(15, 40, JobKind::kBackward, 1, 1), 0);
  EXPECT_EQ(DelayReported(52, {0, reduce, 41, 50, true, {}}), 7 + 1 + 2);
}

TEST_F(OneProcess, ReadyForwardBeyondTheLimit_IdlesForTheLimit) {
  Schedule s = *MakeSchedule("gpipe", {}, 2, 2);
  s.compute = s.weights = [](const Job& j) { return j.stage; };
  s.limit = [](Rank, int) -> std::optional<int> { return 1; };
  Begin({WithoutTerms(s), 1});
  WorkerEffects out;
  core_->OnMessage(
      10, GrantOf(0, {Job::Compute(0, 0, 0, JobKind::kForward), Job::Compute(0, 0, 1, JobKind::kForward)}),
      &out);
  core_->OnJobDone(30, {0, Job::Compute(0, 0, 0, JobKind::kForward), 10, 30, true, {}}, &out);
  EXPECT_EQ(core_->ClockAt(50, 0).cause(), IdleCause::kLimit);
  EXPECT_EQ(core_->ClockAt(50, 0).idle(IdleCause::kLimit), 20);
}

TEST_F(OneProcess, AnyMoment_BusyAndIdleSumToWallTime) {
  Begin(Shape("1f1b", 2, 2, 1));
  WorkerEffects out;
  core_->OnMessage(10, GrantOf(0, {Job::Compute(0, 0, 0, JobKind::kForward)}), &out);
  core_->OnJobDone(45, {0, Job::Compute(0, 0, 0, JobKind::kForward), 12, 40, true, {}}, &out);
  const RankClock& clock = core_->ClockAt(100, 0);
  int64_t sum = clock.busy(JobKind::kForward);
  for (int c = 0; c < kIdleCauses; ++c) sum += clock.idle(static_cast<IdleCause>(c));
  EXPECT_EQ(sum, clock.wall());
  EXPECT_EQ(clock.wall(), 100);
  EXPECT_EQ(clock.busy(JobKind::kForward), 28);
}

TEST_F(OneProcess, ReplicatedStage_SumsGradientsInOrderOfMicrobatches) {
  Begin(Shape("ddp", 1, 3, 1));
  const Graph graph(shape_.schedule);
  const auto order = ClaimOrder(graph)->front();
  WorkerEffects out;
  for (Rank r = 0; r < 3; ++r) core_->OnMessage(2, GrantOf(r, order[r]), &out);
  // Backward of micro-batch 2 ends first, then 0, then 1: rank 0's reduce takes 0 alone, then 1 and 2.
  std::map<Rank, Job> at;
  for (const auto& s : Only<StartEffect>(out)) at[s.rank] = s.job;
  const auto end = [&](Rank r, bool last) {
    out.clear();
    core_->OnJobDone(20, {r, at[r], 10, 11, last, {}}, &out);
    for (const auto& s : Only<StartEffect>(out)) at[s.rank] = s.job;
    return Only<StartEffect>(out);
  };
  for (Rank r = 0; r < 3; ++r) end(r, true);  // forwards
  EXPECT_TRUE(end(2, true).empty()) << "no reduce may begin with micro-batch 2";
  auto started = end(0, true);
  ASSERT_EQ(started.size(), 2u) << "ranks 0 and 2 begin their reduce with micro-batch 0";
  EXPECT_EQ(started[0].gradients.size(), 1u);
  EXPECT_EQ(started[0].gradients[0].microbatch, 0);
  EXPECT_FALSE(started[0].last());
  end(1, true);
  started = end(0, false);
  ASSERT_EQ(started.size(), 1u);
  ASSERT_EQ(started[0].gradients.size(), 2u);
  EXPECT_EQ(started[0].gradients[0].microbatch, 1);
  EXPECT_EQ(started[0].gradients[1].microbatch, 2);
  EXPECT_TRUE(started[0].last());
}

// One reduce job adds up the norm, and the updates of all stages wait for it; the tensors come to a job once,
// when it can be finished.
TEST_F(OneProcess, ClippedGradients_EveryUpdateGetsTheTotalOfAllReduces) {
  WorkerCore::RunShape shape = Shape("ddp", 2, 2, 1);
  shape.schedule.terms.takes_norm = true;
  Begin(shape);
  const Graph graph(shape_.schedule);
  const auto order = ClaimOrder(graph)->front();
  WorkerEffects out;
  for (Rank r = 0; r < 2; ++r) core_->OnMessage(2, GrantOf(r, order[r]), &out);
  std::deque<StartEffect> running;
  std::set<TensorKey> published;
  std::vector<Completion> completions;
  int finished = 0, updates = 0;
  for (;;) {
    for (const auto& s : Only<StartEffect>(out)) running.push_back(s);
    for (const auto& p : Only<PublishEffect>(out)) EXPECT_TRUE(published.insert(p.key).second);
    for (const auto& s : Only<SendEffect>(out)) {
      if (const auto* done = std::get_if<Completions>(&s.message))
        completions.insert(completions.end(), done->jobs.begin(), done->jobs.end());
    }
    out.clear();
    if (running.empty()) break;
    const StartEffect s = running.back();
    running.pop_back();
    const auto norms = std::count_if(s.inputs.begin(), s.inputs.end(),
                                     [](const TensorKey& key) { return key.kind == TensorKind::kNorm; });
    for (const TensorKey& key : s.inputs) EXPECT_EQ(published.count(key), 1u) << Describe(key);
    EXPECT_EQ(s.Does(Operation::kSumSquares), s.job.kind == JobKind::kReduce);
    EXPECT_EQ(s.Does(Operation::kClippedStep), s.job.kind == JobKind::kUpdate);
    if (s.last() && s.job.kind == JobKind::kReduce) {
      EXPECT_EQ(norms, graph.TotalsNorm(s.job) ? 3 : 0);
    }
    if (s.job.kind == JobKind::kUpdate) {
      EXPECT_EQ(norms, 1);
      EXPECT_EQ(finished, 4) << "an update went before a reduce";
      ++updates;
    }
    finished += s.last() && s.job.kind == JobKind::kReduce;
    JobDone done{s.rank, s.job, 10, 11, s.last(), {}, {}};
    if (s.job.kind == JobKind::kReduce) done.gradient_norm = 1 + s.job.stage * 2 + s.job.member;
    core_->OnJobDone(20, done, &out);
  }
  EXPECT_EQ(updates, 4);
  for (const Completion& c : completions) {
    EXPECT_EQ(c.gradient_norm, graph.TotalsNorm(c.job) ? std::optional<double>(1) : std::nullopt)
        << Describe(c.job);
  }
}

// This process has rank 1; rank 0 is in another one.
void PrepareSecondRank(WorkerCore& core) {
  Assign a;
  a.run = 1;
  a.epoch = 1;
  a.process_of_rank = {0, 1};
  a.leases = {{1, {1, 2}}};
  WorkerEffects ignored;
  core.OnMessage(0, a, &ignored);
  core.OnPrepared(1, &ignored);
}

TEST(TwoProcesses, ClaimedJob_WantsItsRemoteInputsAtOnce) {
  auto shape = Shape("gpipe", 2, 1, 1);
  WorkerCore core([&](const std::string&) { return shape; });
  WorkerEffects out;
  PrepareSecondRank(core);
  core.OnMessage(2, Grant{1, 1, {1, 2}, {Job::Compute(0, 1, 0, JobKind::kForward)}}, &out);
  ASSERT_EQ(Only<WantEffect>(out).size(), 1u);
  const WantEffect want = Only<WantEffect>(out)[0];
  EXPECT_EQ(want.process, 0);
  EXPECT_EQ(want.key.kind, TensorKind::kActivation);
  EXPECT_TRUE(Only<StartEffect>(out).empty());
  core.OnTensor(5, want.key, {4}, &out);
  EXPECT_EQ(Only<StartEffect>(out).size(), 1u);
  EXPECT_EQ(core.ClockAt(5, 1).idle(IdleCause::kTransfer), 1);
}

// The budget of the second rank has room for one forward with its copies. Notices have no bytes.
TEST(TwoProcesses, ForwardWithoutRoomForItsCopies_WantsItsNoticesAlone) {
  auto shape = Shape("gpipe", 2, 2, 1);
  shape.schedule.scheme.precedes = [](const Job& job) {
    const bool waits = job == Job::Compute(0, 1, 1, JobKind::kForward);
    return waits ? std::vector<Job>{Job::Compute(0, 0, 0, JobKind::kForward)} : std::vector<Job>();
  };
  shape.schedule.terms.memory = ActivationMemory{{300, 300}, {100, 100}, {100, 100}};
  WorkerCore core([&](const std::string&) { return shape; });
  WorkerEffects out;
  PrepareSecondRank(core);
  const Job first = Job::Compute(0, 1, 0, JobKind::kForward),
            second = Job::Compute(0, 1, 1, JobKind::kForward);
  core.OnMessage(2, Grant{1, 1, {1, 2}, {first, second}}, &out);
  std::vector<std::pair<TensorKind, int>> wanted;
  for (const WantEffect& want : Only<WantEffect>(out))
    wanted.emplace_back(want.key.kind, want.key.microbatch);
  EXPECT_THAT(wanted,
              testing::ElementsAre(std::pair(TensorKind::kActivation, 0), std::pair(TensorKind::kOrder, 0)));
}

// The rank deals micro-batches 1 and 3 of two ranks, and has room for one of them.
TEST(TwoProcesses, ForwardWithoutRoomForItsGradient_StartsWhenThatBeforeItIsTaken) {
  auto shape = Shape("ddp", 2, 4, 1);
  shape.schedule = WithoutTerms(*MakeSchedule("ddp", {{"ranks", "2"}}, 1, 4));
  shape.schedule.terms.memory = ActivationMemory{{100, 100}, {60}};
  shape.schedule.terms.memory->gradient_bytes = {80};
  WorkerCore core([&](const std::string&) { return shape; });
  PrepareSecondRank(core);
  const Job forward = Job::Compute(0, 0, 1, JobKind::kForward),
            backward = Job::Compute(0, 0, 1, JobKind::kBackward),
            next = Job::Compute(0, 0, 3, JobKind::kForward);
  EXPECT_TRUE(core.AwaitsTaking(backward));
  EXPECT_FALSE(core.AwaitsTaking(forward));
  WorkerEffects out;
  core.OnMessage(2, Grant{1, 1, {1, 2}, {forward, backward, next}}, &out);
  core.OnJobDone(4, {1, forward, 2, 4, true, {}, 60}, &out);
  core.OnJobDone(6, {1, backward, 4, 6, true, {}}, &out);
  out.clear();
  core.OnTensorTaken(7, {1, 2, 1, 0}, &out);
  core.OnTensorTaken(7, {2, 1, 1, 0}, &out);
  EXPECT_TRUE(Only<StartEffect>(out).empty()) << "they were of other attempts";
  EXPECT_EQ(core.ClockAt(8, 1).cause(), IdleCause::kMemory);
  core.OnTensorTaken(9, {1, 1, 1, 0}, &out);
  ASSERT_EQ(Only<StartEffect>(out).size(), 1u);
  EXPECT_EQ(Only<StartEffect>(out)[0].job, next);
}

// One rank on a device that is given jobs ahead, within a budget.
class LaunchedWithinABudget : public OneProcess {
 protected:
  static Job Of(int microbatch, JobKind kind) { return Job::Compute(0, 0, microbatch, kind); }
  void Plan(int64_t budget, ActivationPolicy policy) {
    auto shape = Shape("gpipe", 1, 2, 1);
    shape.schedule.terms.memory = ActivationMemory{{budget}, {60}};
    shape.schedule.terms.activations = {policy};
    Begin(shape, /*launch_ahead=*/2);
    WorkerEffects out;
    core_->OnMessage(2, GrantOf(0, ClaimOrder(Graph(shape_.schedule))->front()[0]), &out);
  }
  std::vector<Job> Started(const WorkerEffects& out) {
    std::vector<Job> jobs;
    for (const StartEffect& start : Only<StartEffect>(out)) jobs.push_back(start.job);
    return jobs;
  }
  std::vector<Job> Launch(const Job& job) {
    WorkerEffects out;
    core_->OnJobLaunched(3, 0, job, true, 60, &out);
    return Started(out);
  }
  std::vector<Job> Done(const Job& job) {
    WorkerEffects out;
    JobDone done{0, job, 4, 5, true, {}, {}};
    done.launched = true;
    core_->OnJobDone(5, done, &out);
    return Started(out);
  }
};

TEST_F(LaunchedWithinABudget, RoomOfABackward_ComesBackWhenTheDeviceHasDoneIt) {
  Plan(100, ActivationPolicy::kRetain);
  const Job backward = Of(0, JobKind::kBackward), next = Of(1, JobKind::kForward);
  EXPECT_THAT(Launch(Of(0, JobKind::kForward)), testing::ElementsAre(backward));
  EXPECT_THAT(Launch(backward), testing::IsEmpty());
  EXPECT_THAT(Done(Of(0, JobKind::kForward)), testing::IsEmpty()) << "its activations are there";
  EXPECT_THAT(Done(backward), testing::ElementsAre(next));
}

// The copies of both begin at once.
TEST_F(LaunchedWithinABudget, BackwardsThatBringActivationsBack_AreGivenOneByOne) {
  Plan(1000, ActivationPolicy::kOffload);
  EXPECT_THAT(Launch(Of(0, JobKind::kForward)), testing::IsEmpty());
  EXPECT_THAT(Done(Of(0, JobKind::kForward)), testing::SizeIs(1));
  Plan(1000, ActivationPolicy::kRetain);
  EXPECT_THAT(Launch(Of(0, JobKind::kForward)), testing::SizeIs(1));
}

// Forwards wait until gradients are taken. So the jobs that take them must not wait for their grant, which
// may be behind these forwards.
TEST(TwoProcesses, GradientsOfAStepThatHasBegun_AreTakenBeforeTheirJobIsGranted) {
  auto shape = Shape("ddp", 2, 4, 1);
  shape.schedule = WithoutTerms(*MakeSchedule("ddp", {{"ranks", "2"}}, 1, 2));
  shape.schedule.terms.memory = ActivationMemory{{900, 900}, {60}};
  shape.schedule.terms.memory->gradient_bytes = {80};
  WorkerCore core([&](const std::string&) { return shape; });
  PrepareSecondRank(core);
  const Job forward = Job::Compute(0, 0, 1, JobKind::kForward),
            backward = Job::Compute(0, 0, 1, JobKind::kBackward), reduce = Job::Reduce(0, 0, 1);
  WorkerEffects out;
  core.OnMessage(2, Grant{1, 1, {1, 2}, {forward, backward}}, &out);
  const std::vector<WantEffect> wants = Only<WantEffect>(out);
  ASSERT_EQ(wants.size(), 1u) << "the gradient of the other rank";
  EXPECT_EQ(wants[0].key.kind, TensorKind::kGradient);
  core.OnJobDone(4, {1, forward, 2, 4, true, {}, 60}, &out);
  out.clear();
  core.OnTensor(5, wants[0].key, {4}, &out);
  core.OnJobDone(6, {1, backward, 4, 6, true, {}}, &out);
  std::vector<StartEffect> starts = Only<StartEffect>(out);
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].job, reduce);
  EXPECT_EQ(starts[0].round, JobRound::kGradients);
  EXPECT_EQ(starts[0].gradients.size(), 2u);
  out.clear();
  core.OnJobDone(7, {1, reduce, 6, 7, false, {}}, &out);
  EXPECT_TRUE(Only<StartEffect>(out).empty()) << "it ends once it is granted";
  core.OnMessage(8, Grant{1, 1, {1, 2}, {reduce}}, &out);
  EXPECT_TRUE(Only<WantEffect>(out).empty()) << "all was wanted";
  starts = Only<StartEffect>(out);
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].round, JobRound::kLast);
  EXPECT_TRUE(starts[0].gradients.empty());
}

// Both ranks are in one process. The gradient of the first is made before the second is granted anything.
TEST_F(OneProcess, GradientThatIsThereBeforeTheFirstGrantOfItsStep_IsTakenWithThat) {
  shape_ = Shape("ddp", 2, 4, 1);
  shape_.schedule = WithoutTerms(*MakeSchedule("ddp", {{"ranks", "2"}}, 1, 2));
  shape_.schedule.terms.memory = ActivationMemory{{900, 900}, {60}};
  shape_.schedule.terms.memory->gradient_bytes = {80};
  Begin(shape_);
  const Job forward = Job::Compute(0, 0, 0, JobKind::kForward),
            backward = Job::Compute(0, 0, 0, JobKind::kBackward);
  WorkerEffects out;
  core_->OnMessage(2, GrantOf(0, {forward, backward}), &out);
  core_->OnJobDone(4, {0, forward, 2, 4, true, {}, 60}, &out);
  core_->OnJobDone(6, {0, backward, 4, 6, true, {}}, &out);
  out.clear();
  core_->OnMessage(7, GrantOf(1, {Job::Compute(0, 0, 1, JobKind::kForward)}), &out);
  const std::vector<StartEffect> starts = Only<StartEffect>(out);
  ASSERT_FALSE(starts.empty());
  EXPECT_EQ(starts[0].job, Job::Reduce(0, 0, 1));
  EXPECT_EQ(starts[0].round, JobRound::kGradients);
}

// Each rank holds one of the stages, and the other rank has its initial weights for a forward and a backward.
TEST_F(OneProcess, UpdateWithinABudget_WaitsUntilReadersHaveGivenTheVersionBack) {
  shape_ = Shape("fsdp", 2, 2, 1);
  shape_.schedule.terms.memory = ActivationMemory{{900, 900}, {60, 60}};
  Begin(shape_);
  const auto order = ClaimOrder(Graph(shape_.schedule))->front();
  WorkerEffects out;
  for (const Rank rank : {0, 1}) core_->OnMessage(2, GrantOf(rank, order[rank]), &out);
  std::set<Job> done;
  const auto run = [&] {
    for (std::vector<StartEffect> starts = Only<StartEffect>(out); !starts.empty();) {
      const StartEffect start = starts.back();
      starts.pop_back();
      if (start.last()) done.insert(start.job);
      out.clear();
      core_->OnJobDone(9, {start.rank, start.job, 8, 9, start.last(), {}, 60}, &out);
      for (const StartEffect& next : Only<StartEffect>(out)) starts.push_back(next);
    }
    out.clear();
  };
  run();
  const Job update = Job::Update(0, 0, 0);
  EXPECT_EQ(done.count(Job::Compute(0, 0, 1, JobKind::kBackward)), 1u) << "the last reader";
  core_->OnTensorTaken(10, {7, 3, 0, 0, {update}}, &out);
  run();
  EXPECT_EQ(done.count(update), 0u);
  EXPECT_EQ(core_->ClockAt(11, 0).cause(), IdleCause::kMemory) << "all that it needs has been computed";
  core_->OnTensorTaken(11, {7, 3, 0, 0, {update}}, &out);
  run();
  EXPECT_EQ(done.count(update), 1u);
  EXPECT_EQ(done.count(Job::Update(0, 1, 0)), 0u) << "nobody has given back the other stage";
}

TEST(TwoProcesses, TensorThatStartsNoJob_IsNoTransferTime) {
  auto shape = Shape("gpipe", 2, 2, 1);
  WorkerCore core([&](const std::string&) { return shape; });
  WorkerEffects out;
  PrepareSecondRank(core);
  core.OnMessage(2, Grant{1, 1, {1, 2}, {Job::Compute(0, 1, 0, JobKind::kForward)}}, &out);
  const WantEffect first = Only<WantEffect>(out)[0];
  core.OnTensor(5, first.key, {4}, &out);
  core.OnMessage(6, Grant{1, 1, {1, 2}, {Job::Compute(0, 1, 1, JobKind::kForward)}}, &out);
  const WantEffect second = Only<WantEffect>(out)[1];
  core.OnTensor(8, second.key, {3, 4096}, &out);  // while the first job runs
  core.OnJobDone(9, {1, Job::Compute(0, 1, 0, JobKind::kForward), 5, 9, true, 0.5}, &out);
  EXPECT_EQ(Only<StartEffect>(out).size(), 2u);
  EXPECT_EQ(core.ClockAt(9, 1).idle(IdleCause::kTransfer), 1);  // of the first alone
  // Both came, though.
  const Job jobs[] = {Job::Compute(0, 1, 0, JobKind::kForward), Job::Compute(0, 1, 1, JobKind::kForward)};
  const std::vector<TransferSpan> expected = {{0, TensorKind::kActivation, jobs[0], 2, 4, 5},
                                              {0, TensorKind::kActivation, jobs[1], 6, 3, 8, 4096}};
  EXPECT_EQ(core.transfer_spans(1), expected);
}

// The present wait counts too, though it goes on.
TEST(TwoProcesses, AskedForItsSpans_TellsThoseOfItsRanksOfThatRun) {
  auto shape = Shape("gpipe", 2, 2, 1);
  WorkerCore core([&](const std::string&) { return shape; });
  WorkerEffects out;
  PrepareSecondRank(core);
  core.OnMessage(2, Grant{1, 1, {1, 2}, {Job::Compute(0, 1, 0, JobKind::kForward)}}, &out);
  const WantEffect want = Only<WantEffect>(out)[0];
  core.OnTensor(5, want.key, {4, 64}, &out);
  core.OnJobDone(9, {1, Job::Compute(0, 1, 0, JobKind::kForward), 5, 9, true, 0.5}, &out);
  out.clear();
  core.OnMessage(20, TellSpans{2}, &out);
  EXPECT_TRUE(out.empty()) << "it serves another run";
  core.OnMessage(20, TellSpans{1}, &out);
  const std::vector<SendEffect> sent = Only<SendEffect>(out);
  ASSERT_EQ(sent.size(), 1u);
  const Spans& spans = std::get<Spans>(sent[0].message);
  EXPECT_EQ(spans.run, 1u);
  ASSERT_EQ(spans.ranks.size(), 1u);
  EXPECT_EQ(spans.ranks[0].rank, 1);
  ASSERT_EQ(spans.ranks[0].transfers.size(), 1u);
  EXPECT_EQ(spans.ranks[0].transfers[0].bytes, 64);
  ASSERT_FALSE(spans.ranks[0].idle.empty());
  EXPECT_EQ(spans.ranks[0].idle.back().start_ns, 9);
  EXPECT_EQ(spans.ranks[0].idle.back().end_ns, 20);
}

// A driver reads the clock before it looks, and may be held up between the two.
TEST(TwoProcesses, TensorMadeAfterTheDriverReadTheClock_ArrivesWhenItWasMade) {
  auto shape = Shape("gpipe", 2, 2, 1);
  WorkerCore core([&](const std::string&) { return shape; });
  WorkerEffects out;
  PrepareSecondRank(core);
  core.OnMessage(2, Grant{1, 1, {1, 2}, {Job::Compute(0, 1, 0, JobKind::kForward)}}, &out);
  core.OnTensor(5, Only<WantEffect>(out)[0].key, {7}, &out);
  ASSERT_EQ(core.transfer_spans(1).size(), 1u);
  EXPECT_EQ(core.transfer_spans(1)[0].made_ns, 7);
  EXPECT_EQ(core.transfer_spans(1)[0].arrived_ns, 7);
}

// The weights of the job that runs and of the next one are wanted, a slice from the other holder each, and no
// others, though the whole step is granted.
TEST(TwoProcesses, WeightsByWidth_AreWantedForTheRunningJobAndTheNext) {
  WorkerCore::RunShape shape{WithoutTerms(*MakeSchedule("fsdp", {{"shard", "width"}}, 3, 2)), 1};
  WorkerCore core([&](const std::string&) { return shape; });
  WorkerEffects out;
  PrepareSecondRank(core);
  core.OnMessage(2, Grant{1, 1, {1, 2}, ClaimOrder(Graph(shape.schedule))->front()[1]}, &out);
  const std::vector<std::pair<JobKind, int>> order = {{JobKind::kForward, 0},  {JobKind::kForward, 1},
                                                      {JobKind::kForward, 2},  {JobKind::kBackward, 2},
                                                      {JobKind::kBackward, 1}, {JobKind::kBackward, 0}};
  std::vector<TensorKey> wanted;
  const auto take_wanted = [&] {
    for (const auto& want : Only<WantEffect>(out)) {
      if (want.key.kind == TensorKind::kWeights) wanted.push_back(want.key);
    }
  };
  take_wanted();
  for (size_t i = 0; i < order.size(); ++i) {
    ASSERT_EQ(wanted.size(), std::min(i + 2, order.size())) << "before job " << i;
    const TensorKey key = wanted[i];
    EXPECT_EQ(std::pair(key.reader(), key.stage), order[i]);
    EXPECT_EQ(key.part, 0) << "the other holder's slice";
    out.clear();
    core.OnTensor(10, key, {9}, &out);
    const auto starts = Only<StartEffect>(out);
    ASSERT_EQ(starts.size(), 1u);
    EXPECT_TRUE(starts[0].Does(Operation::kGatherWeights));
    EXPECT_EQ(std::count(starts[0].inputs.begin(), starts[0].inputs.end(), key), 1);
    out.clear();
    core.OnJobDone(13, {1, starts[0].job, 11, 12, true, {}}, &out);
    take_wanted();
  }
}

// The arrival of the gradient says that another process has ended its reads of the version.
TEST(TwoProcesses, VersionReadElsewhere_IsDroppedWhenTheGradientArrives) {
  Schedule schedule = *MakeSchedule("fsdp", {}, 2, 2);
  ASSERT_TRUE(ApplyRule("cdp_v1", "fsdp", &schedule).ok());
  WorkerCore::RunShape shape{WithoutTerms(schedule), 3};
  WorkerCore core([&](const std::string&) { return shape; });
  WorkerEffects out;
  PrepareSecondRank(core);
  std::vector<Job> jobs = ClaimOrder(Graph(WithoutTerms(schedule)))->front()[1];
  for (int step = 0; step < 3; ++step) {
    for (Job& j : jobs) j.step = step;
    core.OnMessage(2, Grant{1, 1, {1, 2}, jobs}, &out);
  }
  // Everything comes and every job ends but for the other rank's gradients of the stage after the first step.
  std::optional<TensorKey> last_gradient;
  std::vector<DropEffect> drops;
  for (int64_t now = 10; !out.empty(); now += 3) {
    WorkerEffects effects;
    effects.swap(out);
    for (const auto& drop : Only<DropEffect>(effects)) drops.push_back(drop);
    for (const auto& want : Only<WantEffect>(effects)) {
      const bool later = want.key.kind == TensorKind::kGradient && want.key.step > 0;
      if (later && want.key.step == 1) last_gradient = want.key;
      if (!later) core.OnTensor(now, want.key, {}, &out);
    }
    for (const auto& s : Only<StartEffect>(effects))
      core.OnJobDone(now + 2, {1, s.job, now, now + 1, s.last(), {}}, &out);
  }
  ASSERT_TRUE(last_gradient.has_value());
  EXPECT_EQ(last_gradient->stage, 1);
  EXPECT_TRUE(drops.empty()) << "version " << drops[0].version << " may still be read in the other process";
  EXPECT_EQ(core.weight_versions(1), 2);
  core.OnTensor(900, *last_gradient, {}, &out);
  const auto now_dropped = Only<DropEffect>(out);
  ASSERT_EQ(now_dropped.size(), 1u);
  EXPECT_EQ(now_dropped[0].rank, 1);
  EXPECT_EQ(now_dropped[0].stage, 1);
  EXPECT_EQ(now_dropped[0].version, 0);
  EXPECT_EQ(core.weight_versions(1), 1);
}

TEST(TwoProcesses, AbortWhileAJobRuns_ForgetsAfterItsEnd) {
  auto shape = Shape("gpipe", 1, 1, 1);
  WorkerCore core([&](const std::string&) { return shape; });
  Assign a;
  a.run = 1;
  a.process_of_rank = {0};
  a.leases = {{0, {1, 1}}};
  WorkerEffects out;
  core.OnMessage(0, a, &out);
  core.OnPrepared(1, &out);
  core.OnMessage(2, Grant{1, 0, {1, 1}, {Job::Compute(0, 0, 0, JobKind::kForward)}}, &out);
  out.clear();
  core.OnMessage(3, Abort{1, "peer died"}, &out);
  EXPECT_TRUE(Only<ForgetEffect>(out).empty());
  core.OnJobDone(9, {0, Job::Compute(0, 0, 0, JobKind::kForward), 4, 8, true, {}}, &out);
  EXPECT_EQ(Only<ForgetEffect>(out).size(), 1u);
  EXPECT_TRUE(Only<StartEffect>(out).empty());
}

TEST(TwoProcesses, NextRunAssignedWhileAnAbortedJobRuns_BeginsAfterIt) {
  auto shape = Shape("gpipe", 1, 1, 1);
  WorkerCore core([&](const std::string&) { return shape; });
  Assign a;
  a.run = 1;
  a.process_of_rank = {0};
  a.leases = {{0, {1, 1}}};
  WorkerEffects out;
  core.OnMessage(0, a, &out);
  core.OnPrepared(1, &out);
  core.OnMessage(2, Grant{1, 0, {1, 1}, {Job::Compute(0, 0, 0, JobKind::kForward)}}, &out);
  core.OnMessage(3, Abort{1, "cancelled"}, &out);
  out.clear();
  a.run = 2;
  core.OnMessage(4, a, &out);
  EXPECT_TRUE(out.empty()) << "neither begun nor refused";
  core.OnJobDone(9, {0, Job::Compute(0, 0, 0, JobKind::kForward), 4, 8, true, {}}, &out);
  ASSERT_EQ(Only<ForgetEffect>(out).size(), 1u);
  out.clear();
  core.Forget(10, &out);
  ASSERT_EQ(Only<PrepareEffect>(out).size(), 1u);
  EXPECT_EQ(core.run_id(), 2u);
}

TEST(TwoProcesses, SpecThatCannotRun_IsReportedWithItsReason) {
  WorkerCore core([](const std::string&) -> absl::StatusOr<WorkerCore::RunShape> {
    return absl::InvalidArgumentError("no such model");
  });
  WorkerEffects out;
  core.OnMessage(0, Assign{}, &out);
  ASSERT_EQ(Only<SendEffect>(out).size(), 1u);
  EXPECT_THAT(std::get<Failed>(Only<SendEffect>(out)[0].message).reason, HasSubstr("no such model"));
  EXPECT_FALSE(core.has_run());
}

}  // namespace
}  // namespace weft::worker_core_test
