// Tests the failures and deadlines of a run: the machines that Run steps, without sessions or jobs.
#include "coordinator/core/run_failures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/run_deadlines.h"

namespace weft::run_failures_test {
namespace {

using ::testing::HasSubstr;

class RunFailuresTest : public ::testing::Test {
 protected:
  static RunMember MemberOf(SessionId session) {
    return {session, static_cast<int32_t>(session) - 1, absl::StrCat("process ", session - 1)};
  }
  static Failed LossIsNan(int32_t step) {
    Failed m{1, "the loss is nan"};
    m.non_finite_step = step;
    return m;
  }
  static Failed Damaged(int32_t step) {
    Failed m{1, "it cannot be read"};
    m.damaged_checkpoint = step;
    return m;
  }

  CoreOptions options;
  RunInfo info;
  StepEffects out;
  RunAttempts attempts{/*allowed=*/1, /*keep=*/2};
  RunCopies copies;
  RunBeginnings beginnings{attempts, copies, &info};
  RunFailures failures{options, attempts, beginnings, &info};
};

TEST_F(RunFailuresTest, Report_WaitsForItsCauseAndTheFirstCounts) {
  out.now = 5;
  EXPECT_FALSE(failures.Report(out, MemberOf(1), {1, "a device broke"}).has_value());
  EXPECT_FALSE(failures.Report(out, MemberOf(2), {1, "a link broke"}).has_value());
  EXPECT_TRUE(failures.any());
  EXPECT_EQ(failures.first().due, 5 + options.blame_ns);
  const RunEnding ending = failures.Lose(MemberOf(2), "killed", "", {});
  EXPECT_EQ(ending.state, RunState::kWaiting);
  EXPECT_EQ(ending.reason, "process 1 was lost: killed (then process 0 failed: a device broke)");
  failures.Clear();
  EXPECT_FALSE(failures.any());
}

TEST_F(RunFailuresTest, StepWithABadNumber_IsMadeOnceMoreAndNoneBeforeIt) {
  EXPECT_EQ(failures.Report(out, MemberOf(1), LossIsNan(3))->state, RunState::kWaiting);
  EXPECT_EQ(info.non_finite_step, 3);
  EXPECT_FALSE(failures.Report(out, MemberOf(1), LossIsNan(2)).has_value());
  failures.Clear();
  EXPECT_FALSE(failures.Report(out, MemberOf(1), LossIsNan(3)).has_value());
  EXPECT_THAT(failures.first().what, HasSubstr("the step was made twice"));
  EXPECT_EQ(info.non_finite_steps, 3);
}

TEST_F(RunFailuresTest, DamagedCheckpoint_IsLeftOutIfTheAttemptBeganWithIt) {
  attempts.Checkpointed(20);
  attempts.Checkpointed(40);
  beginnings.Begin({40, std::nullopt});
  const auto ending = failures.Report(out, MemberOf(1), Damaged(40));
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->state, RunState::kWaiting);
  EXPECT_EQ(info.checkpoint_step, 20);
  EXPECT_EQ(attempts.losses().losses(), 0) << "no process was lost";
  EXPECT_FALSE(failures.Report(out, MemberOf(1), Damaged(20)).has_value()) << "it began with another";
}

TEST_F(RunFailuresTest, DamagedCopies_AreLeftOutAndTheCheckpointStays) {
  attempts.Checkpointed(40);
  beginnings.Begin({44, RunCopies::Beginning{44, 1, ReductionMode::kOrdered, {}}});
  EXPECT_EQ(failures.Report(out, MemberOf(1), Damaged(44))->state, RunState::kWaiting);
  EXPECT_EQ(attempts.checkpoint_step(), 40);
  EXPECT_EQ(attempts.restarts(), 1);
}

TEST(RunDeadlines, TimeForWorkers_BeginsOnceAndEndsWithTheWaitForATurn) {
  CoreOptions options;
  RunDeadlines deadlines(options);
  EXPECT_EQ(deadlines.next_due(), kNever);
  deadlines.AwaitWorkers(10);
  deadlines.AwaitWorkers(20);
  EXPECT_EQ(deadlines.next_due(), 10 + options.waiting_ns);
  EXPECT_FALSE(deadlines.Pass(9 + options.waiting_ns));
  EXPECT_TRUE(deadlines.Pass(10 + options.waiting_ns));
  deadlines.Clear();
  EXPECT_FALSE(deadlines.Pass(10 + options.waiting_ns));
}

TEST(RunDeadlines, Gathering_EndsByItselfAndIsNoFailure) {
  CoreOptions options;
  RunDeadlines deadlines(options);
  deadlines.BeginGathering(0);
  EXPECT_TRUE(deadlines.gathering());
  EXPECT_EQ(deadlines.next_due(), options.gathering_ns);
  EXPECT_FALSE(deadlines.Pass(options.gathering_ns));
  EXPECT_FALSE(deadlines.gathering());
}

TEST(RunDeadlines, OfARunThatPrepares_NamesTheProcessesThatAreLate) {
  CoreOptions options;
  RunDeadlines deadlines(options);
  RunMembers members;
  members.Add({1, 0, "process 0 (a)", true, /*prepared=*/true});
  members.Add({2, 1, "process 1 (b)"});
  RunInfo info;
  info.state = RunState::kPreparing;
  EXPECT_EQ(deadlines.Describe(0, info, members, nullptr), "not prepared after 300 s: process 1 (b)");
}

}  // namespace
}  // namespace weft::run_failures_test
