#include "coordinator/core/run_attempts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/recovery_clock.h"
#include "tests/unit/second.h"

namespace weft::run_attempts_test {
namespace {

RankReport ReportOf(Rank rank, double busy, double idle, int64_t sent, int64_t peak) {
  RankReport r;
  r.rank = rank;
  r.busy_seconds["forward"] = busy;
  r.idle_seconds["dependency"] = idle;
  r.wall_seconds = busy + idle;
  r.bytes_sent["activation"] = sent;
  r.peak_bytes["weights"] = peak;
  r.live_bytes["weights"] = peak;
  r.peak_activations = static_cast<int32_t>(peak);
  return r;
}

TEST(RunAttempts, LossesWithoutANewStep_AreCountedUpToTheLimit) {
  RunAttempts attempts(2, 2);
  EXPECT_TRUE(attempts.MayRestart(5));
  EXPECT_TRUE(attempts.MayRestart(5));
  EXPECT_FALSE(attempts.MayRestart(5));
  EXPECT_EQ(attempts.restarts(), 2);
}

TEST(RunAttempts, NewStepBetweenLosses_CountsFromOneAgain) {
  RunAttempts attempts(1, 2);
  for (int steps = 0; steps < 20; ++steps) EXPECT_TRUE(attempts.MayRestart(steps)) << steps;
  EXPECT_EQ(attempts.restarts(), 20);
  EXPECT_FALSE(attempts.MayRestart(19));
}

TEST(RunAttempts, NoneAllowed_FirstLossEndsTheRun) {
  RunAttempts attempts(0, 2);
  EXPECT_FALSE(attempts.MayRestart(7));
  EXPECT_EQ(attempts.restarts(), 0);
}

TEST(RunAttempts, CheckpointOfAnEarlierStep_DoesNotReplaceTheNewest) {
  RunAttempts attempts(3, 2);
  EXPECT_EQ(attempts.checkpoint_step(), -1);
  attempts.Checkpointed(40);
  attempts.Checkpointed(20);
  EXPECT_EQ(attempts.checkpoint_step(), 40);
}

TEST(RunAttempts, DamagedCheckpoint_IsForgottenForTheOneBefore) {
  RunAttempts attempts(3, /*keep=*/2);
  for (const int32_t step : {20, 40, 60}) attempts.Checkpointed(step);
  EXPECT_FALSE(attempts.FallBack(40)) << "no attempt begins there";
  EXPECT_TRUE(attempts.FallBack(60));
  EXPECT_EQ(attempts.checkpoint_step(), 40);
  EXPECT_FALSE(attempts.FallBack(60)) << "the same report again";
  EXPECT_TRUE(attempts.FallBack(40));
  EXPECT_EQ(attempts.checkpoint_step(), -1) << "20 was removed when 60 was complete";
  EXPECT_FALSE(attempts.FallBack(20));
  EXPECT_EQ(attempts.restarts(), 2);
  EXPECT_EQ(attempts.losses().losses(), 0) << "no process was lost";
  attempts.Checkpointed(40);
  EXPECT_EQ(attempts.checkpoint_step(), 40) << "made again";
}

TEST(RunAttempts, Restored_KnowsEachCheckpointOrTheNewestOfAnEarlierRelease) {
  RunInfo info;
  info.checkpoint_step = 40;
  RunFigures figures;
  RunAttempts of_earlier(3, 2);
  of_earlier.Restore(info, figures);
  EXPECT_THAT(of_earlier.Checkpoints(), ::testing::ElementsAre(40));
  figures.checkpoints = {20, 40};
  RunAttempts attempts(3, 2);
  attempts.Restore(info, figures);
  EXPECT_TRUE(attempts.FallBack(40));
  EXPECT_EQ(attempts.checkpoint_step(), 20);
  RunAttempts keeps_all(3, 1'000'000);
  for (int32_t step = 1; step <= 100; ++step) keeps_all.Checkpointed(step);
  EXPECT_EQ(keeps_all.Checkpoints().size(), 16u);
  EXPECT_EQ(keeps_all.Checkpoints().back(), 100);
}

TEST(RunAttempts, FiguresOfFormerAttempts_AreAddedAndTheTimeBetweenIsRecovery) {
  RunAttempts attempts(3, 2);
  attempts.Assigned(10 * kSecond, 1);
  attempts.MayRestart(0);
  attempts.Keep(ReportOf(0, 3, 1, 100, 8));
  attempts.End();
  attempts.Assigned(16 * kSecond, 1);  // 6 s behind the first; 4 s were reported

  RankReport second = ReportOf(0, 1, 1, 10, 5);
  attempts.AddFormer(&second);
  EXPECT_EQ(second.busy_seconds["forward"], 4);
  EXPECT_EQ(second.idle_seconds["dependency"], 2);
  EXPECT_EQ(second.idle_seconds["recovery"], 2);
  EXPECT_EQ(second.wall_seconds, 8) << "busy and idle, of all causes";
  EXPECT_EQ(second.bytes_sent["activation"], 110);
  EXPECT_EQ(second.peak_bytes["weights"], 8);
  EXPECT_EQ(second.live_bytes["weights"], 5) << "what lives is the present attempt's";
  EXPECT_EQ(second.peak_activations, 8);

  attempts.MayRestart(1);
  attempts.Keep(second);
  attempts.End();
  attempts.Assigned(19 * kSecond, 1);
  RankReport third = ReportOf(0, 1, 0, 1, 1);
  attempts.AddFormer(&third);
  EXPECT_EQ(third.busy_seconds["forward"], 5);
  EXPECT_EQ(third.idle_seconds["recovery"], 3);
  EXPECT_EQ(third.wall_seconds, 10);
}

TEST(RunAttempts, AttemptWithoutAReport_IsRecoveryAsAWhole) {
  RunAttempts attempts(3, 2);
  attempts.Assigned(0, 2);
  attempts.MayRestart(0);
  attempts.End();
  attempts.Assigned(5 * kSecond, 2);
  RankReport report = ReportOf(1, 2, 1, 3, 4);
  attempts.AddFormer(&report);
  EXPECT_EQ(report.idle_seconds["recovery"], 5);
  EXPECT_EQ(report.wall_seconds, 8);
}

TEST(RecoveryClock, Phases_AddUpToTheTimeFromTheLossToTheNewStep) {
  RecoveryClock clock;
  clock.Assigned(1);
  clock.Running(2);
  clock.JobDone(3);
  EXPECT_EQ(clock.NewStep(4), std::nullopt) << "nothing was lost";
  clock.Lost(100);
  clock.Assigned(110);
  clock.Running(150);
  clock.JobDone(155);
  clock.JobDone(159);
  EXPECT_EQ(clock.NewStep(180), (RecoveryTimes{10, 40, 5, 25}));
  EXPECT_EQ(clock.NewStep(190), std::nullopt) << "it is over";
}

TEST(RecoveryClock, LossWhileItRecovers_CountsFromTheFirstLoss) {
  RecoveryClock clock;
  clock.Lost(100);
  clock.Assigned(110);
  clock.Running(120);
  clock.JobDone(125);
  clock.Lost(140);
  clock.Assigned(150);
  clock.Running(155);
  clock.JobDone(160);
  EXPECT_EQ(clock.NewStep(170), (RecoveryTimes{35, 15, 10, 10}));
}

}  // namespace
}  // namespace weft::run_attempts_test
