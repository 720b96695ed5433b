#include "coordinator/replanning/replan_watch.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/unit/ranks_of_speeds.h"

namespace weft {
namespace {

// Plays a run whose ranks have these speeds, with immediate answers. Returns the step behind which it wants
// to move; -1 if it does not within so many steps.
int MovesBehind(ReplanWatch* watch, const RunSpec& run, const std::vector<double>& speeds, int from,
                int steps, double job_seconds = 1) {
  const MeasuredJobs jobs = JobsAt(run, speeds);
  for (int step = from; step < from + steps; ++step) {
    for (Rank r = 0; r < jobs.ranks(); ++r) {
      for (int s = 0; s < jobs.stages(); ++s) {
        for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
          if (jobs.Of(r, kind, s).count > 0)
            watch->JobEnded(r, Job::Compute(step, s, 0, kind), job_seconds * jobs.Of(r, kind, s).mean());
        }
      }
    }
    if (const auto question = watch->StepEnded(step)) {
      if (watch->Take(AnswerOf(*question))) return step;
    }
  }
  return -1;
}

class Watching : public ::testing::Test {
 protected:
  Watching() { watch_.Began(0); }
  static std::shared_ptr<const RunSpec> Run() {
    RunSpec run = RunUnder("ddp,ranks=2", 12);
    run.replan = {0.05, 4};
    return std::make_shared<const RunSpec>(std::move(run));
  }
  // Moves the run in step 10 to what suits a slow second rank, where it stays for so many steps. Returns the
  // run as it goes on.
  RunSpec Move(int stays) {
    RunSpec moved = *run_;
    moved.schedule = BetterAt(*run_, {1, 0.5}).schedule;
    moved.replan.steps = stays;
    watch_.Replanned(std::make_shared<const RunSpec>(moved), 10);
    watch_.Began(1);
    return moved;
  }

  const std::shared_ptr<const RunSpec> run_ = Run();
  ReplanWatch watch_{run_, 2};
};

TEST_F(Watching, RankThatBecomesSlow_MovesTheRunBehindThreeSteps) {
  EXPECT_EQ(MovesBehind(&watch_, *run_, {1, 1}, 0, 20), -1);
  EXPECT_EQ(MovesBehind(&watch_, *run_, {1, 0.5}, 20, 20), 22);
}

TEST_F(Watching, Hiccup_DoesNotMoveTheRun) {
  EXPECT_EQ(MovesBehind(&watch_, *run_, {1, 1}, 0, 8), -1);
  EXPECT_EQ(MovesBehind(&watch_, *run_, {1, 0.5}, 8, 2), -1);  // two windows
  EXPECT_EQ(MovesBehind(&watch_, *run_, {1, 1}, 10, 20), -1);
}

TEST_F(Watching, SmallGain_DoesNotMoveTheRun) {
  EXPECT_EQ(MovesBehind(&watch_, *run_, {1, 0.97}, 0, 40), -1);
}

TEST_F(Watching, MovedRun_StaysForSoManySteps) {
  ASSERT_GE(MovesBehind(&watch_, *run_, {1, 0.5}, 0, 20), 0);
  const RunSpec moved = Move(/*stays=*/12);
  // The rank is fast again: not before step 22, and then back.
  EXPECT_EQ(MovesBehind(&watch_, moved, {1, 1}, 10, 11), -1);
  EXPECT_GE(MovesBehind(&watch_, moved, {1, 1}, 21, 20), 22);
}

// To and fro it does not go: at the speeds for which it has moved there is nothing more to gain.
TEST_F(Watching, MovedRunAtTheSameSpeeds_NeverMovesAgain) {
  ASSERT_GE(MovesBehind(&watch_, *run_, {1, 0.5}, 0, 20), 0);
  const RunSpec moved = Move(/*stays=*/1);
  EXPECT_EQ(MovesBehind(&watch_, moved, {1, 0.5}, 10, 100), -1);
}

// A quota lets a process run for a part of a tenth of a second: within shorter windows it shows in none or in
// all jobs.
TEST_F(Watching, ShortSteps_AreMeasuredTogether) {
  // A job of each stage and kind takes 0.5 ms and 1 ms on the fast rank: 18 ms a step on the slow one.
  const int step = MovesBehind(&watch_, *run_, {1, 0.5}, 0, 60, 0.5e-3);
  EXPECT_EQ(step, 1 + 3 * 14);
}

// An answer to a question of the attempt before is none.
TEST_F(Watching, AttemptThatIsOver_AnswersNothing) {
  std::optional<WindowQuestion> question;
  for (int step = 0; !question.has_value() && step < 10; ++step) {
    for (const Rank r : {0, 1}) watch_.JobEnded(r, Job::Compute(step, 0, 0, JobKind::kForward), 1 + r);
    question = watch_.StepEnded(step);
  }
  ASSERT_TRUE(question.has_value());
  watch_.Began(1);
  EXPECT_FALSE(watch_.Take(AnswerOf(*question)));
  EXPECT_GE(MovesBehind(&watch_, *run_, {1, 0.5}, 10, 20), 14);
}

}  // namespace
}  // namespace weft
