// The sessions of workers alone: what each owes in which time, without a coordinator around them.
#include "coordinator/core/worker_sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "schedules/families/families.h"
#include "tests/unit/second.h"
#include "tests/unit/without_terms.h"

namespace weft::worker_sessions_test {
namespace {

using ::testing::HasSubstr;

class Sessions : public ::testing::Test {
 protected:
  Worker& Join(SessionId session, const std::string& name, int32_t process = -1) {
    sessions.Open(out.now, session);
    Worker& worker = At(session);
    Hello hello{name, "host", static_cast<int64_t>(session), process, "address"};
    EXPECT_TRUE(sessions.Greet(out, worker, hello).ok());
    return worker;
  }
  Worker& At(SessionId session) { return *sessions.workers().Find(session); }
  // A run that prepares on the worker; its first message makes it run.
  weft::Run& Prepare(Worker& worker) {
    SubmitRun submission{
        0, "", *MakeRunPlan("run", "gpipe", WithoutTerms(*MakeSchedule("gpipe", {}, 1, 1)), 1), "{}", 0, ""};
    uint64_t id = 0;
    EXPECT_TRUE(runs.Submit(out, submission, &id).ok());
    weft::Run& run = *runs.Find(id);
    run.Start(out, {&worker}, &numbers);
    worker.run = id;
    return run;
  }

  CoreOptions options;
  RunTable runs{options};
  WorkerSessions sessions{options, &runs};
  FencingNumbers numbers;
  StepEffects out = [] {
    StepEffects first;
    first.now = kSecond;
    return first;
  }();
};

TEST_F(Sessions, NoHelloInTime_EndsTheSessionWithoutALoss) {
  sessions.Open(out.now, 1);
  EXPECT_EQ(sessions.next_due(), out.now + options.hello_ns);
  out.now = sessions.next_due();
  EXPECT_EQ(sessions.Overdue(out, At(1)), std::nullopt);
  EXPECT_TRUE(sessions.Ids().empty());
  ASSERT_EQ(out.effects.closed.size(), 1u);
  EXPECT_EQ(out.effects.closed[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(out.counts.workers_lost, 0u);
}

TEST_F(Sessions, SecondHello_AndNameInUse_AreRefusedABrokenOneIsReplaced) {
  Worker& first = Join(1, "a");
  EXPECT_EQ(sessions.Check(first, first.hello).status().code(), absl::StatusCode::kFailedPrecondition);
  sessions.Open(out.now, 2);
  const Hello again{"a", "host", 9, -1, "address"};
  EXPECT_EQ(sessions.Check(At(2), again).status().code(), absl::StatusCode::kAlreadyExists);
  sessions.Break(out, 1, "reset");
  const auto replaced = sessions.Check(At(2), again);
  ASSERT_TRUE(replaced.ok());
  EXPECT_EQ(*replaced, &first);
}

TEST_F(Sessions, BrokenOfAFreeWorker_MayComeBackWithinDetectionAndGrace) {
  Worker& worker = Join(1, "a");
  sessions.Break(out, 1, "reset");
  EXPECT_EQ(sessions.next_due(), out.now + options.detection_ns + options.grace_ns);
  const int64_t broken = out.now;
  out.now = sessions.next_due() - 1;
  EXPECT_EQ(sessions.Overdue(out, worker), std::nullopt);
  sessions.Resume(out.now, 1);
  EXPECT_EQ(sessions.next_due(), kNever);
  EXPECT_EQ(worker.broken_reason, "reset");
  sessions.Break(out, 1, "reset again");
  out.now = sessions.next_due();
  EXPECT_THAT(*sessions.Overdue(out, worker), HasSubstr("did not come back within 25 s: reset again"));
  EXPECT_GT(out.now, broken);
}

TEST_F(Sessions, BrokenOfARunningRun_CountsTheGraceFromTheSilence) {
  Worker& worker = Join(1, "a");
  weft::Run& run = Prepare(worker);
  run.Take(out, 1, Prepared{run.id()});
  ASSERT_EQ(run.state(), RunState::kRunning);
  EXPECT_EQ(sessions.next_due(), worker.heard_ns + options.lease_ns);
  out.now = worker.heard_ns + 5 * kSecond;
  sessions.Break(out, 1, "no answer");
  EXPECT_THAT(worker.broken_reason, HasSubstr("after 5 s of silence"));
  EXPECT_EQ(worker.deadline, worker.heard_ns + options.detection_ns + options.grace_ns);
}

TEST_F(Sessions, SilentWorker_IsLostOnlyWhileItsRunRuns) {
  Worker& worker = Join(1, "a");
  weft::Run& run = Prepare(worker);
  out.now = worker.heard_ns + options.lease_ns;
  EXPECT_EQ(sessions.Overdue(out, worker), std::nullopt) << "it prepares";
  run.Take(out, 1, Prepared{run.id()});
  EXPECT_EQ(out.counts.leases_expired, 0u);
  EXPECT_EQ(sessions.Overdue(out, worker), "it was silent for 15 s");
  EXPECT_EQ(out.counts.leases_expired, 1u);
  const LostWorker lost = sessions.Remove(out, worker, WorkerChange::Kind::kLost, "it was silent for 15 s");
  EXPECT_EQ(lost.run, run.id());
  EXPECT_EQ(out.counts.workers_lost, 1u);
}

TEST_F(Sessions, WorkerThatDoesNotReport_IsSilentNotBusyWhileItsRunRuns) {
  Worker& worker = Join(1, "a");
  weft::Run& run = Prepare(worker);
  const int64_t later = worker.heard_ns + 3 * kSecond;
  EXPECT_EQ(sessions.Describe(worker, later).state, "busy") << "it prepares";
  run.Take(out, 1, Prepared{run.id()});
  EXPECT_EQ(sessions.Describe(worker, later - 1).state, "busy");
  const WorkerInfo silent = sessions.Describe(worker, later);
  EXPECT_EQ(silent.state, "silent");
  EXPECT_EQ(WorkerStateText(silent), "silent 3 s");
  sessions.Break(out, 1, "reset");
  EXPECT_EQ(WorkerStateText(sessions.Describe(worker, later)), "broken 3 s");
}

TEST_F(Sessions, AbortedWorker_IsReportedLateOnceAndBackOnce) {
  Worker& worker = Join(1, "a");
  worker.run = 7;
  sessions.Abort(out, worker, "cancelled");
  EXPECT_FALSE(worker.free());
  out.now = sessions.next_due();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(sessions.Overdue(out, worker), std::nullopt);
  WorkerSessions::Forgotten(out, worker, 6);
  EXPECT_TRUE(worker.ending()) << "another run";
  for (int i = 0; i < 2; ++i) WorkerSessions::Forgotten(out, worker, 7);
  EXPECT_TRUE(worker.free());
  std::vector<WorkerChange::Kind> kinds;
  for (const WorkerChange& change : out.effects.workers) kinds.push_back(change.kind);
  EXPECT_THAT(kinds, ::testing::ElementsAre(WorkerChange::Kind::kJoined, WorkerChange::Kind::kBusy,
                                            WorkerChange::Kind::kBack));
}

TEST(RunMembers, Leases_GrowWithEachAttempt) {
  FencingNumbers numbers;
  RunMembers members;
  for (const SessionId session : {11, 12}) members.Add({session, static_cast<int32_t>(session - 11), "p"});
  members.Lease({0, 0, 0, 1, 1}, &numbers);
  EXPECT_THAT(members.ProcessOfRank(), ::testing::ElementsAre(0, 0, 0, 1, 1));
  EXPECT_EQ(members.LeasesOf(1).size(), 2u);
  const Token first = members.TokenOf(3);
  EXPECT_TRUE(members.Holds(12, 3, first));
  EXPECT_FALSE(members.Holds(11, 3, first)) << "a rank of the other member";
  EXPECT_FALSE(members.Has(12, 5));
  EXPECT_FALSE(members.Has(12, -1));
  members.Lease({0, 0, 0, 1, 1}, &numbers);
  EXPECT_LT(first, members.TokenOf(3));
  EXPECT_FALSE(members.Holds(12, 3, first)) << "a token of the attempt before";
}

}  // namespace
}  // namespace weft::worker_sessions_test
