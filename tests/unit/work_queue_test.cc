#include "coordinator/core/work_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"

namespace weft::work_queue_test {
namespace {

std::shared_ptr<const RunPlan> Plan(const std::string& family, int stages, int microbatches, int steps,
                                    const std::map<std::string, std::string>& parameters = {}) {
  auto plan = MakeRunPlan("run", family,
                          WithoutTerms(*MakeSchedule(family, parameters, stages, microbatches)), steps);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

Completion Done(const Job& job, double loss = 0, int64_t end_ns = 1) {
  return {job, end_ns - 1, end_ns, loss, loss != 0};
}

std::vector<Job> GrantTo(WorkQueue& queue, Rank rank, int credit) {
  std::vector<Job> jobs;
  queue.Grant(rank, credit, &jobs);
  return jobs;
}

TEST(WorkQueue, Grant_CreditTwo_GivesTheFirstTwoInClaimOrder) {
  const auto plan = Plan("gpipe", 2, 4, 1);
  WorkQueue queue(plan);
  const std::vector<Job> jobs = GrantTo(queue, 1, 2);
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0], (*plan->claim_order)[0][1][0]);
  EXPECT_EQ(jobs[1], (*plan->claim_order)[0][1][1]);
  EXPECT_TRUE(GrantTo(queue, 1, 2).empty()) << "the credit is used up";
  EXPECT_FALSE(queue.CanGrant(1, 2));
  EXPECT_EQ(queue.Complete(1, Done(jobs[0])), WorkQueue::Outcome::kDone);
  EXPECT_EQ(GrantTo(queue, 1, 2), std::vector<Job>{(*plan->claim_order)[0][1][2]});
}

TEST(WorkQueue, Complete_Twice_IsADuplicate) {
  WorkQueue queue(Plan("gpipe", 2, 4, 2));
  const Job job = GrantTo(queue, 0, 1)[0];
  EXPECT_EQ(queue.Complete(0, Done(job)), WorkQueue::Outcome::kDone);
  EXPECT_EQ(queue.Complete(0, Done(job)), WorkQueue::Outcome::kDuplicate);
  EXPECT_EQ(queue.counts().done, 1);
}

TEST(WorkQueue, Complete_NotGranted_IsAViolation) {
  WorkQueue queue(Plan("gpipe", 2, 4, 2));
  const Job granted = GrantTo(queue, 0, 1)[0];
  const Job words[] = {
      Job::Compute(0, 0, 3, JobKind::kForward),         // not yet granted
      Job::Compute(0, 0, 4, JobKind::kForward),         // no such micro-batch
      Job::Compute(0, 2, 0, JobKind::kForward),         // no such stage
      Job::Compute(0, 0, 0, JobKind::kBackwardWeight),  // no such kind in this schedule
      Job::Compute(-1, 0, 0, JobKind::kForward),
      Job::Compute(2, 0, 0, JobKind::kForward),  // past the last step
      Job::Reduce(0, 0, 0),                      // the stage has no replicas
      Job::Update(0, 0, 1),                      // no such member
  };
  for (const Job& job : words) {
    EXPECT_EQ(queue.Complete(0, Done(job)), WorkQueue::Outcome::kViolation) << Describe(job);
  }
  EXPECT_EQ(queue.Complete(1, Done(granted)), WorkQueue::Outcome::kViolation) << "another rank's";
  EXPECT_EQ(queue.counts().done, 0);
}

// Ends jobs of random ranks until all is done; checks that a job is granted once, to its rank, in claim
// order.
void RunToTheEnd(const RunPlan& plan, WorkQueue& queue, int credit, uint64_t seed,
                 std::vector<WorkQueue::EndedStep>* steps) {
  const int ranks = plan.ranks();
  std::vector<std::vector<Job>> held(ranks);
  std::set<Job> seen;
  uint64_t state = seed * 2654435761u + 1;
  const auto next = [&state] {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
  };
  int idle = 0;
  while (!queue.all_done() && idle < 100'000) {
    const Rank rank = static_cast<Rank>(next() % ranks);
    for (const Job& job : GrantTo(queue, rank, credit)) {
      EXPECT_TRUE(seen.insert(job).second) << Describe(job) << " granted twice";
      EXPECT_EQ(plan.graph.RankOf(job), rank);
      held[rank].push_back(job);
    }
    EXPECT_LE(queue.outstanding(rank), credit);
    if (held[rank].empty()) {
      ++idle;
      continue;
    }
    idle = 0;
    // Completions may come in another order than the grants, and before those of their predecessors.
    const size_t i = next() % held[rank].size();
    const Job job = held[rank][i];
    held[rank].erase(held[rank].begin() + i);
    const bool last_forward = job.kind == JobKind::kForward && job.stage == plan.graph.schedule().stages - 1;
    ASSERT_EQ(queue.Complete(rank, Done(job, last_forward ? 1 + job.step : 0, 100 + job.step)),
              WorkQueue::Outcome::kDone);
    queue.TakeEndedSteps(steps);
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(plan.graph.jobs_per_step()) * (plan.steps - plan.first_step));
}

TEST(WorkQueue, AnyOrderOfCompletions_EndsEveryStepInOrder) {
  const struct {
    const char* family;
    std::map<std::string, std::string> parameters;
    int stages, microbatches;
  } cases[] = {{"gpipe", {}, 4, 8},
               {"1f1b", {}, 4, 8},
               {"ddp", {}, 3, 4},
               {"lpp", {{"groups", "2"}, {"ranks", "2"}}, 4, 4}};
  for (const auto& c : cases) {
    for (int credit : {1, 3, 100}) {
      SCOPED_TRACE(absl::StrCat(c.family, " with credit ", credit));
      const auto plan = Plan(c.family, c.stages, c.microbatches, 7, c.parameters);
      WorkQueue queue(plan);
      std::vector<WorkQueue::EndedStep> steps;
      RunToTheEnd(*plan, queue, credit, 1, &steps);
      ASSERT_TRUE(queue.all_done());
      ASSERT_EQ(steps.size(), 7u);
      for (int t = 0; t < 7; ++t) {
        EXPECT_EQ(steps[t].step, t);
        EXPECT_TRUE(steps[t].has_loss);
        EXPECT_EQ(steps[t].loss, 1 + t);
        EXPECT_EQ(steps[t].end_ns, 100 + t);
      }
      EXPECT_EQ(queue.counts().blocked + queue.counts().ready + queue.counts().claimed, 0);
      EXPECT_EQ(queue.counts().done, static_cast<int64_t>(plan->graph.jobs_per_step()) * 7);
    }
  }
}

// The sum of a floating-point series depends on its order: it is that of the micro-batches, whatever the
// order of completions.
TEST(WorkQueue, Loss_IsSummedInTheOrderOfMicrobatches) {
  const double losses[] = {1e16, 1, -1e16, 1};
  const auto plan = Plan("gpipe", 1, 4, 1);
  WorkQueue queue(plan);
  std::vector<Job> jobs = GrantTo(queue, 0, 100);
  std::reverse(jobs.begin(), jobs.end());
  for (const Job& job : jobs) {
    Completion c = Done(job);
    c.has_loss = job.kind == JobKind::kForward;
    if (c.has_loss) c.loss = losses[job.microbatch];
    EXPECT_EQ(queue.Complete(0, c), WorkQueue::Outcome::kDone);
  }
  std::vector<WorkQueue::EndedStep> steps;
  queue.TakeEndedSteps(&steps);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].loss, (((1e16 + 1) + -1e16) + 1) / 4);
}

TEST(WorkQueue, GradientNorm_IsThatOfTheJobThatTotalsIt) {
  RunSchedule schedule = WithoutTerms(*MakeSchedule("1f1b", {}, 2, 1));
  schedule.terms.takes_norm = true;
  auto plan = MakeRunPlan("run", "1f1b", schedule, 2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  WorkQueue queue(*plan);
  for (int step = 0; step < 2; ++step) {
    for (Rank rank : {0, 1}) {
      for (const Job& job : GrantTo(queue, rank, 4)) {
        Completion c = Done(job);
        if (job.kind == JobKind::kReduce) c.gradient_norm = 10 * step + 1 + job.stage;
        EXPECT_EQ(queue.Complete(rank, c), WorkQueue::Outcome::kDone);
      }
    }
  }
  std::vector<WorkQueue::EndedStep> steps;
  queue.TakeEndedSteps(&steps);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].gradient_norm, 1);
  EXPECT_EQ(steps[1].gradient_norm, 11);
}

TEST(WorkQueue, Counts_FollowTheStates) {
  WorkQueue queue(Plan("gpipe", 2, 2, 1));
  const std::vector<Job> first = GrantTo(queue, 0, 1);
  // 2 stages x (2 forwards, 2 backwards, 1 update): the two forwards of stage 0 are ready, one of them is
  // claimed.
  EXPECT_EQ(queue.counts().claimed, 1);
  EXPECT_EQ(queue.counts().ready, 1);
  EXPECT_EQ(queue.counts().blocked, 8);
  queue.Complete(0, Done(first[0]));
  EXPECT_EQ(queue.counts().ready, 2) << "stage 1 may start the micro-batch";
  EXPECT_EQ(queue.counts().blocked, 7);
  EXPECT_EQ(queue.counts().done, 1);
}

TEST(WorkQueue, Awaited_NamesWhatHoldsEverythingBack) {
  WorkQueue queue(Plan("gpipe", 2, 2, 1));
  GrantTo(queue, 0, 1);
  GrantTo(queue, 1, 1);
  const auto awaited = queue.AwaitedJobs(4);
  ASSERT_EQ(awaited.size(), 1u) << "rank 1 waits itself";
  EXPECT_EQ(awaited[0].rank, 0);
  EXPECT_EQ(awaited[0].job, Job::Compute(0, 0, 0, JobKind::kForward));
  EXPECT_TRUE(awaited[0].granted);
}

TEST(WorkQueue, Window_HoldsAStepBackUntilTheOldestEnds) {
  const auto plan = Plan("ddp", 1, 2, 1000);
  WorkQueue queue(plan);
  int granted = 0;
  // Rank 0 runs ahead as far as it may while rank 1 ends nothing.
  for (std::vector<Job> jobs = GrantTo(queue, 0, 4); !jobs.empty(); jobs = GrantTo(queue, 0, 4)) {
    for (const Job& job : jobs) {
      ++granted;
      queue.Complete(0, Done(job));
    }
  }
  EXPECT_LT(granted, 1000);
  EXPECT_FALSE(queue.CanGrant(0, 4));
  while (queue.steps_done() == 0) {
    for (const Job& job : GrantTo(queue, 1, 4)) queue.Complete(1, Done(job));
  }
  EXPECT_TRUE(queue.CanGrant(0, 4));
}

// A schedule whose placement changes from step to step: rank (b + t) mod 2.
TEST(WorkQueue, PeriodOfTwoSteps_GrantsEachStepToItsRanks) {
  Schedule s = *MakeSchedule("ddp", {}, 2, 2);
  s.period = 2;
  s.compute = [](const Job& j) { return static_cast<Rank>((j.microbatch + j.step) % 2); };
  s.weights = s.compute;
  auto plan = MakeRunPlan("run", "turning", WithoutTerms(s), 6);
  ASSERT_TRUE(plan.ok()) << plan.status();
  WorkQueue queue(*plan);
  std::vector<WorkQueue::EndedStep> steps;
  RunToTheEnd(**plan, queue, 3, 5, &steps);
  EXPECT_TRUE(queue.all_done());
  EXPECT_EQ(steps.size(), 6u);

  // The run begins with a step of the other kind.
  plan = MakeRunPlan("run", "turning", WithoutTerms(s), 8, /*first_step=*/3);
  WorkQueue later(*plan);
  steps.clear();
  RunToTheEnd(**plan, later, 3, 5, &steps);
  EXPECT_TRUE(later.all_done());
  ASSERT_EQ(steps.size(), 5u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(steps[i].step, 3 + i);
}

// Steps before the first count as done, also where jobs read weights of several steps before.
TEST(WorkQueue, FirstStep_IsLikeTheFirstOfAll) {
  for (const auto& [family, microbatches] : {std::pair("pipedream_2bw", 4), std::pair("pipedream", 1)}) {
    SCOPED_TRACE(family);
    const auto counts = [&, family = family, microbatches = microbatches](int first_step) {
      auto plan = MakeRunPlan("run", family, WithoutTerms(*MakeSchedule(family, {}, 4, microbatches)),
                              first_step + 9, first_step);
      EXPECT_TRUE(plan.ok()) << plan.status();
      WorkQueue queue(*plan);
      EXPECT_EQ(queue.steps_done(), first_step);
      std::vector<int64_t> counts;
      // Each rank in turn, one job at a time: what becomes ready shows in the counts.
      for (int i = 0; i < 60; ++i) {
        for (const Job& job : GrantTo(queue, i % 4, 1)) {
          EXPECT_GE(job.step, first_step);
          EXPECT_EQ(queue.Complete(i % 4, Done(job)), WorkQueue::Outcome::kDone);
        }
        counts.insert(counts.end(), {queue.counts().ready, queue.counts().blocked, queue.counts().done});
      }
      const Job before = Job::Compute(first_step - 1, 0, 0, JobKind::kForward);
      EXPECT_EQ(queue.Complete(0, Done(before)), WorkQueue::Outcome::kViolation);
      return counts;
    };
    const std::vector<int64_t> first = counts(0);
    for (const int first_step : {1, 2, 7}) EXPECT_EQ(counts(first_step), first) << "from " << first_step;
  }
}

// A run that goes on from a checkpoint clips as before, and its stages read the same ones.
TEST(RunPlan, FromALaterStep_KeepsTheTermsOfTheRun) {
  RunSchedule schedule = WithoutTerms(*MakeSchedule("ddp", {}, 3, 2));
  schedule.terms.inputs = {{}, {}, {0, 1}};
  schedule.terms.takes_norm = true;
  schedule.terms.memory = ActivationMemory{{40, 40}, {10, 10, 10}};
  const auto plan = MakeRunPlan("run", "ddp", schedule, 8, 0, ReductionMode::kFast);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_NE((*plan)->fast, nullptr) << (*plan)->unsound;
  const auto later = PlanFrom(**plan, 5);
  for (const auto& [graph, before] :
       {std::pair(&later->graph, &(*plan)->graph), std::pair(&later->fast->graph, &(*plan)->fast->graph)}) {
    EXPECT_EQ(graph->first_step(), 5);
    EXPECT_EQ(graph->inputs(2), (std::vector<int>{0, 1}));
    EXPECT_TRUE(graph->protocol(0).holder(0).gives_norm);
    EXPECT_EQ(graph->terms().memory->budget, schedule.terms.memory->budget);
    EXPECT_EQ(graph->joint_order().any(), before->joint_order().any());
  }
  EXPECT_TRUE(later->fast->graph.joint_order().any());
}

TEST(RunPlan, NoStepLeft_IsRefused) {
  const Schedule s = *MakeSchedule("gpipe", {}, 2, 2);
  EXPECT_EQ(MakeRunPlan("run", "gpipe", WithoutTerms(s), 5, 5).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeRunPlan("run", "gpipe", WithoutTerms(s), 5, -1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weft::work_queue_test
