#include "worker/core/pending_jobs.h"

#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"

namespace weft::pending_jobs_test {
namespace {

// A process that has the first ranks of a run, as many as it has leases.
class Process {
 public:
  Process(const std::string& family, int stages, int microbatches, int here)
      : Process(*MakeSchedule(family, {}, stages, microbatches), here) {}
  Process(const Schedule& schedule, int here)
      : run_(AssignOf(schedule.ranks, here), {WithoutTerms(schedule), /*steps=*/2}) {}

  bool Claim(Rank rank, const Job& job) { return pending.Claim(ranks.Of(rank), job); }
  void Arrive(const Job& job, int microbatch = -1) { pending.InputArrived(run_.IdOf(job), microbatch); }
  JobId IdOf(const Job& job) const { return run_.IdOf(job); }
  // Takes the rank's next ready job, and returns the start of it.
  std::optional<StartEffect> Take(Rank rank) {
    const std::optional<JobId> id = ranks.Of(rank).ready.Take();
    if (!id.has_value()) return std::nullopt;
    StartEffect start{rank, pending.JobOf(*id), {}, {}};
    pending.AddInputs(*id, &start);
    return start;
  }
  std::vector<Rank> TakeTouched() {
    std::vector<Rank> touched;
    ranks.ForTouched([&](const LocalRank& rank) { touched.push_back(rank.rank); });
    ranks.UpdateIdle(0, [](const LocalRank& rank) { return rank.clock.cause(); });
    return touched;
  }

 private:
  static Assign AssignOf(int of_run, int here) {
    Assign assign;
    assign.run = 7;
    assign.epoch = 3;
    for (int r = 0; r < of_run; ++r) assign.process_of_rank.push_back(r < here ? 0 : 1);
    for (int r = 0; r < here; ++r) assign.leases.push_back({r, {3, static_cast<uint64_t>(r + 1)}});
    return assign;
  }

  const LocalRun run_;
  const AdmissionOrder admission_{run_.graph()};

 public:
  LocalRanks ranks{0, run_, admission_, FindComputedStages(run_, run_.tables()->jobs)};
  PendingJobs pending{run_, admission_, &ranks};
};

const Job kForward = Job::Compute(0, 0, 0, JobKind::kForward);
const Job kNext = Job::Compute(0, 1, 0, JobKind::kForward);

TEST(PendingJobs, Grant_CountsOnceAndOnlyOnTheRankOfTheJob) {
  Process process("gpipe", 2, 2, /*here=*/2);
  EXPECT_TRUE(process.Claim(0, kForward));
  EXPECT_FALSE(process.Claim(0, kForward)) << "claimed before";
  EXPECT_FALSE(process.Claim(0, kNext)) << "it is the other rank's";
  EXPECT_FALSE(process.Claim(0, Job::Compute(2, 0, 0, JobKind::kForward))) << "behind the run";
  EXPECT_EQ(process.Take(0)->job, kForward);
  EXPECT_FALSE(process.Take(0).has_value());
}

TEST(PendingJobs, JobWithAnInput_IsReadyWhenBothGrantAndInputAreThere) {
  for (const bool grant_first : {true, false}) {
    Process process("gpipe", 2, 2, /*here=*/2);
    if (grant_first) process.Claim(1, kNext);
    EXPECT_FALSE(process.Take(1).has_value());
    EXPECT_TRUE(process.pending.IsWaiting(process.IdOf(kNext)));
    process.TakeTouched();
    process.Arrive(kNext);
    EXPECT_EQ(process.TakeTouched(), std::vector<Rank>{1}) << "no other rank has to be looked at";
    if (!grant_first) process.Claim(1, kNext);
    const std::optional<StartEffect> start = process.Take(1);
    ASSERT_TRUE(start.has_value());
    EXPECT_EQ(start->job, kNext);
    EXPECT_TRUE(start->last());
    EXPECT_EQ(start->inputs.size(), 1u);
    EXPECT_TRUE(process.pending.IsQueued(process.IdOf(kNext)));
  }
}

// Gradients are summed as they arrive, and in the order of micro-batches.
TEST(PendingJobs, SumOfGradients_StartsInRounds) {
  Process process("ddp", /*stages=*/1, /*microbatches=*/4, /*here=*/4);
  const Job reduce = Job::Reduce(0, 0, 0);
  process.Claim(0, reduce);
  process.Arrive(reduce, 2);
  EXPECT_FALSE(process.Take(0).has_value()) << "the first is missing";
  process.Arrive(reduce, 0);
  std::optional<StartEffect> start = process.Take(0);
  ASSERT_TRUE(start.has_value());
  EXPECT_EQ(start->gradients.size(), 1u);
  EXPECT_FALSE(start->last());
  process.Arrive(reduce, 1);
  EXPECT_FALSE(process.Take(0).has_value()) << "it is in the round before";
  process.pending.NextRound(process.IdOf(reduce));
  start = process.Take(0);
  ASSERT_TRUE(start.has_value());
  EXPECT_EQ(start->gradients.size(), 2u) << "with the one that came early";
  process.Arrive(reduce, 3);
  process.pending.NextRound(process.IdOf(reduce));
  start = process.Take(0);
  ASSERT_TRUE(start.has_value());
  EXPECT_TRUE(start->last());
}

TEST(PendingJobs, StepWhoseJobsHaveEnded_LeavesAndItsGrantsChangeNothing) {
  Process process("gpipe", 1, 1, /*here=*/1);
  process.Claim(0, kForward);
  const Job backward = Job::Compute(0, 0, 0, JobKind::kBackward), update = Job::Update(0, 0, 0);
  for (const Job& job : {kForward, backward, update}) {
    EXPECT_FALSE(process.pending.FirstHasEnded());
    process.pending.NoteDone(process.ranks.Of(0), process.IdOf(job));
    process.pending.JobEnded(0);
  }
  ASSERT_TRUE(process.pending.FirstHasEnded());
  process.pending.LeaveFirst();
  EXPECT_EQ(process.pending.first_step(), 1);
  EXPECT_FALSE(process.Claim(0, backward));
}

TEST(PendingJobsDeathTest, InputOfAStepThatHasLeft_IsAFault) {
  Process process("gpipe", 1, 1, /*here=*/1);
  for (const Job& job : {kForward, Job::Compute(0, 0, 0, JobKind::kBackward), Job::Update(0, 0, 0)}) {
    process.pending.NoteDone(process.ranks.Of(0), process.IdOf(job));
    process.pending.JobEnded(0);
  }
  process.pending.LeaveFirst();
  EXPECT_DEATH(process.Arrive(kForward), "a step is not touched after it ended");
}

}  // namespace
}  // namespace weft::pending_jobs_test
