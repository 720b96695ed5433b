// Tests the answers of a coordinator's core about what its workers and runs do at the moment.
#include "coordinator/core/present_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "schedules/families/families.h"
#include "tests/unit/second.h"
#include "tests/unit/without_terms.h"

namespace weft::present_work_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A coordinator with a run of two ranks, each in a process of its own.
class PresentWork : public ::testing::Test {
 protected:
  void Do(Event e) {
    for (OutgoingMessage& m : core.Step(now, std::move(e)).messages) {
      if (const auto* assign = std::get_if<Assign>(&m.message)) leases[m.session] = assign->leases.at(0);
      const auto* grant = std::get_if<Grant>(&m.message);
      if (grant == nullptr) continue;
      std::vector<Job>& jobs = granted[m.session];
      jobs.insert(jobs.end(), grant->jobs.begin(), grant->jobs.end());
    }
  }
  void Say(SessionId session, FromWorker m) { Do(SessionMessage{session, std::move(m)}); }
  void Join(SessionId session) {
    Do(SessionOpened{session});
    Say(session, Hello{absl::StrCat("w", session), "h", static_cast<int64_t>(100 + session), -1, "address"});
  }
  void Submit(const std::string& output = "") {
    const auto plan = MakeRunPlan("run", "gpipe", WithoutTerms(*MakeSchedule("gpipe", {}, 2, 2)), steps, 0,
                                  ReductionMode::kOrdered, rule);
    Do(SubmitRun{1, "", *plan, "{}", 2, output});
  }
  void Run(const std::string& output = "") {
    Join(1);
    Join(2);
    Submit(output);
    for (const SessionId s : {1, 2}) Say(s, Prepared{1});
    for (const SessionId s : {1, 2}) Say(s, Credit{1, leases[s].rank, leases[s].token, 4});
  }

  void EndAllJobs() {
    while (!granted[1].empty() || !granted[2].empty()) {
      for (const SessionId s : {1, 2}) {
        Completions done{1, leases[s].rank, leases[s].token};
        for (const Job& job : std::exchange(granted[s], {})) done.jobs.push_back({job, 1, 2});
        if (!done.jobs.empty()) Say(s, std::move(done));
      }
    }
  }
  std::string Reason() const { return WaitsOf(core, now, 1)->reason; }

  int64_t now = kSecond;
  int32_t steps = 2;
  CheckpointRule rule;
  CoordinatorCore core{CoreOptions()};
  std::map<SessionId, RankLease> leases;
  std::map<SessionId, std::vector<Job>> granted;
};

TEST_F(PresentWork, RunBeforeItRuns_SaysForWhatItWaits) {
  EXPECT_EQ(WaitsOf(core, now, 1).status().code(), absl::StatusCode::kNotFound);
  Submit();
  RunWaits waits = *WaitsOf(core, now, 1);
  EXPECT_EQ(waits.state, RunState::kWaiting);
  EXPECT_THAT(waits.reason, HasSubstr("needs 2 worker processes, 0 are free"));
  EXPECT_EQ(waits.still_ns, -1);
  Join(1);
  Join(2);
  Say(1, Prepared{1});
  waits = *WaitsOf(core, now, 1);
  EXPECT_EQ(waits.state, RunState::kPreparing);
  EXPECT_EQ(waits.reason, "waits for process 1 (w2, pid 102 on host h) to prepare it");
  EXPECT_THAT(waits.ranks, IsEmpty());
}

TEST_F(PresentWork, RunWhoseLastCheckpointIsSaved_WaitsForItAndThenForTheReports) {
  rule.validate_every = 2;
  Run("out");
  Say(1, CheckpointSealed{1, 0, ""});
  EndAllJobs();
  ASSERT_EQ(WaitsOf(core, now, 1)->state, RunState::kFinishing);
  const std::string first = "process 0 (w1, pid 101 on host h)", second = "process 1 (w2, pid 102 on host h)";
  EXPECT_EQ(Reason(), absl::StrCat("waits for the checkpoint of step 2 from ", first, " and ", second));
  Say(1, SnapshotSaved{1, 2, ""});
  EXPECT_EQ(Reason(), absl::StrCat("waits for the checkpoint of step 2 from ", second));
  Say(2, SnapshotSaved{1, 2, ""});
  EXPECT_EQ(Reason(), absl::StrCat("waits for the checkpoint of step 2 from ", first)) << "it completes it";
  Say(1, CheckpointSealed{1, 2, ""});
  EXPECT_EQ(Reason(), absl::StrCat("waits for the validation of step 2 from ", first));
  Say(1, Validation{1, 2, 8, 8, 0.5, {}});
  Say(1, Finished{1, {}});
  EXPECT_EQ(Reason(), absl::StrCat("waits for ", second, " to report"));
}

TEST_F(PresentWork, StepsThatWaitForAValidation_SayForWhich) {
  steps = 6;
  rule.validate_every = 1;
  Run("out");
  Say(1, CheckpointSealed{1, 0, ""});
  for (int32_t step = 1; step <= 2; ++step) {
    EndAllJobs();
    for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{1, step, ""});
    Say(1, CheckpointSealed{1, step, ""});
  }
  EndAllJobs();
  const RunWaits waits = *WaitsOf(core, now, 1);
  ASSERT_THAT(waits.roots, SizeIs(1));
  EXPECT_EQ(waits.roots[0].kind, "checkpoint");
  EXPECT_THAT(waits.roots[0].sentence,
              HasSubstr("is held back from rank 0 for the validation of step 1 from process 0 (w1"));
}

TEST_F(PresentWork, WorkerOfARunFallsSilent_IsTheRootAndSilent) {
  Run();
  now += 5 * kSecond;
  Say(2, Report{1});
  const RunWaits waits = *WaitsOf(core, now, 1);
  EXPECT_EQ(waits.still_ns, 5 * kSecond);
  ASSERT_THAT(waits.roots, SizeIs(1));
  EXPECT_EQ(waits.roots[0].sentence, "process 0 (w1, pid 101 on host h) has said nothing for 5 s");
  EXPECT_EQ(waits.ranks[0].does, "silent");
  EXPECT_EQ(waits.ranks[1].missing->rank, 0);
  const std::vector<WorkerInfo> workers = ListWorkersWithJobs(core, now);
  EXPECT_EQ(workers[0].state, "silent");
  EXPECT_EQ(workers[1].state, "busy");
}

TEST_F(PresentWork, Workers_HaveTheJobsThatTheirRanksComputeOrCanStart) {
  Run();
  const Job first = granted[1].at(0);
  EXPECT_THAT(ListWorkersWithJobs(core, now)[0].jobs, ElementsAre(WorkerInfo::JobInHand{0, first, 0}));
  EXPECT_THAT(ListWorkersWithJobs(core, now)[1].jobs, IsEmpty()) << "its input is not made";
  Say(1, Report{1, {}, {{0, first, 2 * kSecond}}});
  now += kSecond;
  EXPECT_THAT(ListWorkersWithJobs(core, now)[0].jobs,
              ElementsAre(WorkerInfo::JobInHand{0, first, 3 * kSecond}));
  Say(1, Completions{1, 0, leases[1].token, {{first, 1, 2}}});
  EXPECT_THAT(ListWorkersWithJobs(core, now)[0].jobs,
              ElementsAre(WorkerInfo::JobInHand{0, granted[1].at(1), 0}));
  EXPECT_THAT(ListWorkersWithJobs(core, now)[1].jobs, SizeIs(1));
}

}  // namespace
}  // namespace weft::present_work_test
