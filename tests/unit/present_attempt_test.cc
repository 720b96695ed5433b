// The present attempt of a run, its progress, its way to other processes and its end: the machines that Run
// steps, without sessions.
#include "coordinator/core/present_attempt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/run_finish.h"
#include "coordinator/core/run_progress.h"
#include "coordinator/core/run_relocation.h"
#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"

namespace weft::present_attempt_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class PresentAttemptTest : public ::testing::Test {
 protected:
  PresentAttemptTest() {
    info.id = 7;
    info.ranks = 2;
    for (const SessionId session : {1, 2}) {
      Worker& worker = workers.emplace_back();
      worker.session = session;
      worker.process = static_cast<int32_t>(session) - 1;
      worker.hello.worker = absl::StrCat("w", session);
    }
  }
  static SubmitRun Submission() {
    return {0,    "", *MakeRunPlan("run", "gpipe", WithoutTerms(*MakeSchedule("gpipe", {}, 2, 1)), 1),
            "{}", 0,  ""};
  }
  void Make() {
    const std::vector<Worker*> both = {&workers[0], &workers[1]};
    present.Make(out, both, PeersOf(both), relocation.placement(), &numbers);
  }
  // Returns the sessions to which a message of the type was sent.
  template <class Message>
  std::vector<SessionId> SentTo() const {
    std::vector<SessionId> sessions;
    for (const auto& sent : out.effects.messages) {
      if (std::holds_alternative<Message>(sent.message)) sessions.push_back(sent.session);
    }
    return sessions;
  }

  CoreOptions options;
  RunInfo info;
  StepEffects out;
  SubmitRun submitted = Submission();
  RunSubmission submission{submitted};
  RunAttempts attempts{/*allowed=*/1, /*keep=*/2};
  PresentAttempt present{submission, attempts, &info};
  RunProgress progress{attempts, present, &info};
  RunRelocation relocation{submission, present, attempts, progress, info};
  RunDeadlines deadlines{options};
  RunFailures failures{options, attempts, present.beginnings(), &info};
  RunFinish finish{present, progress, failures, deadlines, &info};
  FencingNumbers numbers;
  std::vector<Worker> workers;
};

TEST_F(PresentAttemptTest, Make_RecordsTheAttemptWithItsAssignments) {
  Make();
  EXPECT_THAT(SentTo<Assign>(), ElementsAre(1, 2));
  EXPECT_EQ(out.effects.records.epoch, present.members().epoch());
  ASSERT_EQ(out.effects.records.attempts.size(), 1u);
  const AttemptRecord& record = out.effects.records.attempts.front();
  EXPECT_EQ(record.run, 7u);
  EXPECT_EQ(record.epoch, present.members().epoch());
  EXPECT_EQ(record.members.size(), 2u);
  EXPECT_EQ(record.members[1].worker, "w2");
  EXPECT_THAT(info.member_of_rank, ElementsAre(0, 1));
  RunFigures figures;
  present.WriteTo(&figures);
  EXPECT_EQ(figures.epoch, record.epoch);
}

TEST_F(PresentAttemptTest, Drop_LeavesNothingOfTheAttemptAndTheNextHasAnEpochOfItsOwn) {
  Make();
  const uint64_t first = present.members().epoch();
  EXPECT_FALSE(present.has_begun());
  present.Drop();
  EXPECT_TRUE(present.has_begun());
  EXPECT_EQ(present.attempt(), nullptr);
  EXPECT_EQ(present.members().size(), 0);
  EXPECT_THAT(info.members, IsEmpty());
  EXPECT_THAT(info.member_of_rank, IsEmpty());
  RunFigures figures;
  present.WriteTo(&figures);
  EXPECT_EQ(figures.epoch, 0u) << "no attempt is under way";
  Make();
  EXPECT_GT(present.members().epoch(), first);
}

TEST_F(PresentAttemptTest, CopiesWithoutAnAttempt_AreFenced) {
  EXPECT_FALSE(present.Take(out, 1, CopiesHeld{}));
  EXPECT_EQ(out.counts.fenced, 1);
}

TEST_F(PresentAttemptTest, Announce_TellsAndStoresTheSame) {
  Make();
  info.loss = 2.5;
  progress.JobsDone(9, {Completion{.start_ns = 40}, Completion{.start_ns = 30}});
  progress.JobsDone(9, {Completion{.start_ns = 50}});
  progress.Announce(out);
  ASSERT_EQ(out.effects.runs.size(), 1u);
  ASSERT_EQ(out.effects.records.figures.size(), 1u);
  const RunFigures& stored = out.effects.records.figures.front();
  EXPECT_EQ(out.effects.runs.front().loss, 2.5);
  EXPECT_EQ(stored.info.loss, 2.5);
  EXPECT_EQ(stored.first_start_ns, 30);
  EXPECT_EQ(stored.epoch, present.members().epoch());
}

TEST_F(PresentAttemptTest, Recovery_IsCountedOnceWithTheFirstNewStep) {
  info.steps_done = 3;
  progress.Lost(10);
  progress.Assigned(12);
  out.now = 15;
  progress.Running(out);
  progress.JobsDone(19, {Completion{}});
  out.now = 24;
  progress.StepsDone(out, 3);
  EXPECT_FALSE(info.recovery_ns.has_value()) << "the step had ended before";
  progress.StepsDone(out, 4);
  ASSERT_TRUE(info.recovery_ns.has_value());
  EXPECT_THAT(*info.recovery_ns, ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(info.steps_done, 4);
  out.now = 30;
  progress.StepsDone(out, 5);
  EXPECT_THAT(out.counts.recovery_ns, ElementsAre(2, 3, 4, 5));
}

TEST_F(PresentAttemptTest, Reports_AreHandedOnAndThoseOfOtherRanksAreNotKept) {
  Make();
  std::vector<RankReport> reports(2);
  reports[0].rank = 0;
  reports[1].rank = 1;
  progress.Take(out, /*from=*/1, reports);
  ASSERT_EQ(out.effects.reports.size(), 1u);
  const std::vector<RankReport> kept = progress.InfoWithReports().reports;
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept.front().rank, 0);
}

TEST_F(PresentAttemptTest, RelocationWithoutAStep_EndsTheAttemptAtOnceAndIsNoLoss) {
  Make();
  info.state = RunState::kRunning;
  const std::optional<RunEnding> ending = relocation.Relocate(out, "process 0 leaves");
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->state, RunState::kWaiting);
  EXPECT_EQ(ending->reason, "process 0 leaves");
  EXPECT_EQ(attempts.restarts(), 1);
  EXPECT_EQ(attempts.losses().losses(), 0);
}

TEST_F(PresentAttemptTest, Move_OrdersRanksForTheNextAttemptUnlessTheyAreThere) {
  Make();
  info.state = RunState::kRunning;
  EXPECT_TRUE(relocation.Check({1}, /*blaming=*/false).ok());
  EXPECT_FALSE(relocation.Check({2}, /*blaming=*/false).ok());
  EXPECT_FALSE(relocation.Check({1}, /*blaming=*/true).ok());
  auto moved = relocation.Move(out, {1}, /*to=*/2, "moved");
  ASSERT_TRUE(moved.ok());
  EXPECT_FALSE(moved->has_value()) << "it is there";
  EXPECT_FALSE(relocation.placement().ordered());
  moved = relocation.Move(out, {1}, /*to=*/1, "moved");
  ASSERT_TRUE(moved.ok());
  EXPECT_TRUE(moved->has_value());
  EXPECT_THAT(relocation.placement().processes(), ElementsAre(1));
  relocation.Forget();
  EXPECT_FALSE(relocation.placement().ordered());
}

TEST_F(PresentAttemptTest, Finish_EndsWhenEveryProcessHasToldItsFiguresOrIsLost) {
  Make();
  info.state = RunState::kRunning;
  EXPECT_FALSE(finish.HasResults());
  finish.GoOn(out);
  EXPECT_EQ(info.state, RunState::kFinishing);
  EXPECT_TRUE(finish.HasResults());
  EXPECT_THAT(SentTo<Finish>(), ElementsAre(1, 2));
  EXPECT_EQ(deadlines.next_due(), options.finishing_ns);
  Finished last;
  EXPECT_FALSE(finish.Take(out, 1, last).has_value());
  EXPECT_TRUE(finish.Without(out, *present.members().Find(2), "was lost: killed").has_value());
}

}  // namespace
}  // namespace weft::present_attempt_test
