#include "coordinator/core/coordinator_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "absl/strings/str_cat.h"
#include "schedules/families/families.h"
#include "tests/unit/heard.h"
#include "tests/unit/second.h"
#include "tests/unit/without_terms.h"

namespace weft::coordinator_core_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

std::shared_ptr<const RunPlan> Plan(int stages = 2, int microbatches = 2, int steps = 2,
                                    int validate_every = 0) {
  CheckpointRule rule;
  rule.validate_every = validate_every;
  return *MakeRunPlan("run", "gpipe", WithoutTerms(*MakeSchedule("gpipe", {}, stages, microbatches)), steps,
                      /*first_step=*/0, ReductionMode::kOrdered, rule);
}

// Plays the shell and the workers: keeps what the core says, by session.
class CoreTest : public ::testing::Test {
 protected:
  void Take(Effects e) {
    for (OutgoingMessage& m : e.messages) sent[m.session].push_back(std::move(m.message));
    for (Reply& r : e.replies) replies.push_back(std::move(r));
    for (RunInfo& r : e.runs) {
      states.push_back(r.state);
      run_info = std::move(r);
    }
    for (StepDone& s : e.steps) steps.push_back(s);
    for (Validation& v : e.validations) validations.push_back(v);
    for (JobsEnded& j : e.jobs) jobs_ended += j.jobs.size();
    for (CloseSession& c : e.closed) closed[c.session] = c.status;
    for (WorkerChange& w : e.workers) changes.push_back(std::move(w));
    for (RunStall& s : e.stalls) stalls.push_back(std::move(s.sentence));
    spans += e.spans.size();
    for (const uint64_t run : e.spans_complete) spans_complete.push_back(run);
  }
  void Do(Event e) { Take(core->Step(now, std::move(e))); }
  void Say(SessionId session, FromWorker m) { Do(SessionMessage{session, std::move(m)}); }

  void Join(SessionId session, const std::string& name = "", int32_t process = -1, int64_t pid = 0) {
    Do(SessionOpened{session});
    Hello hello{name.empty() ? absl::StrCat("worker-", session) : name, "h",
                pid != 0 ? pid : static_cast<int64_t>(100 + session), process, "addr"};
    hello.tells_spans = tells_spans;
    Say(session, hello);
  }
  uint64_t Submit(int processes = 2, int stages = 2, const std::string& output = "") {
    auto plan = std::make_shared<RunPlan>(*Plan(stages, 2, run_steps, validate_every));
    plan->process_settings = process_settings;
    plan->restarts = restarts;
    plan->checkpoint.every_steps = checkpoint_every;
    plan->checkpoint.every_ns = checkpoint_every_ns;
    plan->checkpoint.none = saves_nothing;
    plan->resumed_spec = [](const std::string& checkpoint, int32_t step) {
      return absl::StrCat(checkpoint, " from step ", step);
    };
    Do(SubmitRun{1, "", std::move(plan), "{}", processes, output});
    EXPECT_TRUE(replies.back().status.ok()) << replies.back().status;
    return replies.back().run;
  }
  // The first message of the kind that was said to the session and not yet taken.
  template <typename Message>
  std::optional<Message> Heard(SessionId session) {
    return TakeFirst<Message>(&sent[session]);
  }
  // Prepares a run of two ranks on the sessions 1 and 2 and gives each its credit.
  uint64_t Running(int credit = 4, const std::string& output = "") {
    Join(1);
    Join(2);
    const uint64_t run = Submit(2, 2, output);
    for (SessionId s : {1, 2}) {
      const Assign assign = *Heard<Assign>(s);
      EXPECT_EQ(assign.leases.size(), 1u);
      lease[s] = assign.leases[0];
      Say(s, Prepared{run});
    }
    for (SessionId s : {1, 2}) Say(s, Credit{run, lease[s].rank, lease[s].token, credit});
    return run;
  }
  Completions Complete(SessionId s, uint64_t run, const std::vector<Job>& jobs) {
    Completions m{run, lease[s].rank, lease[s].token, {}};
    for (const Job& j : jobs)
      m.jobs.push_back({j, now, now + 1, 0.5, j.kind == JobKind::kForward && j.stage == 1});
    return m;
  }
  // Ends all granted jobs of both sessions until nothing is granted any more.
  void EndAll(uint64_t run) {
    for (bool any = true; any;) {
      any = false;
      for (SessionId s : {1, 2}) {
        while (auto grant = Heard<Grant>(s)) {
          any = true;
          Say(s, Complete(s, run, grant->jobs));
        }
      }
    }
  }

  // Ends the granted jobs of the first step, until no more of them are granted.
  void EndFirstStep(uint64_t run) {
    for (bool any = true; any;) {
      any = false;
      for (SessionId s : {1, 2}) {
        while (auto grant = Heard<Grant>(s)) {
          std::erase_if(grant->jobs, [](const Job& job) { return job.step > 0; });
          any |= !grant->jobs.empty();
          Say(s, Complete(s, run, grant->jobs));
        }
      }
    }
  }
  // Ends granted jobs, one grant after the other, until so many steps are done.
  void EndUntil(uint64_t run, int steps_done) {
    for (bool any = true; any;) {
      any = false;
      for (SessionId s : {1, 2}) {
        if (core->GetRun(run)->steps_done >= steps_done) return;
        const auto grant = Heard<Grant>(s);
        if (!grant.has_value()) continue;
        any = true;
        Say(s, Complete(s, run, grant->jobs));
      }
    }
  }
  // Returns how many runs have begun again, by cause.
  std::map<std::string, uint64_t> Restarts() const {
    std::map<std::string, uint64_t> restarts;
    for (int c = 0; c < kRestartCauses; ++c) {
      const uint64_t count = core->probe().restarts[c];
      if (count > 0) restarts[std::string(RestartCauseName(static_cast<RestartCause>(c)))] = count;
    }
    return restarts;
  }

  int64_t now = kSecond;
  CoreOptions options;
  std::unique_ptr<CoordinatorCore> core = std::make_unique<CoordinatorCore>(options);
  std::map<SessionId, std::deque<FromCoordinator>> sent;
  std::map<SessionId, RankLease> lease;
  std::vector<Reply> replies;
  std::vector<RunState> states;
  RunInfo run_info;
  std::vector<StepDone> steps;
  std::vector<Validation> validations;
  int run_steps = 2, validate_every = 0, checkpoint_every = 0, restarts = 0;
  int64_t checkpoint_every_ns = 0;
  std::string process_settings;
  bool tells_spans = false, saves_nothing = false;
  size_t spans = 0;
  std::vector<uint64_t> spans_complete;  // runs
  size_t jobs_ended = 0;
  std::map<SessionId, absl::Status> closed;
  std::vector<WorkerChange> changes;
  std::vector<std::string> stalls;  // their sentences
};

TEST_F(CoreTest, Run_FromSubmissionToEnd_PassesEveryState) {
  const uint64_t run = Submit();
  EXPECT_EQ(run_info.state, RunState::kWaiting);
  EXPECT_THAT(run_info.reason, HasSubstr("needs 2 worker processes, 0 are free"));
  Join(1);
  Join(2);
  EXPECT_EQ(run_info.state, RunState::kPreparing);
  for (SessionId s : {1, 2}) {
    const Assign assign = *Heard<Assign>(s);
    EXPECT_EQ(assign.run, run);
    EXPECT_EQ(assign.process_of_rank, (std::vector<int32_t>{0, 1}));
    EXPECT_EQ(assign.peers.size(), 2u);
    EXPECT_THAT(assign.peers[1].label, HasSubstr("process 1 (worker-2, pid 102 on host h)"));
    lease[s] = assign.leases.at(0);
    EXPECT_EQ(lease[s].token.epoch, assign.epoch);
  }
  EXPECT_LT(lease[1].token, lease[2].token);
  Say(1, Prepared{run});
  Say(1, Credit{run, 0, lease[1].token, 4});
  EXPECT_FALSE(Heard<Grant>(1).has_value()) << "the other process is not prepared";
  Say(2, Prepared{run});
  EXPECT_TRUE(core->GetRun(run)->state == RunState::kRunning);
  EXPECT_EQ(sent[1].size(), 2u) << "Welcome, and the grant of the credit that came early";
  Say(2, Credit{run, 1, lease[2].token, 4});
  EndAll(run);
  EXPECT_EQ(run_info.state, RunState::kFinishing);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[1].loss, 0.5);
  EXPECT_EQ(jobs_ended, 20u);
  for (SessionId s : {1, 2}) {
    EXPECT_TRUE(Heard<Finish>(s).has_value());
    RankReport report;
    report.rank = lease[s].rank;
    report.wall_seconds = 2.5;
    Say(s, Finished{run, {report}});
  }
  EXPECT_EQ(run_info.state, RunState::kFinished);
  EXPECT_EQ(run_info.reports.size(), 2u);
  EXPECT_EQ(run_info.steps_done, 2);
  EXPECT_EQ(states, (std::vector<RunState>{RunState::kSubmitted, RunState::kWaiting, RunState::kWaiting,
                                           RunState::kPreparing, RunState::kRunning, RunState::kFinishing,
                                           RunState::kFinished}));
  EXPECT_EQ(core->probe().workers_free, 2);
  EXPECT_EQ(core->probe().runs_ended[static_cast<int>(RunState::kFinished)], 1u);
  EXPECT_EQ(core->next_deadline(), kNever) << "nothing is awaited";
}

TEST_F(CoreTest, RunThatSavesNothing_FinishesWithoutACheckpoint) {
  saves_nothing = true;
  Join(1);
  Join(2);
  const uint64_t run = Submit(2, 2, "out");
  EXPECT_EQ(run_info.output, "out");
  for (const SessionId s : {1, 2}) {
    const Assign assign = *Heard<Assign>(s);
    EXPECT_EQ(assign.output, "") << "nowhere to save";
    lease[s] = assign.leases.at(0);
    Say(s, Prepared{run});
  }
  for (const SessionId s : {1, 2}) Say(s, Credit{run, lease[s].rank, lease[s].token, 4});
  EndAll(run);
  for (const SessionId s : {1, 2}) Say(s, Finished{run, {}});
  EXPECT_EQ(run_info.state, RunState::kFinished);
  EXPECT_EQ(run_info.checkpoint_step, -1);
}

class HostsTest : public CoreTest {
 protected:
  // Workers with the process numbers 0, 1, .., each on the host of that letter.
  void JoinOn(const std::string& hosts, const std::string& node = "") {
    for (const char host : hosts) {
      const SessionId session = ++joined_;
      Do(SessionOpened{session});
      Hello hello{absl::StrCat("worker-", session), std::string(1, host), static_cast<int64_t>(100 + session),
                  -1, "addr"};
      hello.node = node;
      hello.release = "0.1.0";
      Say(session, hello);
    }
  }
  // The process of each rank of a run with a process for each.
  std::vector<int32_t> ProcessesOfRun(int ranks) {
    const uint64_t run = Submit(ranks, ranks);
    for (SessionId s = 1; s <= joined_; ++s) {
      const auto assign = Heard<Assign>(s);
      if (assign.has_value() && assign->run == run) return assign->process_of_rank;
    }
    return {};
  }

 private:
  SessionId joined_ = 0;
};

TEST_F(HostsTest, WorkersOfTwoHostsThatCameInTurn_RanksOfAHostAreNeighbours) {
  JoinOn("abab");
  EXPECT_EQ(ProcessesOfRun(4), (std::vector<int32_t>{0, 2, 1, 3}));
}

TEST_F(HostsTest, RunThatFitsOnAHost_TakesTheSmallestThatHasEnough) {
  JoinOn("abbaac");
  EXPECT_EQ(ProcessesOfRun(2), (std::vector<int32_t>{1, 2})) << "three of a stay for a larger run";
  EXPECT_EQ(ProcessesOfRun(3), (std::vector<int32_t>{0, 3, 4}));
}

TEST_F(HostsTest, WorkersInContainers_TheirNodesCount) {
  for (const char node : {'a', 'b', 'a'}) JoinOn(std::string(1, 'x'), std::string(1, node));
  EXPECT_EQ(ProcessesOfRun(3), (std::vector<int32_t>{0, 2, 1}));
  EXPECT_EQ(core->ListWorkers(now)[1].node, "b");
  EXPECT_EQ(core->ListWorkers(now)[1].release, "0.1.0");
}

TEST_F(HostsTest, RunThatFitsOnNoHost_TakesAsFewAsItCan) {
  JoinOn("abbcc");
  EXPECT_EQ(ProcessesOfRun(3), (std::vector<int32_t>{1, 2, 3}));
}

TEST_F(CoreTest, Ranks_OnFewerProcesses_AreContiguousBlocks) {
  Join(1);
  Join(2);
  Join(3);
  Submit(3, 8);
  const Assign assign = *Heard<Assign>(2);
  EXPECT_EQ(assign.process_of_rank, (std::vector<int32_t>{0, 0, 0, 1, 1, 1, 2, 2}));
  ASSERT_EQ(assign.leases.size(), 3u);
  EXPECT_EQ(assign.leases[0].rank, 3);
}

// A process may serve several runs, each as a worker of its own.
TEST_F(CoreTest, WorkersOfAProcess_ARunTakesOneOfEachProcessAndTheIdleProcessesFirst) {
  for (const SessionId s : {1, 2, 3}) Join(s, "", -1, /*pid=*/11);
  for (const SessionId s : {4, 5}) Join(s, "", -1, /*pid=*/12);
  Submit(1, 1);
  EXPECT_TRUE(Heard<Assign>(1));
  Submit(2, 2);
  EXPECT_TRUE(Heard<Assign>(2) && Heard<Assign>(4)) << "not both of one process";
  Submit(1, 1);
  EXPECT_TRUE(Heard<Assign>(5)) << "its process serves one run, the other serves two";
  Submit(1, 1);
  EXPECT_TRUE(Heard<Assign>(3));
}

TEST_F(CoreTest, RunsThatWantOtherSettingsOfAProcess_ShareNone) {
  for (const SessionId s : {1, 2}) Join(s, "", -1, /*pid=*/11);
  process_settings = "tf32";
  const uint64_t first = Submit(1, 1);
  process_settings = "float32";
  const uint64_t second = Submit(1, 1);
  EXPECT_TRUE(Heard<Assign>(1));
  EXPECT_FALSE(Heard<Assign>(2)) << "it is free, but its process serves the other run";
  EXPECT_EQ(core->GetRun(second)->reason, "needs 1 worker process, 0 are free (2 connected)");
  process_settings = "tf32";
  const uint64_t third = Submit(1, 1);
  EXPECT_EQ(core->GetRun(third)->state, RunState::kWaiting) << "it is not its turn";
  Do(CancelRun{2, first});
  Say(1, Forgotten{first});
  EXPECT_TRUE(Heard<Assign>(1) || Heard<Assign>(2));
  EXPECT_EQ(core->GetRun(second)->state, RunState::kPreparing);
  EXPECT_EQ(core->GetRun(third)->state, RunState::kWaiting);
}

TEST_F(CoreTest, Credit_Outstanding_IsNeverExceeded) {
  const uint64_t run = Running(2);
  const Grant grant = *Heard<Grant>(1);
  EXPECT_EQ(grant.jobs.size(), 2u);
  EXPECT_FALSE(Heard<Grant>(1).has_value());
  Say(1, Complete(1, run, {grant.jobs[0]}));
  EXPECT_EQ(Heard<Grant>(1)->jobs.size(), 1u);
  Say(1, Credit{run, 0, lease[1].token, 0});
  Say(1, Complete(1, run, {grant.jobs[1]}));
  EXPECT_FALSE(Heard<Grant>(1).has_value()) << "the worker lowered its credit";
}

TEST_F(CoreTest, Completions_Twice_CountOnce) {
  const uint64_t run = Running();
  const Grant grant = *Heard<Grant>(1);
  Say(1, Complete(1, run, grant.jobs));
  const size_t once = jobs_ended;
  Say(1, Complete(1, run, grant.jobs));
  EXPECT_EQ(jobs_ended, once);
  EXPECT_EQ(core->probe().duplicate_completions, grant.jobs.size());
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
}

TEST_F(CoreTest, StaleToken_ChangesNothingAndIsCounted) {
  const uint64_t run = Running();
  const Grant grant = *Heard<Grant>(1);
  Completions stale = Complete(1, run, grant.jobs);
  --stale.token.epoch;
  Say(1, stale);
  Say(1, Credit{run, 0, stale.token, 100});
  Completions foreign = Complete(1, run, grant.jobs);
  Say(2, foreign);  // another worker with this rank's token
  EXPECT_EQ(jobs_ended, 0u);
  EXPECT_EQ(core->probe().fenced, 3u);
  EXPECT_FALSE(Heard<Grant>(1).has_value());
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
}

TEST_F(CoreTest, Tokens_OfALaterRun_AreLarger) {
  const uint64_t run = Running();
  const Token first = lease[2].token;
  Do(CancelRun{2, run, "enough"});
  EXPECT_TRUE(Heard<Abort>(1).has_value());
  for (SessionId s : {1, 2}) Say(s, Forgotten{run});
  const uint64_t second = Submit();
  EXPECT_GT(Heard<Assign>(1)->leases[0].token, first);
  Say(1, Complete(1, run, {Job::Compute(0, 0, 0, JobKind::kForward)}));
  EXPECT_EQ(core->probe().fenced, 1u);
  EXPECT_EQ(core->GetRun(second)->state, RunState::kPreparing);
}

TEST_F(CoreTest, WorkerThatDoesNotAnswerAnAbort_NextRunGoesToAnother) {
  Join(1);
  const uint64_t run = Submit(1);
  Do(CancelRun{2, run, "enough"});
  EXPECT_TRUE(Heard<Abort>(1).has_value());
  EXPECT_EQ(core->probe().workers_ending, 1);
  const uint64_t second = Submit(1);
  EXPECT_EQ(core->GetRun(second)->state, RunState::kWaiting);
  EXPECT_THAT(run_info.reason, HasSubstr("process 0 (worker-1, pid 101 on host h) has not ended run 1 yet"));
  Join(2);
  EXPECT_EQ(core->GetRun(second)->state, RunState::kPreparing);
  EXPECT_TRUE(Heard<Assign>(2).has_value());
  now += options.ending_ns;
  Do(Tick{});
  EXPECT_EQ(changes.back().kind, WorkerChange::Kind::kBusy);
  EXPECT_THAT(changes.back().reason, HasSubstr("told 10 s ago that run 1 is over"));
  const uint64_t third = Submit(1);
  Say(1, Forgotten{second});
  EXPECT_EQ(core->GetRun(third)->state, RunState::kWaiting) << "that is not the run that it holds";
  Say(1, Forgotten{run});
  EXPECT_EQ(changes.back().kind, WorkerChange::Kind::kBack);
  EXPECT_EQ(core->GetRun(third)->state, RunState::kPreparing);
}

TEST_F(CoreTest, MessagesOfAnAbortedRun_ChangeNothing) {
  const uint64_t run = Running();
  Do(CancelRun{2, run, "enough"});
  Say(1, Finished{run, {}});
  Say(1, Failed{run, "too late"});
  Say(2, Report{run, {}});
  EXPECT_EQ(core->probe().fenced, 3u);
  EXPECT_EQ(core->GetRun(run)->state, RunState::kCancelled);
  Do(SessionClosed{1, "it said goodbye"});
  EXPECT_EQ(changes.back().kind, WorkerChange::Kind::kExited);
}

TEST_F(CoreTest, WorkerThatFailedItsLastRun_IsTheLastChoice) {
  Join(1);
  Join(2);
  const uint64_t run = Submit(1);
  EXPECT_TRUE(Heard<Assign>(1).has_value());
  Say(1, Failed{run, "process 3: connecting: Destination is unreachable"});
  now += options.blame_ns;
  Do(Tick{});
  Say(1, Forgotten{run});
  Submit(1);
  EXPECT_TRUE(Heard<Assign>(2).has_value());
  Submit(1);
  EXPECT_TRUE(Heard<Assign>(1).has_value()) << "there is no other";
}

TEST_F(CoreTest, ProcessSaysForWhomItWaits_TheRunSaysSo) {
  const uint64_t run = Running();
  Say(2, Stalled{run, "waiting for activation of process 0 for 6 s"});
  EXPECT_EQ(run_info.state, RunState::kRunning);
  EXPECT_EQ(run_info.reason,
            "process 1 (worker-2, pid 102 on host h): waiting for activation of process 0 for 6 s");
  Say(2, Stalled{run, ""});
  EXPECT_EQ(run_info.reason, "");
}

TEST_F(CoreTest, Stall_IsToldOnceWhenItBegins) {
  const uint64_t run = Running();
  Say(2, Stalled{run, "waiting for 6 s"});
  EXPECT_THAT(stalls, ::testing::ElementsAre("process 1 (worker-2, pid 102 on host h): waiting for 6 s"));
  Say(2, Stalled{run, "waiting for 16 s"});
  Say(1, Stalled{run, "waiting for 9 s"});
  Say(2, Stalled{run, ""});
  Say(1, Stalled{run, ""});
  EXPECT_THAT(stalls, ::testing::SizeIs(1)) << "the same goes on until nobody waits";
  Say(1, Stalled{run, "waiting for 6 s"});
  EXPECT_THAT(stalls, ::testing::SizeIs(2));
}

TEST_F(CoreTest, CompletionOfUngrantedJob_FailsTheRunAndNamesTheProcess) {
  const uint64_t run = Running();
  Say(1, Complete(1, run, {Job::Compute(1, 0, 0, JobKind::kBackward)}));
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, HasSubstr("process 0 (worker-1"));
  EXPECT_THAT(run_info.reason, HasSubstr("backward (step 1, stage 0, micro-batch 0)"));
  EXPECT_TRUE(Heard<Abort>(2).has_value());
  EXPECT_EQ(core->probe().violations, 1u);
}

TEST_F(CoreTest, SessionBreaksAndComesBack_RunGoesOn) {
  const uint64_t run = Running();
  Do(SessionBroken{1, "reset"});
  EXPECT_EQ(core->probe().workers_broken, 1);
  now += 9 * kSecond;
  Do(Tick{});
  Do(SessionResumed{1});
  Say(2, Report{run, {}});
  now += 9 * kSecond;
  Do(Tick{});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
  EndAll(run);
  EXPECT_EQ(run_info.state, RunState::kFinishing);
}

TEST_F(CoreTest, SessionBreaksForGood_RunFailsAfterTheGrace) {
  const uint64_t run = Running();
  Do(SessionBroken{1, "connection reset"});
  EXPECT_LE(core->next_deadline(), now + options.grace_ns);
  now += options.grace_ns;
  Do(Tick{});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, HasSubstr("process 0 (worker-1, pid 101 on host h) was lost"));
  EXPECT_THAT(run_info.reason, HasSubstr("connection reset"));
  EXPECT_THAT(Heard<Abort>(2)->reason, HasSubstr("worker-1"));
  EXPECT_EQ(core->probe().workers_lost, 1u);
  EXPECT_EQ(closed.count(1), 1u);
}

// A silent worker has its lease and no longer, whether its connection stands or is known to be dead.
TEST_F(CoreTest, SilentBreak_LeaseCountsFromTheLastMessage) {
  for (const int64_t noticed : {5, 9, 14}) {
    core = std::make_unique<CoordinatorCore>(options);
    sent.clear();
    const uint64_t run = Running();
    const int64_t cut = now;
    now = cut + noticed * kSecond;
    Do(SessionBroken{1, "its connection broke"});
    Say(2, Report{run, {}});
    now = cut + options.lease_ns - 1;
    Do(Tick{});
    EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning) << noticed;
    ++now;
    Do(Tick{});
    EXPECT_EQ(core->GetRun(run)->state, RunState::kFailed) << noticed;
    EXPECT_THAT(core->GetRun(run)->reason,
                HasSubstr(absl::StrCat("it was silent for 15 s; its connection broke after ", noticed,
                                       " s of silence")));
  }
}

// The coordinator was stopped: that no worker was heard is its own fault.
TEST_F(CoreTest, CoordinatorStoodStill_NoWorkerIsLost) {
  const uint64_t run = Running();
  now += 30 * options.lease_ns;
  Do(Tick{});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
  now += options.lease_ns;
  Do(Tick{});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kFailed);
}

TEST_F(CoreTest, IdleOrPreparingWorkerBreaks_IsKeptUntilItMustKnow) {
  Join(1);
  now += 1000 * kSecond;
  Do(SessionBroken{1, "its connection broke"});
  now += options.detection_ns + options.grace_ns - 1;
  Do(Tick{});
  EXPECT_EQ(core->probe().workers_broken, 1);
  ++now;
  Do(Tick{});
  EXPECT_EQ(core->probe().workers_broken, 0);
}

TEST_F(CoreTest, OwnerTellsExit_RunFailsAtOnceWithTheReason) {
  Running();
  Do(WorkerExited{101, "killed by signal 9"});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, HasSubstr("(worker-1, pid 101 on host h) was lost: killed by signal 9"));
}

// A process that dies makes its peers fail; the report of a peer often comes first.
TEST_F(CoreTest, PeerFailsFirst_TheDeathIsTheCauseThatIsTold) {
  const uint64_t run = Running();
  Say(2, Failed{run, "process 0 is gone"});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning) << "the cause is still sought";
  now += kSecond / 2;
  Do(WorkerExited{101, "killed by signal 9"});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason,
              HasSubstr("process 0 (worker-1, pid 101 on host h) was lost: killed by signal 9"));
  EXPECT_THAT(run_info.reason, HasSubstr("then process 1"));
}

// Nobody reports the exit without an owner; the broken session is all that is known when the second is over.
TEST_F(CoreTest, PeerFailsAfterASessionBroke_TheLostProcessComesFirst) {
  const uint64_t run = Running();
  Do(SessionBroken{1, "its connection broke"});
  Say(2, Failed{run, "process 0 is gone"});
  now += options.blame_ns;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, ::testing::StartsWith("process 0 (worker-1, pid 101 on host h) was lost: "));
  EXPECT_THAT(run_info.reason, HasSubstr("then process 1 (worker-2, pid 102 on host h) failed: process 0"));
}

TEST_F(CoreTest, ProcessSaysWhyAndLeaves_ItsWordsComeFirst) {
  const uint64_t run = Running();
  Say(2, Failed{run, "it was stopped by SIGTERM"});
  Do(SessionClosed{2, "it said goodbye"});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_EQ(run_info.reason,
            "process 1 (worker-2, pid 102 on host h) failed: it was stopped by SIGTERM (then it was lost: it "
            "said goodbye)");
}

TEST_F(CoreTest, WorkerFailsAlone_ItsReasonIsTold) {
  const uint64_t run = Running();
  Say(2, Failed{run, "out of memory"});
  now += options.blame_ns;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, HasSubstr("process 1 (worker-2, pid 102 on host h) failed: out of memory"));
  EXPECT_TRUE(Heard<Abort>(1).has_value());
}

TEST_F(CoreTest, NoProgress_FailsAndNamesTheJob) {
  options.lease_ns = 10'000 * kSecond;
  core = std::make_unique<CoordinatorCore>(options);
  const uint64_t run = Running();
  now += options.progress_ns - 1;
  Do(Tick{});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
  EXPECT_EQ(core->next_deadline(), now + 1);
  now += 1;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(stalls, ::testing::ElementsAre(HasSubstr("no job ran or ended for ")));
  EXPECT_THAT(run_info.reason,
              HasSubstr("forward (step 0, stage 0, micro-batch 0) on rank 0 of process 0 (worker-1"));
}

TEST_F(CoreTest, SilentWorker_IsLost) {
  const uint64_t run = Running();
  now += options.lease_ns / 2;
  Say(2, Report{run, {}});
  now += options.lease_ns / 2;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, HasSubstr("worker-1"));
  EXPECT_THAT(run_info.reason, HasSubstr("silent"));
}

TEST_F(CoreTest, NotPrepared_FailsAndNamesTheProcess) {
  Join(1);
  Join(2);
  const uint64_t run = Submit();
  Say(1, Prepared{run});
  now += options.preparing_ns;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, HasSubstr("process 1 (worker-2"));
  EXPECT_THAT(run_info.reason, ::testing::Not(HasSubstr("worker-1,")));
}

TEST_F(CoreTest, NoWorkers_FailsAfterTheDeadline) {
  Submit();
  now += options.waiting_ns;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, HasSubstr("needs 2 worker processes"));
}

TEST_F(CoreTest, WorkersBusyWithAnotherRun_TheNextWaitsWithoutDeadline) {
  options.progress_ns = options.lease_ns = 100'000 * kSecond;
  core = std::make_unique<CoordinatorCore>(options);
  const uint64_t first = Running();
  const uint64_t second = Submit();
  now += 10 * options.waiting_ns;
  Do(Tick{});
  EXPECT_EQ(core->GetRun(second)->state, RunState::kWaiting);
  Do(CancelRun{3, first, ""});
  for (SessionId s : {1, 2}) Say(s, Forgotten{first});
  EXPECT_EQ(core->GetRun(second)->state, RunState::kPreparing);
}

TEST_F(CoreTest, FirstInLineWaitsForBusyWorkers_TheNextDoesNotOvertake) {
  Join(1);
  const uint64_t first = Submit(1);
  Join(2);
  const uint64_t big = Submit(2), small = Submit(1);
  EXPECT_EQ(core->GetRun(big)->state, RunState::kWaiting);
  EXPECT_EQ(core->GetRun(small)->state, RunState::kWaiting) << "one worker is free, but it is not its turn";
  EXPECT_EQ(core->GetRun(small)->reason,
            absl::StrCat("behind run ", big, "; needs 1 worker process, 1 is free (2 connected)"));
  now += 10 * options.waiting_ns;
  Do(CancelRun{0, first, ""});
  Say(1, Forgotten{first});
  EXPECT_EQ(core->GetRun(big)->state, RunState::kPreparing);
  EXPECT_EQ(core->GetRun(small)->reason, "needs 1 worker process, 0 are free (2 connected)");
}

// A thousand sessions cost the work of a run nothing.
TEST_F(CoreTest, WorkOfARun_LooksAtNoWorkerButThoseThatSpeak) {
  const uint64_t run = Running(/*credit=*/1);
  const uint64_t before = core->probe().surveys;
  for (int i = 0; i < 3; ++i) {
    for (SessionId s : {1, 2}) {
      now += 1'000'000'000;
      Say(s, Report{run, {}});
      Say(s, Stalled{run, i % 2 == 0 ? "the disk is slow" : ""});
      const std::optional<Grant> grant = Heard<Grant>(s);
      if (grant.has_value()) Say(s, Complete(s, run, grant->jobs));
      Say(s, Credit{run, lease[s].rank, lease[s].token, 1});
    }
  }
  EXPECT_EQ(core->probe().surveys, before);
  EXPECT_GT(jobs_ended, 3u);
  Join(3);
  EXPECT_GT(core->probe().surveys, before);
  // Workers that were heard of have more time than when all were looked at last.
  now += options.lease_ns - 1'000'000'001;
  for (SessionId s : {1, 2}) Say(s, Report{run, {}});
  now += 1'500'000'000;
  Do(Tick{});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
  now += options.lease_ns;
  EXPECT_LE(core->next_deadline(), now);
  Do(Tick{});
  EXPECT_EQ(core->probe().workers_lost, 1u) << "with the first one the run ends";
}

TEST_F(CoreTest, FirstInLineNeedsMoreThanAreConnected_TheNextPasses) {
  Join(1);
  Join(2);
  const uint64_t big = Submit(4, 4), small = Submit(2);
  EXPECT_EQ(
      core->GetRun(big)->reason,
      "needs 4 worker processes, 0 are free (2 connected); start 2 more workers, or submit the run with "
      "--processes 2");
  EXPECT_EQ(core->GetRun(small)->state, RunState::kPreparing);
  Join(3);
  Join(4);
  const uint64_t third = Submit(2);
  EXPECT_EQ(core->GetRun(third)->state, RunState::kWaiting) << "now it is the first one's turn";
  Do(CancelRun{0, small, ""});
  for (SessionId s : {1, 2}) Say(s, Forgotten{small});
  EXPECT_EQ(core->GetRun(big)->state, RunState::kPreparing);
}

TEST_F(CoreTest, RunsThatNeedMoreThanAreConnected_EachFailAfterTheDeadline) {
  Join(1);
  const uint64_t first = Submit(2), second = Submit(2);
  now += options.waiting_ns;
  Do(Tick{});
  for (uint64_t run : {first, second}) {
    EXPECT_EQ(core->GetRun(run)->state, RunState::kFailed);
    EXPECT_THAT(core->GetRun(run)->reason, HasSubstr("needs 2 worker processes, 1 is free (1 connected)"));
  }
}

TEST_F(CoreTest, PlansOfManyRuns_AreBoundedInBytes) {
  options.plan_bytes = 3 * Plan()->bytes;
  core = std::make_unique<CoordinatorCore>(options);
  for (int i = 0; i < 3; ++i) Submit();
  Do(SubmitRun{1, "", Plan(), "{}", 2, ""});
  EXPECT_EQ(replies.back().status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(replies.back().status.message()), HasSubstr("3 runs that have not ended"));
  Do(CancelRun{0, 1, ""});
  Submit();
}

TEST_F(CoreTest, AddressesOfManyProcesses_AreBoundedInBytes) {
  options.peer_bytes = 150;
  core = std::make_unique<CoordinatorCore>(options);
  Join(1);
  Join(2);
  const uint64_t run = Submit();
  EXPECT_EQ(core->GetRun(run)->state, RunState::kFailed);
  EXPECT_THAT(core->GetRun(run)->reason, HasSubstr("each of its 2 processes would be sent the addresses"));
  EXPECT_EQ(core->probe().workers_free, 2);
}

TEST_F(CoreTest, FixedWorkers_OneDiesBeforeItConnects_WaitingRunFails) {
  options.fixed_workers = true;
  core = std::make_unique<CoordinatorCore>(options);
  Join(1);
  Submit(2);
  Do(WorkerExited{4711, "exited with code 1: no GPU"});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, HasSubstr("pid 4711"));
  EXPECT_THAT(run_info.reason, HasSubstr("no GPU"));
}

TEST_F(CoreTest, Hello_TakenNameOrNumber_IsRefused) {
  Join(1, "a", 0);
  Join(2, "a");
  EXPECT_EQ(closed[2].code(), absl::StatusCode::kAlreadyExists);
  Join(3, "b", 0);
  EXPECT_EQ(closed[3].code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(closed[3].message()), HasSubstr("process number 0 is taken"));
  Join(4, "c");
  EXPECT_EQ(Heard<Welcome>(4)->process, 1);
  EXPECT_EQ(core->probe().workers_free, 2);
}

TEST_F(CoreTest, Hello_OfARestartedWorker_ReplacesTheBrokenOne) {
  Join(1, "a");
  Do(SessionBroken{1, "reset"});
  Join(2, "a");
  EXPECT_EQ(Heard<Welcome>(2)->process, 0);
  EXPECT_EQ(closed.count(1), 1u);
  EXPECT_EQ(core->probe().workers_free, 1);
}

TEST_F(CoreTest, Session_WithoutHello_IsClosed) {
  Do(SessionOpened{1});
  Say(1, Prepared{1});
  EXPECT_EQ(closed[1].code(), absl::StatusCode::kFailedPrecondition);
  Do(SessionOpened{2});
  now += options.hello_ns;
  Do(Tick{});
  EXPECT_EQ(closed[2].code(), absl::StatusCode::kDeadlineExceeded);
  Join(3);
  Say(3, Hello{"again", "h", 1, -1, ""});
  EXPECT_EQ(closed[3].code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CoreTest, IdleWorkerLeaves_NothingFails) {
  Join(1);
  Do(SessionClosed{1, "it said goodbye"});
  EXPECT_EQ(changes.back().kind, WorkerChange::Kind::kExited);
  EXPECT_EQ(core->probe().workers_free, 0);
  EXPECT_EQ(core->probe().workers_lost, 0u);
}

TEST_F(CoreTest, RunWithAFolder_FinishesWhenItsCheckpointIsSealed) {
  const uint64_t run = Running(4, "out");
  EXPECT_EQ(Heard<SealCheckpoint>(1)->step, 0) << "the initial weights are written to be prepared";
  EndAll(run);
  for (const SessionId s : {1, 2}) EXPECT_EQ(Heard<TakeSnapshot>(s)->step, 2);
  Say(1, SnapshotSaved{run, 2, ""});
  EXPECT_FALSE(Heard<SealCheckpoint>(1).has_value()) << "the other process has not saved it";
  Say(2, CheckpointSealed{run, 2, ""});
  EXPECT_EQ(core->probe().fenced, 1u) << "nobody asked that process";
  Say(2, SnapshotSaved{run, 2, ""});
  EXPECT_FALSE(Heard<SealCheckpoint>(1).has_value()) << "that of step 0 is still under way";
  Say(1, CheckpointSealed{run, 0, ""});
  const std::optional<SealCheckpoint> seal = Heard<SealCheckpoint>(1);
  ASSERT_TRUE(seal.has_value());
  EXPECT_EQ(seal->step, 2);
  EXPECT_FALSE(seal->drop);
  EXPECT_FALSE(Heard<Finish>(1).has_value());
  Say(1, CheckpointSealed{run, 2, ""});
  EXPECT_EQ(run_info.checkpoint_step, 2);
  for (const SessionId s : {1, 2}) {
    EXPECT_TRUE(Heard<Finish>(s).has_value());
    Say(s, Finished{run, {}});
  }
  EXPECT_EQ(run_info.state, RunState::kFinished);
}

TEST_F(CoreTest, LastCheckpointThatCannotBeSaved_FailsTheRunWithTheCause) {
  const uint64_t run = Running(4, "out");
  Say(1, CheckpointSealed{run, 0, ""});
  EndAll(run);
  Say(1, SnapshotSaved{run, 2, "cannot write stage01: No space left on device"});
  Say(2, SnapshotSaved{run, 2, ""});
  Heard<SealCheckpoint>(1);
  EXPECT_TRUE(Heard<SealCheckpoint>(1)->drop);
  Say(1, CheckpointSealed{run, 2, "it was dropped"});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, ::testing::AllOf(HasSubstr("the checkpoint of step 2 was not saved"),
                                                HasSubstr("process 0"), HasSubstr("No space left")));
}

// ---- losses

TEST_F(CoreTest, LostProcess_RunBeginsAgainOnTheOtherFromTheCheckpoint) {
  restarts = checkpoint_every = 1;
  const uint64_t run = Running(4, "out");
  Say(1, CheckpointSealed{run, 0, ""});
  EndAll(run);  // of step 0; step 1 waits for the snapshot
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 1, ""});
  Say(1, CheckpointSealed{run, 1, ""});
  EXPECT_EQ(run_info.checkpoint_step, 1);
  EndAll(run);
  const size_t steps_before = steps.size();
  const Token before = lease[1].token;
  Do(WorkerExited{102, "killed by signal 9"});
  EXPECT_EQ(run_info.state, RunState::kWaiting);
  EXPECT_EQ(run_info.restarts, 1);
  EXPECT_THAT(run_info.restart_reason,
              ::testing::AllOf(HasSubstr("pid 102 on host h) was lost: killed by signal 9"),
                               HasSubstr("goes on from its checkpoint of step 1")));
  EXPECT_TRUE(Heard<Abort>(1).has_value());
  EXPECT_FALSE(Heard<Assign>(1).has_value()) << "it has not forgotten the attempt";
  Say(1, Forgotten{run});
  const Assign assign = *Heard<Assign>(1);
  EXPECT_EQ(assign.spec, "out/checkpoint-1 from step 1");
  EXPECT_EQ(assign.process_of_rank, (std::vector<int32_t>{0, 0}));
  ASSERT_EQ(assign.leases.size(), 2u);
  EXPECT_GT(assign.leases[0].token, before);
  sent[1].clear();
  Say(1, Prepared{run});
  for (const RankLease& l : assign.leases) Say(1, Credit{run, l.rank, l.token, 8});
  EXPECT_FALSE(Heard<SealCheckpoint>(1).has_value()) << "the initial weights are there";
  while (const auto grant = Heard<Grant>(1)) {
    for (const Job& job : grant->jobs) EXPECT_EQ(job.step, 1);
    Completions m{run, grant->rank, grant->token, {}};
    for (const Job& j : grant->jobs)
      m.jobs.push_back({j, now, now + 1, 0.5, j.kind == JobKind::kForward && j.stage == 1});
    Say(1, std::move(m));
  }
  EXPECT_EQ(run_info.state, RunState::kFinishing);
  ASSERT_EQ(steps.size(), 2u) << "each step is reported once, of " << steps_before << " before the loss";
  EXPECT_EQ(Restarts(), (std::map<std::string, uint64_t>{{"process_lost", 1}}));
}

// ---- times and counts for the metrics

TEST_F(CoreTest, RunThatWaitsForWorkers_CountsItsWaitOnceItRuns) {
  Submit();
  now += 3 * kSecond;
  EXPECT_EQ(core->probe().queue_wait.total(), 0u);
  for (const SessionId s : {1, 2}) Join(s);
  for (const SessionId s : {1, 2}) Say(s, Prepared{1});
  EXPECT_EQ(core->probe().queue_wait.total(), 1u);
  EXPECT_EQ(core->probe().queue_wait.sum_ns, 3 * kSecond);
}

TEST_F(CoreTest, RunRuns_ItsTimeAndItsWaitForAStepAreMeasured) {
  EXPECT_EQ(core->probe().running_since_ns, 0);
  const uint64_t run = Running();
  now += 5 * kSecond;
  Do(Tick{});
  EXPECT_EQ(core->probe().running_ns, 5 * kSecond);
  EXPECT_EQ(core->probe().step_wait_ns, 5 * kSecond);
  EXPECT_EQ(core->probe().running_since_ns, now);
  EndAll(run);
  EXPECT_EQ(core->probe().step_wait_ns, 0) << "its steps have ended";
  now += 7 * kSecond;
  Do(Tick{});
  EXPECT_EQ(core->probe().running_ns, 5 * kSecond) << "it only finishes";
  EXPECT_EQ(core->probe().running_since_ns, 0);
}

TEST_F(CoreTest, CheckpointsOnTheWay_CountTheirTimesAndFailures) {
  checkpoint_every = 1;
  const uint64_t run = Running(4, "out");
  const int64_t begun = now;
  now += kSecond;
  Say(1, CheckpointSealed{run, 0, ""});
  EXPECT_EQ(core->probe().checkpoints.total(), 1u);
  EXPECT_EQ(core->probe().checkpoints.sum_ns, now - begun);
  EndFirstStep(run);
  EXPECT_EQ(core->GetRun(run)->steps_done, 1);
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 1, s == 2 ? "no space left" : ""});
  Say(1, CheckpointSealed{run, 1, "it was dropped"});
  EXPECT_EQ(core->probe().failed_checkpoints, 1u);
  EXPECT_EQ(core->probe().checkpoints.total(), 1u);
}

// Runs on two sessions each, whose steps end and whose snapshots are saved one after the other.
class LateCheckpointTest : public CoreTest {
 protected:
  static constexpr int64_t kMinute = 60 * kSecond;

  // The processes report nothing between the ends of jobs, which may be long apart.
  LateCheckpointTest() {
    options.lease_ns = options.progress_ns = 10'000 * kMinute;
    core = std::make_unique<CoordinatorCore>(options);
  }

  struct Trained {
    uint64_t run = 0;
    SessionId first = 0;  // the session of its first process; the next number is the other's
    int32_t steps = 0;    // steps that have ended
  };
  Trained Train(SessionId first) {
    Trained t{0, first};
    Join(first);
    Join(first + 1);
    t.run = Submit(2, 2, absl::StrCat("out-", first));
    for (SessionId s = first; s <= first + 1; ++s) {
      lease[s] = Heard<Assign>(s)->leases.at(0);
      Say(s, Prepared{t.run});
    }
    for (SessionId s = first; s <= first + 1; ++s) Say(s, Credit{t.run, lease[s].rank, lease[s].token, 4});
    Save(t);
    return t;
  }
  // Ends the run's next step, and nothing of later ones.
  void EndStep(Trained* t) {
    for (bool any = true; any;) {
      any = false;
      for (SessionId s = t->first; s <= t->first + 1; ++s) {
        while (auto grant = Heard<Grant>(s))
          granted[s].insert(granted[s].end(), grant->jobs.begin(), grant->jobs.end());
        std::vector<Job> ended;
        std::erase_if(granted[s], [&](const Job& job) {
          if (job.step <= t->steps) ended.push_back(job);
          return job.step <= t->steps;
        });
        any |= !ended.empty();
        if (!ended.empty()) Say(s, Complete(s, t->run, ended));
      }
    }
    ASSERT_EQ(core->GetRun(t->run)->steps_done, ++t->steps);
  }
  // Saves the snapshots that were announced and whose steps have ended, or fails to.
  void Save(const Trained& t, const std::string& failure = "") {
    for (SessionId s = t.first; s <= t.first + 1; ++s) {
      while (auto snapshot = Heard<TakeSnapshot>(s)) Say(s, SnapshotSaved{t.run, snapshot->step, failure});
    }
    while (auto seal = Heard<SealCheckpoint>(t.first))
      Say(t.first, CheckpointSealed{t.run, seal->step, failure});
  }
  int64_t Overdue() {
    Do(Tick{});
    return core->probe().checkpoint_overdue_ns;
  }

  std::map<SessionId, std::vector<Job>> granted;  // jobs that have not been ended
};

TEST_F(LateCheckpointTest, RunsOfDifferentIntervals_EachIsJudgedByItsOwn) {
  run_steps = 100;
  checkpoint_every_ns = 120 * kMinute;
  Trained rare = Train(1);
  const int64_t rare_saved = now;
  now += 50 * kMinute;
  EndStep(&rare);
  EXPECT_EQ(Overdue(), 0);
  checkpoint_every_ns = 0;
  checkpoint_every = 1;
  Trained frequent = Train(3);
  const int64_t frequent_saved = now;
  for (int i = 0; i < 2; ++i) {
    now += kSecond;
    EndStep(&frequent);
    Save(frequent, "no space left");
    EXPECT_EQ(Overdue(), 0) << "the age of the other run's checkpoint does not count";
  }
  EndStep(&frequent);
  EXPECT_EQ(Overdue(), now - frequent_saved) << "it is behind by three intervals, for two seconds";
  now += 15 * kMinute;
  EXPECT_EQ(Overdue(), now - frequent_saved);
  Save(frequent);
  EXPECT_EQ(Overdue(), 0);
  for (int i = 0; i < 10; ++i) EndStep(&rare);
  EXPECT_EQ(Overdue(), 0) << "its interval has not passed";
  now = rare_saved + 240 * kMinute + 2;
  EXPECT_EQ(Overdue(), now - rare_saved);
}

TEST_F(LateCheckpointTest, StepsLongerThanTheInterval_AreNoDelay) {
  run_steps = 100;
  checkpoint_every_ns = 10 * kMinute;
  Trained slow = Train(1);
  int64_t saved = now;
  int complete = core->GetRun(slow.run)->checkpoint_step;
  for (int i = 0; i < 20; ++i) {
    now += 20 * kMinute;
    Do(Tick{});
    EndStep(&slow);
    EXPECT_EQ(Overdue(), 0) << "after step " << slow.steps;
    Save(slow);
    EXPECT_EQ(Overdue(), 0) << "after step " << slow.steps;
    const int newest = core->GetRun(slow.run)->checkpoint_step;
    if (newest > complete) saved = now;
    complete = newest;
  }
  ASSERT_GT(complete, 10) << "checkpoints were saved on the way";
  for (int i = 0; i < 10; ++i) {
    now += 20 * kMinute;
    Do(Tick{});
    EndStep(&slow);
    Save(slow, "no space left");
  }
  EXPECT_EQ(Overdue(), now - saved) << "none was saved any more";
}

class DamagedCheckpointTest : public CoreTest {
 protected:
  // Loses a process behind the checkpoint of step 1, so that an attempt begins there on the other one.
  uint64_t BeganAgain() {
    restarts = checkpoint_every = 1;
    const uint64_t run = Running(4, "out");
    Say(1, CheckpointSealed{run, 0, ""});
    EndAll(run);
    for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 1, ""});
    Say(1, CheckpointSealed{run, 1, ""});
    Do(WorkerExited{102, "killed by signal 9"});
    Say(1, Forgotten{run});
    EXPECT_EQ(Heard<Assign>(1)->spec, "out/checkpoint-1 from step 1");
    Heard<Abort>(1);
    return run;
  }
};

TEST_F(DamagedCheckpointTest, OfTheAttempt_IsLeftOutAndTheRunGoesOnFromTheOneBefore) {
  const uint64_t run = BeganAgain();
  Say(1, Failed{run, "out/checkpoint-1/stage01.safetensors is damaged", -1, 1});
  EXPECT_EQ(run_info.state, RunState::kWaiting) << "at once: no other process explains it";
  EXPECT_EQ(run_info.restarts, 2);
  EXPECT_EQ(run_info.checkpoint_step, 0);
  EXPECT_THAT(run_info.restart_reason,
              ::testing::AllOf(HasSubstr("failed: out/checkpoint-1/stage01.safetensors is damaged"),
                               HasSubstr("begins again with step 0")));
  EXPECT_TRUE(Heard<Abort>(1).has_value());
  Say(1, Forgotten{run});
  EXPECT_EQ(Heard<Assign>(1)->spec, "{}");
  EXPECT_EQ(Restarts(), (std::map<std::string, uint64_t>{{"damaged_checkpoint", 1}, {"process_lost", 1}}));
  // It was no loss of a process, of which the run may have one.
  Join(3);
  Do(WorkerExited{101, "killed by signal 9"});
  EXPECT_EQ(run_info.state, RunState::kFailed) << "two losses without a new step between";
  EXPECT_THAT(run_info.reason, HasSubstr("began again 1 time in a row"));
}

// A report about another checkpoint than the attempt's is a failure like any other.
TEST_F(DamagedCheckpointTest, OfAnotherStep_EndsTheRun) {
  const uint64_t run = BeganAgain();
  Say(1, Failed{run, "out/checkpoint-7 is damaged", -1, 7});
  EXPECT_EQ(run_info.state, RunState::kPreparing);
  now += options.blame_ns;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, HasSubstr("out/checkpoint-7 is damaged"));
}

TEST_F(DamagedCheckpointTest, AnotherCause_EndsTheRun) {
  const uint64_t run = BeganAgain();
  Say(1, Failed{run, "out of memory"});
  now += options.blame_ns;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFailed);
}

// A run that loses a process again begins with what is left, not with what is known as damaged.
TEST_F(DamagedCheckpointTest, AfterItAndAnotherLoss_IsNotTakenAgain) {
  const uint64_t run = BeganAgain();
  Say(1, Failed{run, "out/checkpoint-1/stage01.safetensors is damaged", -1, 1});
  Say(1, Forgotten{run});
  Heard<Assign>(1);
  Say(1, Failed{run, "out/checkpoint-1/stage01.safetensors is damaged", -1, 1});
  now += options.blame_ns;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFailed) << "the attempt does not read it";
}

// A run that goes on from it would leave out the report of a step.
TEST_F(CoreTest, CheckpointBeforeItsStepsAreReported_IsSealedBehindTheReport) {
  checkpoint_every = 1;
  const uint64_t run = Running(4, "out");
  Heard<SealCheckpoint>(1);
  Say(1, CheckpointSealed{run, 0, ""});
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 1, ""});
  EXPECT_FALSE(Heard<SealCheckpoint>(1).has_value()) << "no completion has come yet";
  EndAll(run);
  EXPECT_EQ(Heard<SealCheckpoint>(1)->step, 1);
}

TEST_F(CoreTest, LostProcess_AFreeWorkerTakesItsRanks) {
  restarts = 1;
  const uint64_t run = Running();
  Join(3);
  Do(WorkerExited{101, "killed by signal 9"});
  Say(2, Forgotten{run});
  EXPECT_EQ(Heard<Assign>(2)->leases.size(), 1u);
  EXPECT_EQ(Heard<Assign>(3)->spec, "{}") << "without a checkpoint it begins at the first step";
}

// The free workers are the same before and after the process is given up.
TEST_F(CoreTest, OnlyProcessBreaksBeforeItsEndIsTold_AFreeWorkerTakesItsRanks) {
  restarts = 1;
  for (const SessionId s : {1, 2}) Join(s);
  const uint64_t run = Submit(/*processes=*/1);
  ASSERT_TRUE(Heard<Assign>(1).has_value());
  Say(1, Prepared{run});
  Do(SessionBroken{1, "its connection broke"});
  Do(WorkerExited{101, "killed by signal 9"});
  EXPECT_TRUE(Heard<Assign>(2).has_value()) << core->GetRun(run)->reason;
}

// Before the first step there is nothing to save.
TEST_F(CoreTest, WorkerLeavesBeforeTheFirstStep_RunBeginsAgainOnTheOthers) {
  const uint64_t run = Running(4, "out");
  Say(2, Leaving{"SIGTERM"});
  EXPECT_EQ(run_info.state, RunState::kWaiting);
  EXPECT_EQ(run_info.restart_reason,
            "process 1 (worker-2, pid 102 on host h) leaves: SIGTERM; the run begins again with step 0");
  EXPECT_FALSE(Heard<Shutdown>(2).has_value()) << "it has not forgotten the run";
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  EXPECT_TRUE(Heard<Shutdown>(2).has_value());
  EXPECT_EQ(Heard<Assign>(1)->leases.size(), 2u) << "the process that is left has both ranks";
  Do(SessionClosed{2, "it said goodbye"});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kPreparing);
  EXPECT_EQ(core->GetRun(run)->restarts, 1);
  EXPECT_EQ(Restarts(), (std::map<std::string, uint64_t>{{"relocated", 1}})) << "nothing was lost";
  EXPECT_EQ(core->probe().workers_lost, 0u);
}

TEST_F(CoreTest, FreeWorkerLeaves_ItMayEndAtOnceAndGetsNoRun) {
  for (const SessionId s : {1, 2}) Join(s);
  Say(1, Leaving{"SIGTERM"});
  EXPECT_TRUE(Heard<Shutdown>(1).has_value());
  Submit(1, 1);
  EXPECT_FALSE(Heard<Assign>(1).has_value());
  EXPECT_TRUE(Heard<Assign>(2).has_value());
}

// ---- ranks that move (weft move)

// Two ranks each on two of three processes, of a run that keeps copies in memory.
class MoveTest : public CoreTest {
 protected:
  uint64_t SubmitFour(const std::string& output, int redundancy) {
    auto plan = std::make_shared<RunPlan>(*Plan(4, 4, 6));
    plan->redundancy = redundancy;
    plan->restarts = 3;
    plan->resumed_spec = [](const std::string& checkpoint, int32_t step) {
      return absl::StrCat(checkpoint, " from step ", step);
    };
    Do(SubmitRun{1, "", std::move(plan), "{}", processes, output});
    return replies.back().run;
  }
  // Prepares the processes that are assigned, and gives credit to their ranks.
  void Prepare(uint64_t run, const std::vector<SessionId>& sessions) {
    for (const SessionId s : sessions) {
      assigned[s] = *Heard<Assign>(s);
      sent[s].clear();
      Say(s, Prepared{run});
    }
    for (const SessionId s : sessions) {
      for (const RankLease& l : assigned[s].leases) Say(s, Credit{run, l.rank, l.token, 4});
    }
  }
  // Ends granted jobs until so many steps are done, or none is granted any more.
  void EndSteps(uint64_t run, int steps_done) {
    for (bool any = true; any && core->GetRun(run)->steps_done < steps_done;) {
      any = false;
      for (auto& [s, assign] : assigned) {
        if (core->GetRun(run)->steps_done >= steps_done) return;
        const auto grant = Heard<Grant>(s);
        if (!grant.has_value()) continue;
        any = true;
        Completions m{run, grant->rank, grant->token, {}};
        for (const Job& j : grant->jobs)
          m.jobs.push_back({j, now, now + 1, 0.5, j.kind == JobKind::kForward && j.stage == 3});
        Say(s, std::move(m));
      }
    }
  }
  // Both processes report the copies of the step: each keeps all parts.
  void KeepCopies(uint64_t run, int step) {
    CopiesHeld held{run, assigned[1].epoch, step, {}};
    for (int stage = 0; stage < 4; ++stage) held.parts.push_back({stage, 0});
    for (const SessionId s : {1, 2}) Say(s, held);
  }
  absl::Status Move(uint64_t run, const std::vector<Rank>& ranks, const std::string& worker) {
    Do(MoveRanks{7, run, ranks, worker, ""});
    EXPECT_EQ(replies.back().reply, 7u);
    return replies.back().status;
  }
  uint64_t RunningOfFour(const std::string& output, int redundancy) {
    for (const SessionId s : {1, 2, 3}) Join(s);
    const uint64_t run = SubmitFour(output, redundancy);
    Prepare(run, {1, 2});
    return run;
  }

  int processes = 2;
  std::map<SessionId, Assign> assigned;
};

TEST_F(MoveTest, RankMoves_BehindCopiesWithoutACheckpoint) {
  const uint64_t run = RunningOfFour("", 1);
  EXPECT_EQ(core->GetRun(run)->member_of_rank, (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_TRUE(core->ListRuns().at(0).member_of_rank.empty()) << "lists have no members";
  EndSteps(run, 1);
  ASSERT_TRUE(Move(run, {1}, "worker-3").ok()) << replies.back().status;
  EXPECT_THAT(run_info.reason, HasSubstr("ranks move to process 2 (worker-3, "));
  EndSteps(run, 6);
  const int made = core->GetRun(run)->steps_done;
  EXPECT_LT(made, 6) << "later steps wait";
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning) << "the copies are awaited";
  KeepCopies(run, made);
  EXPECT_THAT(run_info.restart_reason, HasSubstr(absl::StrCat("from the copies of step ", made)));
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  const Assign assign = *Heard<Assign>(3);
  EXPECT_EQ(assign.process_of_rank, (std::vector<int32_t>{0, 2, 1, 1}));
  EXPECT_EQ(assign.kept.size(), 4u);
  EXPECT_EQ(assign.spec, absl::StrCat(" from step ", made));
  EXPECT_EQ(core->GetRun(run)->member_of_rank, (std::vector<int32_t>{0, 2, 1, 1}));
  EXPECT_EQ(Restarts(), (std::map<std::string, uint64_t>{{"relocated", 1}})) << "nothing was lost";
}

// The worker that has the first rank prepares to validate, and cancels that at the end of an attempt.
TEST_F(MoveTest, FirstRankMoves_ItsProcessCompletesTheCheckpoints) {
  const uint64_t run = RunningOfFour("out", 0);
  Say(1, CheckpointSealed{run, 0, ""});
  EndSteps(run, 1);
  ASSERT_TRUE(Move(run, {0}, "worker-3").ok()) << replies.back().status;
  EndSteps(run, 6);
  const int made = core->GetRun(run)->steps_done;
  ASSERT_LT(made, 6);
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, made, ""});
  Say(1, CheckpointSealed{run, made, ""});
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  Prepare(run, {1, 2, 3});
  EXPECT_EQ(assigned[3].process_of_rank, (std::vector<int32_t>{2, 0, 1, 1}));
  EndSteps(run, 6);
  for (const SessionId s : {1, 2, 3}) Say(s, SnapshotSaved{run, 6, ""});
  EXPECT_FALSE(Heard<SealCheckpoint>(1).has_value());
  EXPECT_TRUE(Heard<SealCheckpoint>(3).has_value());
  const uint64_t fenced = core->probe().fenced;
  Say(1, CheckpointSealed{run, 6, ""});
  EXPECT_EQ(core->probe().fenced, fenced + 1);
  Say(3, CheckpointSealed{run, 6, ""});
  EXPECT_EQ(core->GetRun(run)->checkpoint_step, 6);
}

// A process that keeps no rank leaves the run and does not come back by itself, though the run was submitted
// with more.
TEST_F(MoveTest, AllRanksOfAProcessMove_ItIsFreeAndStaysSo) {
  const uint64_t run = RunningOfFour("", 1);
  EndSteps(run, 1);
  ASSERT_TRUE(Move(run, {0, 1}, "1").ok()) << replies.back().status;
  EndSteps(run, 6);
  KeepCopies(run, core->GetRun(run)->steps_done);
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  EXPECT_FALSE(Heard<Assign>(1).has_value());
  EXPECT_FALSE(Heard<Assign>(3).has_value());
  Prepare(run, {2});
  EXPECT_EQ(assigned[2].leases.size(), 4u);
  for (int i = 0; i < 100; ++i) {
    now += kSecond;
    Say(2, Report{run, {}});
  }
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
  EXPECT_EQ(core->GetRun(run)->reason, "");
  EXPECT_EQ(core->GetWorker(now, "worker-1")->state, "free");
}

// Copies that the two processes keep for each other would leave with them.
TEST_F(MoveTest, TwoProcessesLeaveWithTheirRanks_StopsBehindACheckpoint) {
  const uint64_t run = RunningOfFour("out", 1);
  Say(1, CheckpointSealed{run, 0, ""});
  EndSteps(run, 1);
  KeepCopies(run, 1);
  ASSERT_TRUE(Move(run, {0, 1, 2, 3}, "worker-3").ok()) << replies.back().status;
  EXPECT_TRUE(Heard<TakeSnapshot>(1).has_value());
  EndSteps(run, 6);
  const int made = core->GetRun(run)->steps_done;
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, made, ""});
  Say(1, CheckpointSealed{run, made, ""});
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  EXPECT_EQ(Heard<Assign>(3)->spec, absl::StrCat("out/checkpoint-", made, " from step ", made));
}

// Until the run has stopped, no other run gets the process to which ranks are ordered.
TEST_F(MoveTest, AnotherRunIsSubmittedMeanwhile_ItDoesNotGetTheProcess) {
  const uint64_t run = RunningOfFour("", 1);
  EndSteps(run, 1);
  ASSERT_TRUE(Move(run, {3}, "worker-3").ok()) << replies.back().status;
  const uint64_t other = Submit(1, 1);
  EXPECT_EQ(core->GetRun(other)->state, RunState::kWaiting);
  EndSteps(run, 6);
  KeepCopies(run, core->GetRun(run)->steps_done);
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kPreparing);
  EXPECT_EQ(core->GetRun(run)->member_of_rank, (std::vector<int32_t>{0, 0, 1, 2}));
  EXPECT_EQ(core->GetRun(other)->state, RunState::kWaiting);
}

TEST_F(MoveTest, ProcessOfTheOrderIsLost_RunGoesOnWithoutIt) {
  const uint64_t run = RunningOfFour("", 1);
  EndSteps(run, 1);
  ASSERT_TRUE(Move(run, {3}, "worker-3").ok()) << replies.back().status;
  Do(WorkerExited{103, "killed by signal 9"});
  EndSteps(run, 6);
  KeepCopies(run, core->GetRun(run)->steps_done);
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kPreparing);
  EXPECT_EQ(core->GetRun(run)->member_of_rank, (std::vector<int32_t>{0, 0, 1, 1}));
}

// Four ranks on three processes, of which one is lost. The run saves no checkpoints.
class ExpandFromCopiesTest : public MoveTest {
 protected:
  // Begins, makes a step of which all parts are kept twice, and loses the third process. Returns the run,
  // which goes on with two.
  uint64_t RunningWithTwoOfThree() {
    options.expand_ns = kSecond;
    core = std::make_unique<CoordinatorCore>(options);
    for (const SessionId s : {1, 2, 3}) Join(s);
    processes = 3;
    const uint64_t run = SubmitFour("", 1);
    Prepare(run, {1, 2, 3});
    EndSteps(run, 1);
    KeepCopies(run, 1);
    Do(WorkerExited{103, "killed by signal 9"});
    assigned.clear();
    for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
    Prepare(run, {1, 2});
    EXPECT_EQ(core->GetRun(run)->member_of_rank, (std::vector<int32_t>{0, 0, 1, 1}));
    EXPECT_THAT(core->GetRun(run)->restart_reason, HasSubstr("from the copies of step 1"));
    return run;
  }
};

TEST_F(ExpandFromCopiesTest, WorkerIsFree_RunTakesItInBehindCopies) {
  const uint64_t run = RunningWithTwoOfThree();
  now += kSecond;
  Join(4);
  EXPECT_EQ(core->GetRun(run)->reason, "") << "it has made no step yet";
  EndSteps(run, 2);
  Do(Tick{});
  EXPECT_THAT(core->GetRun(run)->reason, HasSubstr("(worker-4, pid 104 on host h) is free to take part"));
  EndSteps(run, 6);
  const int made = core->GetRun(run)->steps_done;
  EXPECT_LT(made, 6) << "later steps wait";
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning) << "the copies are awaited";
  KeepCopies(run, made);
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  const std::optional<Assign> assign = Heard<Assign>(4);
  ASSERT_TRUE(assign.has_value());
  EXPECT_EQ(assign->peers.size(), 3u);
  EXPECT_EQ(assign->kept.size(), 4u);
  EXPECT_EQ(assign->spec, absl::StrCat(" from step ", made)) << "no step is made again";
  EXPECT_EQ(Restarts(), (std::map<std::string, uint64_t>{{"process_lost", 1}, {"relocated", 1}}));
}

// A process alone has nobody to keep copies: to go on with more it would begin at the first step.
TEST_F(ExpandFromCopiesTest, OneProcessIsLeft_RunTakesNobodyIn) {
  const uint64_t run = RunningWithTwoOfThree();
  EndSteps(run, 2);
  KeepCopies(run, 2);
  Do(WorkerExited{102, "killed by signal 9"});
  assigned.clear();
  Say(1, Forgotten{run});
  Prepare(run, {1});
  EndSteps(run, 3);
  Join(4);
  now += 10 * kSecond;
  Do(Tick{});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
  EXPECT_EQ(core->GetRun(run)->reason, "");
  EXPECT_EQ(core->GetWorker(now, "worker-4")->state, "free");
}

// The end comes first.
TEST_F(ExpandFromCopiesTest, WorkerIsFreeInTheLastStep_RunFinishesWithoutIt) {
  const uint64_t run = RunningWithTwoOfThree();
  for (int step = 2; step <= 5; ++step) {
    EndSteps(run, step);
    KeepCopies(run, step);
  }
  EndSteps(run, 6);
  Join(4);
  now += kSecond;
  Do(Tick{});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kFinishing);
  EXPECT_EQ(core->GetRun(run)->restarts, 1);
}

TEST_F(MoveTest, OrdersThatCannotBeCarriedOut_SayWhyAndChangeNothing) {
  using absl::StatusCode;
  const uint64_t run = RunningOfFour("", 0);
  EXPECT_EQ(Move(99, {0}, "worker-3").code(), StatusCode::kNotFound);
  EXPECT_EQ(Move(run, {0}, "worker-9").code(), StatusCode::kNotFound);
  EXPECT_EQ(Move(run, {0}, "7").code(), StatusCode::kNotFound);
  EXPECT_EQ(Move(run, {4}, "worker-3").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Move(run, {}, "worker-3").code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Move(run, {0, 1}, "worker-1").ok()) << "they are there";
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
  const uint64_t other = Submit(1, 1);
  EXPECT_EQ(Move(run, {0}, "worker-3").code(), StatusCode::kAborted) << "it serves another run";
  EXPECT_THAT(std::string(replies.back().status.message()), HasSubstr(absl::StrCat("serves run ", other)));
  EndSteps(run, 1);
  EXPECT_EQ(Move(run, {0}, "worker-2").code(), StatusCode::kFailedPrecondition)
      << "with neither checkpoints nor copies steps would be made twice";
  EXPECT_EQ(core->GetRun(run)->restarts, 0);
  Do(CancelRun{2, run, "enough"});
  EXPECT_EQ(Move(run, {0}, "worker-2").code(), StatusCode::kFailedPrecondition) << "it has ended";
}

TEST_F(MoveTest, WorkerIsDrained_ItLeavesAsIfItHadAsked) {
  const uint64_t run = RunningOfFour("", 1);
  EndSteps(run, 1);
  Do(DrainWorker{8, "worker-9", ""});
  EXPECT_EQ(replies.back().status.code(), absl::StatusCode::kNotFound);
  Do(DrainWorker{9, "0", "its disk is old"});
  EXPECT_TRUE(replies.back().status.ok());
  EXPECT_EQ(core->GetWorker(now, "0")->state, "leaving");
  EXPECT_FALSE(Heard<Shutdown>(1).has_value()) << "its run goes on elsewhere first";
  EndSteps(run, 6);
  KeepCopies(run, core->GetRun(run)->steps_done);
  EXPECT_THAT(run_info.restart_reason, HasSubstr("(worker-1, pid 101 on host h) leaves: its disk is old"));
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  EXPECT_TRUE(Heard<Shutdown>(1).has_value());
  EXPECT_EQ(Heard<Assign>(3)->process_of_rank, (std::vector<int32_t>{1, 1, 2, 2}));
}

// ---- spans of a run

class SpansTest : public CoreTest {
 protected:
  SpansTest() { tells_spans = true; }
  bool IsAnswered() { return !replies.empty() && replies.back().reply == 8; }
};

TEST_F(SpansTest, Asked_AnsweredWhenEveryProcessHasTold) {
  const uint64_t run = Running();
  Do(AskSpans{8, run});
  for (const SessionId s : {1, 2}) EXPECT_EQ(Heard<TellSpans>(s)->run, run);
  Say(1, Spans{run, {}});
  EXPECT_FALSE(IsAnswered());
  Say(2, Spans{run, {}});
  EXPECT_TRUE(IsAnswered());
  EXPECT_TRUE(replies.back().status.ok());
  EXPECT_EQ(spans, 2u);
}

TEST_F(SpansTest, ProcessThatIsLostOrSilent_HoldsTheAnswerUpNoLonger) {
  const uint64_t run = Running();
  Do(AskSpans{8, run});
  Say(1, Spans{run, {}});
  EXPECT_EQ(core->next_deadline(), std::min(core->next_deadline(), now + SpanRequests::kPatienceNs));
  now += SpanRequests::kPatienceNs;
  Do(Tick{});
  EXPECT_TRUE(IsAnswered());
  Do(AskSpans{9, run});
  Say(1, Spans{run, {}});
  Do(SessionClosed{2, "it was killed"});
  EXPECT_EQ(replies.back().reply, 9u);
}

TEST_F(SpansTest, WorkersThatDoNotKnowTheQuestion_AreNotAsked) {
  tells_spans = false;
  const uint64_t run = Running();
  Do(AskSpans{8, run});
  for (const SessionId s : {1, 2}) EXPECT_FALSE(Heard<TellSpans>(s).has_value());
  EXPECT_TRUE(IsAnswered());
}

TEST_F(SpansTest, ToldOfAnotherRun_CountForNothing) {
  const uint64_t run = Running();
  Do(AskSpans{8, run});
  Say(1, Spans{run + 1, {}});
  Say(2, Spans{run, {}});
  EXPECT_FALSE(IsAnswered());
  EXPECT_EQ(spans, 1u);
  Do(AskSpans{9, run + 1});
  EXPECT_EQ(replies.back().status.code(), absl::StatusCode::kNotFound);
}

TEST_F(SpansTest, RunThatIsCancelled_AskedBeforeItIsForgottenAndCompleteWhenAllHaveTold) {
  const uint64_t run = Running();
  Do(CancelRun{8, run, "enough"});
  EXPECT_EQ(run_info.state, RunState::kCancelled) << "nobody waits for the processes";
  for (const SessionId s : {1, 2}) {
    while (!sent[s].empty() && !std::holds_alternative<TellSpans>(sent[s].front())) {
      EXPECT_FALSE(std::holds_alternative<Abort>(sent[s].front()));
      sent[s].pop_front();
    }
    EXPECT_TRUE(Heard<Abort>(s).has_value());
  }
  Say(1, Spans{run, {}});
  Say(1, Forgotten{run});
  EXPECT_TRUE(spans_complete.empty());
  Say(2, Spans{run, {}});
  EXPECT_EQ(spans_complete, std::vector<uint64_t>{run});
  EXPECT_EQ(spans, 2u);
  Say(2, Forgotten{run});
  EXPECT_EQ(core->probe().workers_free, 2);
}

TEST_F(SpansTest, RunThatFailsWithALostProcess_CompleteWhenTheOthersHaveForgottenIt) {
  const uint64_t run = Running();
  Do(SessionClosed{2, "it was killed"});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_FALSE(Heard<TellSpans>(2).has_value());
  EXPECT_TRUE(spans_complete.empty());
  Say(1, Forgotten{run});
  EXPECT_EQ(spans_complete, std::vector<uint64_t>{run}) << "it told none";
  Say(1, Spans{run, {}});
  EXPECT_EQ(spans, 0u);
}

TEST_F(SpansTest, RunThatIsCancelledWithASilentProcess_CompleteAfterASecond) {
  const uint64_t run = Running();
  Do(CancelRun{8, run, "enough"});
  Say(1, Spans{run, {}});
  now += SpanRequests::kLastPatienceNs - 1;
  Do(Tick{});
  EXPECT_TRUE(spans_complete.empty());
  now += 1;
  Do(Tick{});
  EXPECT_EQ(spans_complete, std::vector<uint64_t>{run});
}

TEST_F(SpansTest, RunThatEndsBeforeItHasProcesses_CompleteAtOnce) {
  const uint64_t run = Submit();
  Do(CancelRun{8, run, "enough"});
  EXPECT_EQ(spans_complete, std::vector<uint64_t>{run});
}

TEST_F(SpansTest, RunThatFinishes_NobodyIsAsked) {
  const uint64_t run = Running();
  EndAll(run);
  for (const SessionId s : {1, 2}) Say(s, Finished{run, {}});
  EXPECT_EQ(run_info.state, RunState::kFinished);
  for (const SessionId s : {1, 2}) EXPECT_FALSE(Heard<TellSpans>(s).has_value());
  EXPECT_TRUE(spans_complete.empty()) << "the last reports have them";
}

// ---- runs that go on under another schedule

class ReplanTest : public MoveTest {
 protected:
  // The same job graph by another name, which is what a run's specification would say.
  void Replan(uint64_t run, int32_t restarts = 0, int stages = 4) {
    auto plan = std::make_shared<RunPlan>(*Plan(stages, 4, 6));
    plan->schedule = "other";
    plan->restarts = 3;
    plan->resumed_spec = [](const std::string& checkpoint, int32_t step) {
      return absl::StrCat("other: ", checkpoint, " from step ", step);
    };
    Effects e =
        core->Step(now, ReplanRun{run, restarts, std::move(plan), "other", "{}", "rank 3 is slow", "links"});
    Take(std::move(e));
  }
  // Seals the checkpoint of the steps that are made, and lets both processes forget the attempt.
  void Stop(uint64_t run, int made) {
    for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, made, ""});
    Effects e = core->Step(now, SessionMessage{1, CheckpointSealed{run, made, ""}});
    for (const Replanned& r : e.replanned) replanned.push_back(r);
    Note(e);
    Take(std::move(e));
    for (const SessionId s : {1, 2}) Forget(s, run);
  }
  void Forget(SessionId session, uint64_t run) {
    Effects e = core->Step(now, SessionMessage{session, Forgotten{run}});
    Note(e);
    Take(std::move(e));
  }
  void Note(const Effects& e) {
    for (const AttemptRecord& a : e.records.attempts) {
      schedules.push_back(a.schedule);
      left_links.push_back(a.left_links);
    }
  }

  std::vector<Replanned> replanned;
  std::vector<std::string> schedules, left_links;  // of the attempts that were stored
};

TEST_F(ReplanTest, RunIsReplanned_GoesOnUnderTheOtherScheduleBehindACheckpoint) {
  const uint64_t run = RunningOfFour("out", 0);
  Say(1, CheckpointSealed{run, 0, ""});
  EndSteps(run, 1);
  Replan(run);
  EXPECT_EQ(core->GetRun(run)->reason, "rank 3 is slow");
  EXPECT_EQ(core->GetRun(run)->schedule, "gpipe") << "until it has stopped";
  EndSteps(run, 6);
  const int made = core->GetRun(run)->steps_done;
  EXPECT_LT(made, 6) << "it stops";
  Stop(run, made);
  ASSERT_EQ(replanned.size(), 1u);
  EXPECT_EQ(replanned[0].step, made);
  EXPECT_EQ(replanned[0].former, "gpipe");
  EXPECT_EQ(replanned[0].plan->schedule, "other");
  EXPECT_EQ(schedules, std::vector<std::string>{"{}"}) << "a coordinator that is started again finds it";
  EXPECT_EQ(left_links, std::vector<std::string>{"links"}) << "so it does those that the run has left";
  const RunInfo info = *core->GetRun(run);
  EXPECT_EQ(info.schedule, "other");
  EXPECT_EQ(info.restart_reason,
            absl::StrCat("rank 3 is slow; the run goes on from its checkpoint of step ", made));
  EXPECT_EQ(info.member_of_rank, (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(Heard<Assign>(1)->spec, absl::StrCat("other: out/checkpoint-", made, " from step ", made));
  EXPECT_FALSE(Heard<Assign>(3).has_value()) << "ranks stay where their speeds were measured";
}

TEST_F(ReplanTest, RunThatLosesAProcessLater_KeepsTheScheduleAndForgetsTheLinks) {
  const uint64_t run = RunningOfFour("out", 0);
  Say(1, CheckpointSealed{run, 0, ""});
  EndSteps(run, 1);
  Replan(run);
  EndSteps(run, 6);
  Stop(run, core->GetRun(run)->steps_done);
  Do(WorkerExited{102, "killed by signal 9"});
  Forget(1, run);
  EXPECT_EQ(core->GetRun(run)->schedule, "other");
  EXPECT_EQ(schedules, (std::vector<std::string>{"{}", "{}"}));
  EXPECT_EQ(left_links, (std::vector<std::string>{"links", ""})) << "its ranks have other links";
}

// A run that loses a process on the way keeps its schedule: the speeds are no longer those of its ranks.
TEST_F(ReplanTest, ProcessIsLostBeforeItHasStopped_RunKeepsItsSchedule) {
  const uint64_t run = RunningOfFour("out", 0);
  Say(1, CheckpointSealed{run, 0, ""});
  EndSteps(run, 1);
  Replan(run);
  Do(WorkerExited{102, "killed by signal 9"});
  Say(1, Forgotten{run});
  EXPECT_EQ(core->GetRun(run)->schedule, "gpipe");
  EXPECT_EQ(core->GetRun(run)->state, RunState::kPreparing);
  EXPECT_EQ(Heard<Assign>(1)->spec, "{}");
}

TEST_F(ReplanTest, RunThatCannotStopOrHasChangedSince_GoesOnAsItIs) {
  const auto expect_unchanged = [&](uint64_t run) {
    EXPECT_EQ(core->GetRun(run)->reason, "");
    EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
  };
  const uint64_t run = RunningOfFour("out", 0);
  Replan(run);
  expect_unchanged(run);  // it has made no step
  Say(1, CheckpointSealed{run, 0, ""});
  EndSteps(run, 1);
  Replan(run, /*restarts=*/1);
  expect_unchanged(run);
  Replan(run, 0, /*stages=*/2);  // that many ranks
  expect_unchanged(run);
  Replan(99);
  expect_unchanged(run);
}

// The process that is started in the place of a lost one is taken in when no work is lost by it.
TEST_F(CoreTest, RunWithFewerProcesses_TakesInAFreeOneBehindACheckpoint) {
  restarts = 1;
  options.expand_ns = kSecond;
  core = std::make_unique<CoordinatorCore>(options);
  const uint64_t run = Running(4, "out");
  Do(WorkerExited{102, "killed by signal 9"});
  Say(1, Forgotten{run});
  const Assign alone = *Heard<Assign>(1);
  ASSERT_EQ(alone.leases.size(), 2u);
  sent[1].clear();
  Say(1, Prepared{run});
  Say(1, CheckpointSealed{run, 0, ""});
  Join(3);
  for (const RankLease& l : alone.leases) Say(1, Credit{run, l.rank, l.token, 4});
  for (int jobs = 0; run_info.steps_done == 0 && jobs < 100; ++jobs) {
    const auto grant = Heard<Grant>(1);
    ASSERT_TRUE(grant.has_value());
    Completions m{run, grant->rank, grant->token, {}};
    for (const Job& j : grant->jobs)
      m.jobs.push_back({j, now, now + 1, 0.5, j.kind == JobKind::kForward && j.stage == 1});
    Say(1, std::move(m));
  }
  EXPECT_EQ(run_info.reason, "") << "the process may end again: it goes on for a while";
  now += kSecond;
  Do(Tick{});
  EXPECT_THAT(run_info.reason, HasSubstr("(worker-3, pid 103 on host h) is free to take part"));
  Say(1, Failed{run, "forward (..): the loss is nan", -1, -1, run_info.steps_done});
  EXPECT_THAT(run_info.restart_reason, HasSubstr("it is made once more")) << "it begins again anyway";
}

// A data link is no fault of the run: it may carry again, and other processes have other links.
TEST_F(CoreTest, LostLink_RunBeginsAgainOnOtherProcessesWhereSomeAreFree) {
  restarts = 1;
  const uint64_t run = Running();
  for (const SessionId s : {3, 4}) Join(s);
  Say(2, Failed{run, "process 0 is lost: its data link carries nothing", 0});
  now += options.blame_ns;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kPreparing);
  EXPECT_THAT(run_info.restart_reason, HasSubstr("its data link carries nothing; the run begins again"));
  for (const SessionId s : {1, 2}) EXPECT_TRUE(Heard<Abort>(s).has_value());
  for (const SessionId s : {1, 2}) EXPECT_FALSE(Heard<Assign>(s).has_value()) << "either may be at fault";
  for (const SessionId s : {3, 4}) EXPECT_TRUE(Heard<Assign>(s).has_value());
  EXPECT_EQ(Restarts(), (std::map<std::string, uint64_t>{{"link_lost", 1}}));
  EXPECT_EQ(core->probe().workers_chosen_last, 2);
}

TEST_F(CoreTest, LostLinkOfTheOnlyProcesses_RunBeginsAgainOnThem) {
  restarts = 1;
  const uint64_t run = Running();
  Say(2, Failed{run, "process 0 is lost: its data link carries nothing", 0});
  now += options.blame_ns;
  Do(Tick{});
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  for (const SessionId s : {1, 2}) EXPECT_TRUE(Heard<Assign>(s).has_value());
}

TEST_F(CoreTest, LostProcesses_WithoutANewStep_FailTheRunWithAllThatIsKnown) {
  restarts = 2;
  Join(1);
  const uint64_t run = Submit(1, 1);
  for (SessionId s = 1; s <= 3; ++s) {
    Join(s + 1);
    EXPECT_EQ(run_info.state, RunState::kPreparing);
    Do(WorkerExited{static_cast<int64_t>(100 + s), "killed by signal 11"});
  }
  EXPECT_EQ(core->GetRun(run)->state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, ::testing::AllOf(HasSubstr("pid 103"), HasSubstr("killed by signal 11"),
                                                HasSubstr("before, the run began again 2 times in a row")));
}

// Each process that takes the run dies with its first job in hand.
class PoisonTest : public CoreTest {
 protected:
  PoisonTest() { restarts = 10; }
  // Lets the process of a new session begin an attempt of the run, with one job of rank 0 in hand.
  void Begin(uint64_t run, SessionId s) {
    Join(s);
    lease[s] = Heard<Assign>(s)->leases[0];
    Say(s, Prepared{run});
    Say(s, Credit{run, lease[s].rank, lease[s].token, 1});
  }
  void Die(SessionId s) {
    Do(WorkerExited{static_cast<int64_t>(100 + s), "killed by signal 11", "it wrote this"});
  }
};

TEST_F(PoisonTest, JobThatEndsThreeProcesses_FailsItsRunAlone) {
  const uint64_t other = Submit(1);
  Begin(other, 9);
  const uint64_t run = Submit(1);
  for (const SessionId s : {1, 2, 3}) {
    EXPECT_FALSE(IsFinal(core->GetRun(run)->state));
    Begin(run, s);
    Die(s);
  }
  EXPECT_EQ(core->GetRun(run)->state, RunState::kFailed);
  EXPECT_THAT(
      core->GetRun(run)->reason,
      ::testing::AllOf(HasSubstr("quarantined: 3 processes in a row"), HasSubstr("forward (step 0, stage 0"),
                       HasSubstr("pid 101"), HasSubstr("pid 102"), HasSubstr("pid 103"),
                       HasSubstr("killed by signal 11 (before that it wrote: it wrote this)")));
  EXPECT_EQ(core->probe().jobs_quarantined, 1u);
  EXPECT_EQ(core->GetRun(other)->state, RunState::kRunning);
}

TEST_F(PoisonTest, JobIsDoneInBetween_RunGoesOn) {
  const uint64_t run = Submit(1);
  for (const SessionId s : {1, 2, 3, 4}) {
    Begin(run, s);
    if (s == 3) Say(s, Complete(s, run, {Job::Compute(0, 0, 0, JobKind::kForward)}));
    Die(s);
  }
  EXPECT_EQ(core->GetRun(run)->state, RunState::kWaiting);
}

// Processes that die before they have begun had no job in hand.
TEST_F(PoisonTest, ProcessesLostWhileTheyPrepare_AccuseNoJob) {
  const uint64_t run = Submit(1);
  for (const SessionId s : {1, 2, 3, 4}) {
    Join(s);
    Die(s);
  }
  EXPECT_EQ(core->GetRun(run)->state, RunState::kWaiting);
}

TEST_F(CoreTest, NumberThatIsNotFinite_StepIsMadeOnceMoreAndThenFailsTheRun) {
  restarts = 1;
  uint64_t run = Running();
  for (const int32_t step : {0, 1}) {
    Say(2, Failed{run, "forward (..): the loss is nan", -1, -1, step});
    EXPECT_EQ(run_info.state, RunState::kWaiting) << "each step is made once more, and it is no loss";
    EXPECT_THAT(run_info.restart_reason,
                HasSubstr("no stage keeps the step's update, and it is made once more"));
    for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
    for (const SessionId s : {1, 2}) {
      lease[s] = Heard<Assign>(s)->leases[0];
      Say(s, Prepared{run});
    }
  }
  Say(2, Failed{run, "forward (..): the loss is nan", -1, -1, 1});
  now += options.blame_ns;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, HasSubstr("the loss is nan; the step was made twice"));
  EXPECT_EQ(run_info.non_finite_steps, 3);
  EXPECT_EQ(core->probe().non_finite_steps, 3u);
  EXPECT_EQ(Restarts(), (std::map<std::string, uint64_t>{{"non_finite", 2}}));
}

TEST_F(CoreTest, NumberThatIsNotFinite_WithoutRestarts_FailsTheRun) {
  const uint64_t run = Running();
  Say(2, Failed{run, "forward (..): the loss is nan", -1, -1, 0});
  now += options.blame_ns;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFailed);
}

// The next attempt looks at the micro-batches of that step.
TEST_F(CoreTest, StepThatIsMadeOnceMore_IsExamined) {
  restarts = 1;
  Join(1);
  const uint64_t run = Submit(1);
  EXPECT_EQ(Heard<Assign>(1)->examined_step, -1);
  Say(1, Failed{run, "update (..): the gradient is not finite", -1, -1, 1});
  Say(1, Forgotten{run});
  EXPECT_EQ(Heard<Assign>(1)->examined_step, 1);
}

TEST_F(CoreTest, LastProcessLost_RunWaitsForAnother) {
  restarts = 1;
  Join(1);
  Submit(1, 1);
  Do(WorkerExited{101, "killed by signal 9"});
  EXPECT_EQ(run_info.state, RunState::kWaiting);
  EXPECT_THAT(run_info.reason, HasSubstr("needs 1 worker process, 0 are free"));
  EXPECT_EQ(core->next_deadline(), now + options.waiting_ns);
  Join(2);
  EXPECT_EQ(run_info.state, RunState::kPreparing);
}

// Messages of the attempt that is over change nothing.
TEST_F(CoreTest, MessagesOfAFormerAttempt_AreFenced) {
  restarts = 1;
  const uint64_t run = Running();
  const Grant grant = *Heard<Grant>(1);
  Do(WorkerExited{102, "killed by signal 9"});
  Say(1, Complete(1, run, grant.jobs));
  Say(1, Forgotten{run});
  EXPECT_TRUE(Heard<Assign>(1).has_value());
  const uint64_t fenced = core->probe().fenced;
  Say(1, Complete(1, run, grant.jobs));
  EXPECT_EQ(core->probe().fenced, fenced + 1);
  EXPECT_EQ(core->GetRun(run)->state, RunState::kPreparing);
}

TEST_F(CoreTest, ProcessLostBehindTheLastStep_RunIsFinished) {
  const uint64_t run = Running();
  EndAll(run);
  EXPECT_EQ(run_info.state, RunState::kFinishing);
  Do(WorkerExited{102, "killed by signal 9"});
  EXPECT_EQ(run_info.state, RunState::kFinishing);
  Say(1, Finished{run, {}});
  EXPECT_EQ(run_info.state, RunState::kFinished);
}

// A process that is stopped, or whose peer is lost, may report that before it is lost itself. `link_to`: the
// process to which its link broke.
class FailureBehindTheLastCheckpoint : public CoreTest, public ::testing::WithParamInterface<int> {
 protected:
  FailureBehindTheLastCheckpoint() { validate_every = 2; }
};

TEST_P(FailureBehindTheLastCheckpoint, RunIsFinishedAndItsProcessIsFreed) {
  const uint64_t run = Running(4, "out");
  Say(1, CheckpointSealed{run, 0, ""});
  EndAll(run);
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 2, ""});
  Say(1, CheckpointSealed{run, 2, ""});
  Say(2, Failed{run, "it was stopped by SIGTERM", GetParam()});
  now += 10 * kSecond;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFinishing) << "its validation goes on";
  Say(1, Validation{run, 2, 8, 8, 0.75, {{"accuracy", 0.5}}});
  ASSERT_TRUE(Heard<Finish>(1).has_value());
  Say(1, Finished{run, {}});
  EXPECT_EQ(run_info.state, RunState::kFinished);
  EXPECT_EQ(run_info.restarts, 0);
  EXPECT_TRUE(run_info.validation_failure.empty()) << run_info.validation_failure;
  EXPECT_TRUE(Heard<Abort>(2).has_value()) << "it waits to be told";
}

// The report comes before the seal, and its cause is still sought when the checkpoint is complete.
TEST_P(FailureBehindTheLastCheckpoint, ReportedBeforeIt_RunIsFinishedToo) {
  const uint64_t run = Running(4, "out");
  Say(1, CheckpointSealed{run, 0, ""});
  EndAll(run);
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 2, ""});
  Say(2, Failed{run, "it was stopped by SIGTERM", GetParam()});
  Say(1, CheckpointSealed{run, 2, ""});
  now += 10 * kSecond;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFinishing) << run_info.reason;
  Say(1, Validation{run, 2, 8, 8, 0.75, {{"accuracy", 0.5}}});
  Say(1, Finished{run, {}});
  EXPECT_EQ(run_info.state, RunState::kFinished);
  EXPECT_TRUE(Heard<Abort>(2).has_value());
}

TEST_P(FailureBehindTheLastCheckpoint, OfAllProcesses_RunIsFinishedWithoutItsValidation) {
  const uint64_t run = Running(4, "out");
  Say(1, CheckpointSealed{run, 0, ""});
  EndAll(run);
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 2, ""});
  for (const SessionId s : {2, 1}) Say(s, Failed{run, "its link broke", GetParam()});
  EXPECT_EQ(run_info.state, RunState::kFinishing);
  Say(1, CheckpointSealed{run, 2, ""});
  EXPECT_EQ(run_info.state, RunState::kFinished);
  EXPECT_THAT(run_info.validation_failure,
              HasSubstr("process 0 (worker-1, pid 101 on host h) failed before"));
}

INSTANTIATE_TEST_SUITE_P(OfItselfAndOfALink, FailureBehindTheLastCheckpoint, ::testing::Values(-1, 0));

TEST_F(CoreTest, ProcessThatValidatesIsLost_RunIsFinishedAndSaysWhatIsMissing) {
  validate_every = 2;
  const uint64_t run = Running(4, "out");
  Say(1, CheckpointSealed{run, 0, ""});
  EndAll(run);
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 2, ""});
  Say(1, CheckpointSealed{run, 2, ""});
  Do(WorkerExited{101, "killed by signal 9"});
  EXPECT_THAT(run_info.validation_failure, HasSubstr("after step 2 were not validated: process 0"));
  ASSERT_TRUE(Heard<Finish>(2).has_value());
  Say(2, Finished{run, {}});
  EXPECT_EQ(run_info.state, RunState::kFinished);
}

// The run ends when its last weights are validated, and says what was validated and what was not.
TEST_F(CoreTest, RunThatValidates_FinishesWhenTheLastValidationIsDone) {
  validate_every = 1;
  const uint64_t run = Running(4, "out");
  Heard<SealCheckpoint>(1);
  Say(1, CheckpointSealed{run, 0, ""});
  ASSERT_EQ(Heard<TakeSnapshot>(1)->step, 1);
  EndAll(run);
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 1, ""});
  const SealCheckpoint passing = *Heard<SealCheckpoint>(1);
  EXPECT_TRUE(passing.passing && passing.validate && !passing.drop);
  Say(1, CheckpointSealed{run, 1, ""});
  EXPECT_EQ(run_info.checkpoint_step, 0) << "it is none";
  EXPECT_EQ(Heard<Validate>(1)->step, 1);
  EndAll(run);
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 2, ""});
  const SealCheckpoint last = *Heard<SealCheckpoint>(1);
  EXPECT_TRUE(last.validate && !last.passing);
  Say(1, CheckpointSealed{run, 2, ""});
  EXPECT_FALSE(Heard<Validate>(1).has_value()) << "one after the other";
  Say(1, Validation{run, 1, 4, 8, 0.5, {{"accuracy", 0.25}}});
  EXPECT_TRUE(validations.empty()) << "it only gets on";
  Say(2, Validation{run, 1, 8, 8, 0.5, {{"accuracy", 0.25}}});
  EXPECT_EQ(core->probe().fenced, 1u) << "nobody asked that process";
  Say(1, Validation{run, 1, 8, 8, 0.75, {{"accuracy", 0.5}}});
  ASSERT_EQ(validations.size(), 1u);
  EXPECT_EQ(validations[0].loss, 0.75);
  EXPECT_EQ(run_info.validation->step, 1);
  EXPECT_EQ(Heard<Validate>(1)->step, 2);
  EXPECT_FALSE(Heard<Finish>(1).has_value());
  Say(1, Validation{run, 2, 0, 0, 0, {}, "the data are gone"});
  EXPECT_THAT(run_info.validation_failure,
              ::testing::AllOf(HasSubstr("after step 2 were not validated"), HasSubstr("the data are gone")));
  EXPECT_EQ(run_info.failed_validations, 1);
  EXPECT_TRUE(Heard<Finish>(1).has_value()) << "the training is none the worse";
}

TEST_F(CoreTest, ValidationThatHangs_EndsWithItsNameAndTheProcess) {
  validate_every = 2;
  const uint64_t run = Running(4, "out");
  Say(1, CheckpointSealed{run, 0, ""});
  EndAll(run);
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 2, ""});
  Say(1, CheckpointSealed{run, 2, ""});
  now = core->next_deadline() - 1;
  Say(1, Validation{run, 2, 1, 8});
  EXPECT_GT(core->next_deadline(), now + kSecond) << "it gets on";
  now = core->next_deadline();
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, HasSubstr("the validation of step 2 from process 0"));
}

TEST_F(CoreTest, StopWhileTheLastWeightsAreValidated_EndsTheRunWithout) {
  validate_every = 2;
  const uint64_t run = Running(4, "out");
  Say(1, CheckpointSealed{run, 0, ""});
  EndAll(run);
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 2, ""});
  Say(1, CheckpointSealed{run, 2, ""});
  EXPECT_EQ(Heard<Validate>(1)->step, 2);
  EXPECT_FALSE(Heard<Finish>(1).has_value());
  Do(CancelRun{3, run, "stopped by SIGINT", /*save=*/true});
  for (const SessionId s : {1, 2}) {
    EXPECT_TRUE(Heard<Finish>(s).has_value());
    Say(s, Finished{run, {}});
  }
  EXPECT_EQ(run_info.state, RunState::kFinished);
  EXPECT_THAT(run_info.validation_failure, HasSubstr("told to stop"));
}

// Nobody has told the run to stop: it only goes on elsewhere, and finishes before it could.
TEST_F(CoreTest, WorkerLeavesInTheLastSteps_LastWeightsAreValidated) {
  validate_every = 2;
  const uint64_t run = Running(4, "out");
  Say(1, CheckpointSealed{run, 0, ""});
  EndUntil(run, 1);
  Say(2, Leaving{"SIGTERM"});
  EndAll(run);
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 2, ""});
  Say(1, CheckpointSealed{run, 2, ""});
  EXPECT_TRUE(Heard<Validate>(1).has_value());
  EXPECT_FALSE(Heard<Finish>(1).has_value());
}

TEST_F(CoreTest, StopInTheLastSteps_FinishesAndSaysThatTheLastWeightsAreNotValidated) {
  validate_every = 2;
  const uint64_t run = Running(4, "out");
  Say(1, CheckpointSealed{run, 0, ""});
  EndUntil(run, 1);
  Do(CancelRun{3, run, "stopped by SIGINT", /*save=*/true});
  EXPECT_EQ(run_info.stop_step, 2);
  EndAll(run);
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 2, ""});
  Say(1, CheckpointSealed{run, 2, ""});
  EXPECT_FALSE(Heard<Validate>(1).has_value());
  for (const SessionId s : {1, 2}) Say(s, Finished{run, {}});
  EXPECT_EQ(run_info.state, RunState::kFinished);
  EXPECT_EQ(run_info.validation_failure,
            "the weights after step 2 were not validated: the run was told to stop");
  EXPECT_EQ(run_info.failed_validations, 1);
}

TEST_F(CoreTest, StopWhileTheLastCheckpointIsSaved_SaysThatItsWeightsAreNotValidated) {
  validate_every = 2;
  const uint64_t run = Running(4, "out");
  Say(1, CheckpointSealed{run, 0, ""});
  EndAll(run);
  ASSERT_EQ(run_info.state, RunState::kFinishing);
  Do(CancelRun{3, run, "stopped by SIGINT", /*save=*/true});
  for (const SessionId s : {1, 2}) Say(s, SnapshotSaved{run, 2, ""});
  Say(1, CheckpointSealed{run, 2, ""});
  for (const SessionId s : {1, 2}) Say(s, Finished{run, {}});
  EXPECT_EQ(run_info.state, RunState::kFinished);
  EXPECT_EQ(run_info.validation_failure,
            "the weights after step 2 were not validated: the run was told to stop");
}

// ---- runs that are told to end with a checkpoint

// Two ranks on two processes; one process is lost, so that the other one has both ranks.
class StopTest : public CoreTest {
 protected:
  StopTest() { run_steps = 12, restarts = 1; }
  // Makes the first step, and saves the initial weights.
  uint64_t RunningWithAStep() {
    const uint64_t run = Running(4, "out");
    Say(1, CheckpointSealed{run, 0, ""});
    EndUntil(run, 1);
    EXPECT_EQ(core->GetRun(run)->steps_done, 1);
    return run;
  }
  void LoseSecond(uint64_t run) {
    Do(WorkerExited{102, "killed by signal 9"});
    Say(1, Forgotten{run});
  }
  // Prepares the run on the first process alone.
  void PrepareAlone(uint64_t run) {
    const std::optional<Assign> assign = Heard<Assign>(1);
    ASSERT_TRUE(assign.has_value());
    sent[1].clear();
    Say(1, Prepared{run});
    for (const RankLease& l : assign->leases) lease_of_rank[l.rank] = l;
    for (const RankLease& l : assign->leases) Say(1, Credit{run, l.rank, l.token, 4});
  }
  // Carries out all that the first process is told to do, until it is told no more.
  void WorkAlone(uint64_t run) {
    for (bool any = true; any;) {
      any = false;
      while (const auto take = Heard<TakeSnapshot>(1)) any = true, Say(1, SnapshotSaved{run, take->step, ""});
      while (const auto seal = Heard<SealCheckpoint>(1))
        any = true, Say(1, CheckpointSealed{run, seal->step, ""});
      while (const auto grant = Heard<Grant>(1)) {
        any = true;
        Completions m{run, grant->rank, grant->token, {}};
        for (const Job& j : grant->jobs)
          m.jobs.push_back({j, now, now + 1, 0.5, j.kind == JobKind::kForward && j.stage == 1});
        Say(1, std::move(m));
      }
    }
  }
  // The run has ended as it was told to: no reported step is missing in its checkpoint.
  void ExpectSaved(uint64_t run, const std::string& reason) {
    const RunInfo info = *core->GetRun(run);
    EXPECT_EQ(info.state, RunState::kCancelled);
    EXPECT_EQ(info.reason, reason);
    EXPECT_LT(info.steps_done, run_steps);
    EXPECT_EQ(info.checkpoint_step, info.steps_done);
    EXPECT_EQ(info.stop_step, info.steps_done);
  }

  std::map<Rank, RankLease> lease_of_rank;
};

TEST_F(StopTest, ProcessIsLostBeforeTheCheckpoint_RunBeginsAgainAndSavesIt) {
  const uint64_t run = RunningWithAStep();
  Do(CancelRun{3, run, "enough", /*save=*/true});
  EXPECT_GT(run_info.stop_step, 1);
  LoseSecond(run);
  EXPECT_EQ(run_info.state, RunState::kPreparing) << run_info.reason;
  EXPECT_EQ(run_info.reason, "enough");
  EXPECT_THAT(run_info.restart_reason,
              HasSubstr("was lost: killed by signal 9; the run begins again with step 0"));
  PrepareAlone(run);
  WorkAlone(run);
  ExpectSaved(run, "enough");
  EXPECT_EQ(run_info.restarts, 1);
}

TEST_F(StopTest, OrderWhileTheRunBeginsAgain_HoldsForTheNextAttempt) {
  const uint64_t run = RunningWithAStep();
  Do(WorkerExited{102, "killed by signal 9"});
  ASSERT_EQ(run_info.state, RunState::kWaiting);
  Do(CancelRun{3, run, "enough", /*save=*/true});
  EXPECT_EQ(run_info.state, RunState::kWaiting);
  EXPECT_THAT(run_info.reason, HasSubstr("enough; process 1 (worker-2, pid 102 on host h) was lost"));
  EXPECT_GT(run_info.stop_step, 1);
  Say(1, Forgotten{run});
  PrepareAlone(run);
  WorkAlone(run);
  ExpectSaved(run, "enough");
}

TEST_F(StopTest, OrderBeforeTheLostStepsAreMadeAgain_WaitsForThem) {
  const uint64_t run = RunningWithAStep();
  LoseSecond(run);
  PrepareAlone(run);
  ASSERT_EQ(run_info.state, RunState::kRunning);
  Do(CancelRun{3, run, "enough", /*save=*/true});
  EXPECT_EQ(run_info.state, RunState::kRunning);
  EXPECT_GT(run_info.stop_step, run_info.steps_done);
  WorkAlone(run);
  ExpectSaved(run, "enough");
}

TEST_F(StopTest, OrderWhileAFailureWaitsForItsCause_IsNotLost) {
  const uint64_t run = RunningWithAStep();
  Say(1, Failed{run, "process 1 is lost: its data link carries nothing", 1});
  Do(CancelRun{3, run, "enough", /*save=*/true});
  EXPECT_EQ(run_info.state, RunState::kRunning);
  LoseSecond(run);
  PrepareAlone(run);
  WorkAlone(run);
  ExpectSaved(run, "enough");
}

TEST_F(StopTest, NoWorkerIsLeft_RunEndsAndSaysWhatIsSaved) {
  const uint64_t run = RunningWithAStep();
  Do(CancelRun{3, run, "enough", /*save=*/true});
  for (const int64_t pid : {102, 101}) Do(WorkerExited{pid, "killed by signal 9"});
  EXPECT_THAT(run_info.reason, HasSubstr("enough; process 1 (worker-2, pid 102 on host h) was lost"));
  now += options.waiting_ns;
  Do(Tick{});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason, HasSubstr("waited 600 s for worker processes: enough; process 1"));
  EXPECT_THAT(run_info.reason, EndsWith("; the checkpoint with which it was to end was not saved; the newest "
                                        "is of step 0"));
}

TEST_F(StopTest, RunMayNotBeginAgain_EndsAndSaysWhatIsSaved) {
  restarts = 0;
  const uint64_t run = RunningWithAStep();
  Do(CancelRun{3, run, "enough", /*save=*/true});
  Do(WorkerExited{102, "killed by signal 9"});
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_EQ(run_info.reason,
            "process 1 (worker-2, pid 102 on host h) was lost: killed by signal 9; the checkpoint with which "
            "it was to end was not saved; the newest is of step 0");
}

TEST_F(StopTest, CancelledAtOnceMeanwhile_SaysWhatIsSaved) {
  const uint64_t run = RunningWithAStep();
  Do(CancelRun{3, run, "enough", /*save=*/true});
  Do(CancelRun{4, run, "at once"});
  EXPECT_EQ(run_info.state, RunState::kCancelled);
  EXPECT_EQ(run_info.reason,
            "at once; the checkpoint with which it was to end was not saved; the newest is of step 0");
}

TEST_F(StopTest, CheckpointCannotBeSaved_SaysWhyAndWhatIsSaved) {
  const uint64_t run = RunningWithAStep();
  Do(CancelRun{3, run, "enough", /*save=*/true});
  const int32_t stop = run_info.stop_step;
  EndAll(run);
  Say(1, SnapshotSaved{run, stop, ""});
  Say(2, SnapshotSaved{run, stop, "the disk is full"});
  Say(1, CheckpointSealed{run, stop, "it was dropped"});
  EXPECT_EQ(run_info.state, RunState::kCancelled);
  EXPECT_EQ(run_info.reason,
            absl::StrCat("enough; the checkpoint of step ", stop,
                         " was not saved: process 1 (worker-2, pid 102 on host h) could not save it: the "
                         "disk is full; the newest is of step 0"));
}

TEST_F(StopTest, OrderWithoutAReason_EndsTheRunToo) {
  const uint64_t run = RunningWithAStep();
  LoseSecond(run);
  PrepareAlone(run);
  Do(CancelRun{3, run, "", /*save=*/true});
  WorkAlone(run);
  ExpectSaved(run, "it was told to end");
}

// A process that hangs in a save is named.
TEST_F(CoreTest, LastCheckpointThatNobodySaves_EndsWithTheProcess) {
  const uint64_t run = Running(4, "out");
  Say(1, CheckpointSealed{run, 0, ""});
  EndAll(run);
  Say(1, SnapshotSaved{run, 2, ""});
  // The first deadline was that of the leases, which ended with the last job.
  for (int tick = 0; tick < 2; ++tick) {
    now = core->next_deadline();
    Do(Tick{});
  }
  EXPECT_EQ(run_info.state, RunState::kFailed);
  EXPECT_THAT(run_info.reason,
              ::testing::AllOf(HasSubstr("the checkpoint of step 2 from process 1"), HasSubstr("600 s")));
}

TEST_F(CoreTest, FinishedWorkerLeavesBeforeTheOthers_RunStillFinishes) {
  const uint64_t run = Running();
  EndAll(run);
  Say(1, Finished{run, {}});
  Do(SessionClosed{1, "it said goodbye"});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kFinishing);
  EXPECT_EQ(changes.back().kind, WorkerChange::Kind::kExited) << "it has done its part, and is not lost";
  Say(2, Finished{run, {}});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kFinished);
  Do(SessionClosed{2, "it said goodbye"});
  EXPECT_EQ(changes.back().kind, WorkerChange::Kind::kExited);
  EXPECT_EQ(core->probe().workers_lost, 0u);
}

// A process that has finished frees its memory, and a report of that time would show none.
TEST_F(CoreTest, ReportAfterFinished_ChangesNoFigures) {
  const uint64_t run = Running();
  EndAll(run);
  RankReport last;
  last.rank = lease[1].rank;
  last.peak_bytes = {{"weights", 100}};
  Say(1, Finished{run, {last}});
  last.peak_bytes.clear();
  Say(1, Report{run, {last}});
  Say(2, Finished{run, {}});
  ASSERT_EQ(run_info.reports.size(), 1u);
  EXPECT_EQ(run_info.reports[0].peak_bytes, (std::map<std::string, int64_t>{{"weights", 100}}));
}

TEST_F(CoreTest, Submit_RequestAgain_IsTheSameRunEvenAfterItEnded) {
  Do(SubmitRun{1, "r", Plan(), "{}", 2, ""});
  const uint64_t run = replies.back().run;
  Do(CancelRun{2, run, ""});
  Do(SubmitRun{3, "r", Plan(), "{}", 2, ""});
  EXPECT_EQ(replies.back().run, run);
  Do(SubmitRun{4, "r", Plan(), "{\"other\": 1}", 2, ""});
  EXPECT_EQ(replies.back().status.code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(CoreTest, EndedRuns_AreForgottenBeyondTheBound) {
  options.runs_kept = 3;
  core = std::make_unique<CoordinatorCore>(options);
  for (int i = 0; i < 10; ++i) Do(CancelRun{0, Submit(), ""});
  EXPECT_EQ(core->ListRuns().size(), 3u);
  EXPECT_EQ(core->GetRun(1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(core->GetRun(10)->state, RunState::kCancelled);
}

TEST_F(CoreTest, LongRun_ThatOutlivesMoreRunsThanAreKept_IsRememberedWhenItEnds) {
  options.runs_kept = 3;
  options.lease_ns = options.progress_ns = 100'000 * kSecond;
  core = std::make_unique<CoordinatorCore>(options);
  const uint64_t first = Running();
  for (int i = 0; i < 10; ++i) Do(CancelRun{0, Submit(), ""});
  Do(CancelRun{0, first, "enough"});
  EXPECT_TRUE(replies.back().status.ok()) << replies.back().status;
  ASSERT_TRUE(core->GetRun(first).ok()) << "it ended last";
  EXPECT_EQ(core->GetRun(first)->state, RunState::kCancelled);
  EXPECT_EQ(core->ListRuns().size(), 3u);
  EXPECT_EQ(core->GetRun(9).status().code(), absl::StatusCode::kNotFound);
  for (int i = 0; i < 3; ++i) Do(CancelRun{0, Submit(), ""});
  EXPECT_EQ(core->GetRun(first).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CoreTest, TooManyRuns_AreRefused) {
  options.runs_waiting = 2;
  core = std::make_unique<CoordinatorCore>(options);
  Submit();
  Submit();
  Do(SubmitRun{1, "", Plan(), "{}", 2, ""});
  EXPECT_EQ(replies.back().status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CoreTest, Stop_FailsRunsAndShutsWorkersDown) {
  const uint64_t run = Running();
  Do(StopAll{"the operator asked"});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kFailed);
  EXPECT_THAT(Heard<Shutdown>(1)->reason, HasSubstr("operator"));
  Do(SubmitRun{1, "", Plan(), "{}", 2, ""});
  EXPECT_EQ(replies.back().status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(CoreTest, BatchOfEvents_GrantsOnce) {
  const uint64_t run = Running(4);
  const Grant grant = *Heard<Grant>(1);
  ASSERT_EQ(grant.jobs.size(), 4u);
  std::vector<Event> batch;
  for (const Job& job : grant.jobs) batch.push_back(SessionMessage{1, Complete(1, run, {job})});
  Take(core->Step(now, std::move(batch)));
  EXPECT_EQ(Heard<Grant>(1)->jobs.size(), 4u) << "all that the batch freed, in one message";
  EXPECT_FALSE(Heard<Grant>(1).has_value());
}

}  // namespace
}  // namespace weft::coordinator_core_test
