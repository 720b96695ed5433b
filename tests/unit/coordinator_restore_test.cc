// The core's records, and a core that begins anew from them (coordinator/core/records.h): what was said rests
// on what is stored, and no run, step or epoch is lost or given twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/coordinator_core.h"
#include "coordinator/store/store.h"
#include "schedules/families/families.h"
#include "tests/unit/heard.h"
#include "tests/unit/second.h"
#include "tests/unit/without_terms.h"

namespace weft::coordinator_restore_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSteps = 8;

std::shared_ptr<const RunPlan> PlanOf(int validate_every) {
  CheckpointRule rule;
  rule.every_steps = 2;
  rule.validate_every = validate_every;
  auto plan =
      std::make_shared<RunPlan>(**MakeRunPlan("run", "gpipe", WithoutTerms(*MakeSchedule("gpipe", {}, 2, 2)),
                                              kSteps, 0, ReductionMode::kOrdered, rule));
  plan->restarts = 1;
  plan->resumed_spec = [](const std::string& checkpoint, int32_t step) {
    return absl::StrCat(checkpoint, " from step ", step);
  };
  return plan;
}

// Plays the shell, the workers and the disk, of which nothing is lost.
class RestoredCore : public ::testing::Test {
 protected:
  void Take(Effects e) {
    Apply(e.records, &disk);
    for (OutgoingMessage& m : e.messages) {
      if (const auto* assign = std::get_if<Assign>(&m.message)) {
        EXPECT_GE(disk.epoch, assign->epoch) << "an epoch is stored before it is used";
        epochs.push_back(assign->epoch);
      }
      if (const auto* seal = std::get_if<SealCheckpoint>(&m.message)) {
        EXPECT_GE(static_cast<int>(disk.runs.at(seal->run).steps.size()), seal->step)
            << "a checkpoint is sealed behind its steps";
      }
      sent[m.session].push_back(std::move(m.message));
    }
    for (const Reply& r : e.replies) {
      reply = r;
      EXPECT_TRUE(!r.status.ok() || disk.runs.count(r.run) > 0)
          << "a run is stored before it is answered for";
    }
    for (const StepDone& s : e.steps) steps.push_back(s.step);
    for (const uint64_t run : e.spans_complete) told_all.push_back(run);
    for (const RunInfo& r : e.runs) info = r;
  }
  void Do(Event e) { Take(core->Step(now, std::move(e))); }
  void Say(SessionId session, FromWorker m) { Do(SessionMessage{session, std::move(m)}); }
  void Join(SessionId session) {
    Do(SessionOpened{session});
    Say(session,
        Hello{absl::StrCat("worker-", session), "h", static_cast<int64_t>(100 + session), -1, "addr"});
  }
  uint64_t Submit(const std::string& request = "") {
    Do(SubmitRun{1, request, PlanOf(validate_every), "{}", 2, "out"});
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    return reply.run;
  }
  template <typename Message>
  std::optional<Message> Heard(SessionId session) {
    return TakeFirst<Message>(&sent[session]);
  }
  // Lets a worker come back, which has a session of this number again, with what it has of its attempt.
  void Return(SessionId session, uint64_t run, const std::function<void(Reattach*)>& change = nullptr) {
    Do(SessionOpened{session});
    Hello hello{absl::StrCat("worker-", session), "h", static_cast<int64_t>(100 + session),
                static_cast<int32_t>(session - 1), "addr"};
    hello.returns = true;
    Say(session, hello);
    Reattach reattach{run, epochs.back(), "", ended, -1, -1, {}, {}, {}};
    for (const RankLease& lease : leases[session])
      reattach.ranks.push_back({lease.rank, lease.token, 4, granted[lease.rank]});
    if (change) change(&reattach);
    Say(session, reattach);
    for (const Completions& jobs : done[session]) Say(session, jobs);
  }
  // Prepares the run on the sessions that were assigned, and returns the first one's specification.
  std::string Prepare(const std::vector<SessionId>& sessions, uint64_t run) {
    std::string spec;
    for (const SessionId s : sessions) {
      const std::optional<Assign> assign = Heard<Assign>(s);
      if (!assign.has_value()) return "not assigned";
      leases[s] = assign->leases;
      spec = assign->spec;
      granted.clear();
      done[s].clear();
    }
    for (const SessionId s : sessions) Say(s, Prepared{run});
    for (const SessionId s : sessions) {
      for (const RankLease& lease : leases[s]) Say(s, Credit{run, lease.rank, lease.token, 4});
    }
    return spec;
  }
  // Trains until the last checkpoint is complete, and its weights are being validated.
  uint64_t RunUntilLastCheckpoint() {
    validate_every = kSteps;
    const uint64_t run = RunUntil(kSteps);
    for (const SessionId s : {1, 2}) {
      while (auto take = Heard<TakeSnapshot>(s)) Say(s, SnapshotSaved{run, take->step, ""});
    }
    for (int i = 0; i < kSteps; ++i) {
      while (auto seal = Heard<SealCheckpoint>(1)) Say(1, CheckpointSealed{run, seal->step, ""});
    }
    return run;
  }
  // Saves and seals checkpoints, and ends granted jobs, until so many steps are reported.
  void Train(uint64_t run, int until, const std::vector<SessionId>& sessions) {
    const auto reached = [&] { return !steps.empty() && steps.back() + 1 >= until; };
    for (bool any = true; any && !reached();) {
      any = false;
      for (const SessionId s : sessions) {
        while (auto take = Heard<TakeSnapshot>(s)) any = true, Say(s, SnapshotSaved{run, take->step, ""});
        while (auto seal = Heard<SealCheckpoint>(s))
          any = true, Say(s, CheckpointSealed{run, seal->step, ""});
        auto grant = reached() ? std::nullopt : Heard<Grant>(s);
        if (!grant.has_value()) continue;
        any = true;
        Completions jobs{run, grant->rank, grant->token, {}};
        for (const Job& j : grant->jobs)
          jobs.jobs.push_back({j, now, now + 1, 0.5, j.kind == JobKind::kForward && j.stage == 1});
        granted[grant->rank] += static_cast<int64_t>(grant->jobs.size());
        for (const Job& j : grant->jobs) ++times_granted[j];
        done[s].push_back(jobs);
        Say(s, std::move(jobs));
      }
    }
  }
  uint64_t RunUntil(int step) {
    Join(1);
    Join(2);
    const uint64_t run = Submit();
    Prepare({1, 2}, run);
    Train(run, step, {1, 2});
    return run;
  }
  // The specification of an attempt that goes on from the newest checkpoint on the disk.
  std::string Resumed() const {
    const int32_t step = disk.runs.begin()->second.figures.info.checkpoint_step;
    return absl::StrCat("out/checkpoint-", step, " from step ", step);
  }
  // Ends the core without a word, and begins another from the disk.
  void Restart(const std::string& failure = "") {
    ASSERT_TRUE(CheckStored(disk).ok()) << CheckStored(disk);
    options.epoch = disk.epoch + 1;
    options.last_run = disk.last_run;
    core = std::make_unique<CoordinatorCore>(options);
    sent.clear();
    now += kSecond;
    const StoredState stored = disk;
    for (const auto& [id, run] : stored.runs) {
      const bool plans = !IsFinal(run.figures.info.state) && failure.empty();
      Do(RestoreRun{run, plans ? PlanOf(validate_every) : nullptr, failure});
    }
  }

  int64_t now = kSecond;
  int validate_every = 0;
  CoreOptions options;
  std::unique_ptr<CoordinatorCore> core = std::make_unique<CoordinatorCore>(options);
  StoredState disk;
  std::map<SessionId, std::deque<FromCoordinator>> sent;
  std::map<SessionId, std::vector<RankLease>> leases;
  std::map<Rank, int64_t> granted;  // in the present attempt, as far as workers have heard
  std::map<Job, int> times_granted;
  std::map<SessionId, std::vector<Completions>> done;  // by the session's worker
  int32_t ended = 0;                                   // steps that its workers know to be settled
  std::vector<uint64_t> epochs;
  std::vector<int32_t> steps;
  std::vector<uint64_t> told_all;  // runs of which all spans are told
  Reply reply;
  RunInfo info;
};

TEST_F(RestoredCore, RunningRun_GoesOnFromItsCheckpointAndReportsEachStepOnce) {
  const uint64_t run = RunUntil(3);
  ASSERT_GE(info.checkpoint_step, 2);
  const int32_t done = core->GetRun(run)->steps_done, checkpoint = info.checkpoint_step;
  ASSERT_EQ(done, static_cast<int32_t>(steps.size()));
  ASSERT_LT(done, kSteps);
  ASSERT_LT(checkpoint, done) << "a step is made again";
  Restart();
  EXPECT_EQ(info.state, RunState::kWaiting);
  EXPECT_EQ(info.steps_done, done);
  EXPECT_EQ(info.restarts, 0) << "no process was lost";
  EXPECT_EQ(info.restart_reason, "") << "its attempt may go on";
  Join(1);
  EXPECT_THAT(
      core->GetRun(run)->restart_reason,
      AllOf(HasSubstr("the coordinator was started again, and process 2 (worker-1, pid 101 on host h) "
                      "came back without it"),
            HasSubstr(absl::StrCat("the run goes on from its checkpoint of step ", checkpoint))));
  Join(2);
  EXPECT_EQ(Prepare({1, 2}, run), Resumed());
  Train(run, kSteps, {1, 2});
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_TRUE(std::is_sorted(epochs.begin(), epochs.end()));
  EXPECT_GT(epochs[2], epochs[1]) << "above every epoch of the core before";
}

TEST_F(RestoredCore, MessageOfTheCoreBefore_IsFenced) {
  const uint64_t run = RunUntil(1);
  const std::vector<RankLease> before = leases[1];
  Restart();
  Join(1);
  Join(2);
  Prepare({1, 2}, run);
  const uint64_t fenced = core->probe().fenced;
  Completion late;
  late.job.kind = JobKind::kForward;
  Say(1, Completions{run, before[0].rank, before[0].token, {late}});
  EXPECT_EQ(core->probe().fenced, fenced + 1);
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
}

TEST_F(RestoredCore, RestartedAgainBeforeItsWorkersAreBack_StillBeginsAtTheCheckpoint) {
  const uint64_t run = RunUntil(3);
  Restart();
  Restart();
  Join(1);
  Join(2);
  EXPECT_EQ(Prepare({1, 2}, run), Resumed());
  Train(run, kSteps, {1, 2});
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_F(RestoredCore, NewestCheckpointIsDamaged_TheRunGoesOnFromTheOneBefore) {
  const uint64_t run = RunUntil(5);
  ASSERT_EQ(info.checkpoint_step, 4);
  Restart();
  Join(1);
  Join(2);
  EXPECT_EQ(Heard<Assign>(1)->spec, "out/checkpoint-4 from step 4");
  Heard<Assign>(2);
  Say(1, Failed{run, "out/checkpoint-4/stage01.safetensors is damaged", -1, 4});
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  EXPECT_EQ(Prepare({1, 2}, run), "out/checkpoint-2 from step 2");
  Train(run, kSteps, {1, 2});
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

// The last weights are being validated by a process that is not the first of the attempt.
TEST_F(RestoredCore, FirstRankHadMoved_ItsProcessIsAskedAgainForTheValidation) {
  validate_every = kSteps;
  const uint64_t run = RunUntil(1);
  Join(3);
  Do(MoveRanks{7, run, {0}, "worker-3", ""});
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  Train(run, kSteps, {1, 2});
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  EXPECT_THAT(Prepare({2, 3}, run), HasSubstr("out/checkpoint-"));
  Train(run, kSteps, {2, 3});
  for (const SessionId s : {2, 3}) {
    while (auto take = Heard<TakeSnapshot>(s)) Say(s, SnapshotSaved{run, take->step, ""});
  }
  EXPECT_FALSE(Heard<SealCheckpoint>(2).has_value());
  while (auto seal = Heard<SealCheckpoint>(3)) Say(3, CheckpointSealed{run, seal->step, ""});
  ASSERT_TRUE(Heard<Validate>(3).has_value());
  Restart();
  ended = kSteps;
  for (const SessionId s : {2, 3}) {
    Return(s, run, [&](Reattach* reattach) {
      reattach->sealed = kSteps;
      if (s == 3) reattach->validations = {kSteps};
    });
  }
  EXPECT_EQ(core->GetRun(run)->state, RunState::kFinishing);
  EXPECT_TRUE(Heard<Validate>(3).has_value());
  EXPECT_FALSE(Heard<Validate>(2).has_value());
}

TEST_F(RestoredCore, RanksHadMoved_LaterAttemptsHaveThemThereToo) {
  const uint64_t run = RunUntil(1);
  Join(3);
  Do(MoveRanks{7, run, {0}, "worker-3", ""});
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  Train(run, kSteps, {1, 2});
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  EXPECT_THAT(Prepare({2, 3}, run), HasSubstr("out/checkpoint-"));
  const int32_t begun = core->GetRun(run)->restart_step;
  for (int restart = 0; restart < 2; ++restart) {
    Restart();
    for (const SessionId s : {2, 3}) Return(s, run);
    ASSERT_EQ(core->GetRun(run)->state, RunState::kRunning) << core->GetRun(run)->reason;
    EXPECT_EQ(core->GetRun(run)->member_of_rank, (std::vector<int32_t>{1, 0}));
  }
  Say(2, Failed{run, "the checkpoint is damaged", -1, begun});
  for (const SessionId s : {2, 3}) Say(s, Forgotten{run});
  Prepare({2, 3}, run);
  EXPECT_EQ(core->GetRun(run)->restarts, 2);
  EXPECT_EQ(core->GetRun(run)->member_of_rank, (std::vector<int32_t>{1, 0}));
  Do(WorkerExited{103, "killed by signal 9"});
  Say(2, Forgotten{run});
  Join(4);
  EXPECT_EQ(core->GetRun(run)->member_of_rank, (std::vector<int32_t>{0, 0})) << "one of them is not there";
}

TEST_F(RestoredCore, OneWorkerComesBack_TheRunTakesItWhenTheOtherHadItsTime) {
  const uint64_t run = RunUntil(3);
  Restart();
  Join(1);
  EXPECT_FALSE(Heard<Assign>(1).has_value()) << "the other may be on its way";
  EXPECT_LE(core->next_deadline(), now + options.gathering_ns);
  now += options.gathering_ns;
  Do(Tick{});
  EXPECT_EQ(Prepare({1}, run), Resumed());
  Train(run, kSteps, {1});
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_F(RestoredCore, RunThatWaited_WaitsForAsManyProcesses) {
  const uint64_t run = Submit();
  Restart();
  EXPECT_EQ(core->GetRun(run)->restart_reason, "") << "it had not begun";
  Join(1);
  now += options.gathering_ns + kSecond;
  Do(Tick{});
  EXPECT_FALSE(Heard<Assign>(1).has_value());
  Join(2);
  EXPECT_EQ(Prepare({1, 2}, run), "{}");
}

TEST_F(RestoredCore, EndedRun_IsListedAndItsRequestIsKnown) {
  const uint64_t run = Submit("once");
  Do(CancelRun{2, run, "enough"});
  Restart();
  EXPECT_EQ(core->GetRun(run)->state, RunState::kCancelled);
  EXPECT_EQ(core->GetRun(run)->reason, "enough");
  EXPECT_EQ(Submit("once"), run) << "though the answer to the first was lost";
  EXPECT_EQ(Submit("twice"), run + 1);
  Do(SubmitRun{1, "once", PlanOf(0), "{\"other\": 1}", 2, "out"});
  EXPECT_TRUE(absl::IsAlreadyExists(reply.status)) << reply.status;
}

// The writer of its folder waits for the last spans of the processes.
TEST_F(RestoredCore, EndedRun_HasNoProcessThatWouldTellMore) {
  const uint64_t run = RunUntil(2);
  Do(CancelRun{2, run, "enough"});
  told_all.clear();
  Restart();
  EXPECT_THAT(told_all, ElementsAre(run));
}

TEST_F(RestoredCore, ForgottenRuns_AreForgottenOnTheDiskTooAndTheirNumbersAreNotGivenAgain) {
  options.runs_kept = 2;
  core = std::make_unique<CoordinatorCore>(options);
  for (int i = 0; i < 5; ++i) Do(CancelRun{2, Submit(), ""});
  EXPECT_EQ(disk.runs.size(), 2u);
  Restart();
  EXPECT_EQ(core->ListRuns().size(), 2u);
  Do(CancelRun{2, Submit(), ""});
  EXPECT_EQ(reply.run, 6u);
  EXPECT_EQ(disk.runs.size(), 2u);
  EXPECT_EQ(disk.runs.count(4), 0u) << "the one that ended longest ago";
}

TEST_F(RestoredCore, StepsAndCheckpointComplete_RunIsFinished) {
  const uint64_t run = RunUntilLastCheckpoint();
  ASSERT_EQ(core->GetRun(run)->checkpoint_step, kSteps);
  ASSERT_EQ(core->GetRun(run)->state, RunState::kFinishing) << "its weights are being validated";
  Restart();
  EXPECT_EQ(core->GetRun(run)->state, RunState::kWaiting) << "the validation may go on";
  Join(1);
  EXPECT_EQ(core->GetRun(run)->state, RunState::kFinished);
  EXPECT_THAT(core->GetRun(run)->validation_failure, HasSubstr("the coordinator was started again"));
}

// A process that has failed behind the last checkpoint says so again when it comes back.
TEST_F(RestoredCore, FailureBehindTheLastCheckpoint_IsToldAgainAndTheRunIsFinished) {
  const uint64_t run = RunUntilLastCheckpoint();
  ASSERT_EQ(core->GetRun(run)->state, RunState::kFinishing);
  Restart();
  Return(2, run);
  Say(2, Failed{run, "its link broke", 0});
  Return(1, run);
  now += 10 * kSecond;
  Do(Tick{});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kFinishing) << core->GetRun(run)->reason;
  EXPECT_EQ(core->GetRun(run)->restarts, 0);
}

TEST_F(RestoredCore, RunThatWasToldToStop_IsCancelled) {
  const uint64_t run = RunUntil(1);
  Do(CancelRun{2, run, "enough", /*save=*/true});
  ASSERT_GE(core->GetRun(run)->stop_step, 1);
  Restart();
  EXPECT_EQ(core->GetRun(run)->state, RunState::kWaiting) << "its processes may save it yet";
  Join(1);
  EXPECT_EQ(core->GetRun(run)->state, RunState::kCancelled);
  EXPECT_THAT(core->GetRun(run)->reason,
              AllOf(HasSubstr("enough; the coordinator was started again"), HasSubstr(" was not saved; ")));
}

TEST_F(RestoredCore, RunThatCannotGoOn_FailsAndSaysWhy) {
  const uint64_t run = RunUntil(1);
  Restart("its output folder was removed");
  EXPECT_EQ(core->GetRun(run)->state, RunState::kFailed);
  EXPECT_EQ(core->GetRun(run)->reason, "its output folder was removed");
  EXPECT_EQ(disk.runs.at(run).figures.info.state, RunState::kFailed) << "and stays so";
}

// The processes' reports count: grants that they have not received are made again, jobs that they have done
// are not, and no step is reported twice.
TEST_F(RestoredCore, AllProcessesComeBack_TheAttemptGoesOnUnderItsTokens) {
  const uint64_t run = RunUntil(3);
  const std::vector<uint64_t> before = epochs;
  Restart();
  Return(1, run);
  EXPECT_EQ(core->GetRun(run)->state, RunState::kWaiting) << "the other is awaited";
  EXPECT_FALSE(Heard<Grant>(1).has_value());
  Return(2, run);
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
  EXPECT_EQ(epochs, before) << "nothing was assigned anew";
  Train(run, kSteps, {1, 2});
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  for (const auto& [job, times] : times_granted) EXPECT_EQ(times, 1) << Describe(job);
  EXPECT_EQ(core->GetRun(run)->restarts, 0);
  EXPECT_EQ(core->GetRun(run)->restart_reason, "");
  for (const uint64_t restarts : core->probe().restarts) EXPECT_EQ(restarts, 0u);
}

// The links that the run has left are those of its processes, as long as these stay.
TEST_F(RestoredCore, ProcessesThatDoNotAllComeBack_TakeTheLeftLinksWithThem) {
  const uint64_t run = RunUntil(3);
  disk.runs.at(run).attempt.left_links = "links";
  Restart();
  Return(1, run);
  Return(2, run);
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
  EXPECT_EQ(disk.runs.at(run).attempt.left_links, "links");
  now += kSecond;
  Do(WorkerExited{102, "killed by signal 9"});
  Say(1, Forgotten{run});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kPreparing);
  EXPECT_EQ(disk.runs.at(run).attempt.left_links, "");
}

TEST_F(RestoredCore, RestartedWhileItsProcessesComeBack_TheAttemptGoesOnAllTheSame) {
  const uint64_t run = RunUntil(2);
  Restart();
  Return(1, run);
  Restart();
  Return(2, run);
  Return(1, run);
  Train(run, kSteps, {1, 2});
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_F(RestoredCore, ProcessWithAnotherToken_EndsTheAttempt) {
  const uint64_t run = RunUntil(3);
  Restart();
  Return(1, run);
  Return(2, run, [](Reattach* r) { ++r->ranks[0].token.sequence; });
  EXPECT_TRUE(Heard<Abort>(1).has_value());
  EXPECT_THAT(Heard<Abort>(2).value_or(Abort()).reason, HasSubstr("other tokens"));
  EXPECT_THAT(core->GetRun(run)->restart_reason, HasSubstr("process 1 (worker-2"));
  for (const SessionId s : {1, 2}) Say(s, Forgotten{run});
  EXPECT_EQ(Prepare({1, 2}, run), Resumed());
  Train(run, kSteps, {1, 2});
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_F(RestoredCore, ProcessOfARunOfAnotherCoordinator_EndsIt) {
  const uint64_t run = RunUntil(1);
  Restart();
  Return(1, run, [](Reattach* r) { r->run_id = "another"; });
  EXPECT_TRUE(Heard<Abort>(1).has_value());
  Return(3, 99);
  EXPECT_THAT(Heard<Abort>(3).value_or(Abort()).reason, HasSubstr("does not know the run"));
}

// More jobs than the attempt has, or fewer than the steps took that have ended.
TEST_F(RestoredCore, GrantsThatCannotBe_EndTheAttempt) {
  const uint64_t run = RunUntil(3);
  ended = 2;
  const StoredState stored = disk;
  for (const int64_t wrong : {int64_t{1} << 40, int64_t{0}, int64_t{-1}}) {
    disk = stored;
    Restart();
    Return(1, run);
    Return(2, run, [&](Reattach* r) { r->ranks[0].granted = wrong; });
    EXPECT_THAT(core->GetRun(run)->restart_reason, HasSubstr("does not fit")) << wrong;
  }
}

TEST_F(RestoredCore, ProcessThatDoesNotComeBack_EndsTheAttemptWithItsLease) {
  const uint64_t run = RunUntil(3);
  Restart();
  Return(1, run);
  EXPECT_LE(core->next_deadline(), now + options.lease_ns);
  now += options.lease_ns;
  Do(Tick{});
  EXPECT_TRUE(Heard<Abort>(1).has_value());
  EXPECT_THAT(core->GetRun(run)->restart_reason,
              AllOf(HasSubstr("process 1 (worker-2"), HasSubstr("did not come back within 15 s")));
}

TEST_F(RestoredCore, WorkerThatSaysItReturnsAndTellsNothing_IsGivenUp) {
  RunUntil(1);
  Restart();
  Do(SessionOpened{1});
  Hello hello{"worker-1", "h", 101, 0, "addr"};
  hello.returns = true;
  Say(1, hello);
  EXPECT_LE(core->next_deadline(), now + options.hello_ns);
  now += options.hello_ns;
  Do(Tick{});
  EXPECT_TRUE(core->ListWorkers(now).empty());
}

// Its peers know it by its number.
TEST_F(RestoredCore, WorkerThatJoinsFirst_GetsNoNumberOfAnAwaitedProcess) {
  const uint64_t run = RunUntil(1);
  Restart();
  Do(SessionOpened{7});
  Say(7, Hello{"newcomer", "h", 107, -1, "addr"});
  EXPECT_EQ(Heard<Welcome>(7)->process, 2);
  Return(1, run);
  Return(2, run);
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
}

TEST_F(RestoredCore, ToldToStopWhileItsProcessesComeBack_StopsWithACheckpoint) {
  const uint64_t run = RunUntil(3);
  Restart();
  Return(1, run);
  Do(CancelRun{2, run, "enough", /*save=*/true});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kWaiting) << core->GetRun(run)->reason;
  Return(2, run);
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
  const int32_t stop = core->GetRun(run)->stop_step;
  EXPECT_GT(stop, 3);
  Train(run, kSteps, {1, 2});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kCancelled);
  EXPECT_EQ(core->GetRun(run)->checkpoint_step, stop);
  EXPECT_EQ(core->GetRun(run)->reason, "enough");
}

TEST_F(RestoredCore, RunThatWasToldToStopComesBackAndLosesAProcess_BeginsAgainAndSaves) {
  const uint64_t run = RunUntil(3);
  Do(CancelRun{2, run, "enough", /*save=*/true});
  Restart();
  Return(1, run);
  Return(2, run);
  ASSERT_EQ(core->GetRun(run)->state, RunState::kRunning);
  Do(WorkerExited{102, "killed by signal 9"});
  Say(1, Forgotten{run});
  EXPECT_EQ(Prepare({1}, run), "out/checkpoint-2 from step 2");
  Train(run, kSteps, {1});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kCancelled) << core->GetRun(run)->reason;
  EXPECT_EQ(core->GetRun(run)->checkpoint_step, core->GetRun(run)->steps_done);
  EXPECT_EQ(core->GetRun(run)->reason, "enough");
}

TEST_F(RestoredCore, RunThatWasToldToStopAndComesBack_StopsWithItsCheckpoint) {
  const uint64_t run = RunUntil(1);
  Do(CancelRun{2, run, "enough", /*save=*/true});
  const int32_t stop = core->GetRun(run)->stop_step;
  Restart();
  Return(1, run);
  Return(2, run);
  EXPECT_EQ(core->GetRun(run)->state, RunState::kRunning);
  Train(run, kSteps, {1, 2});
  EXPECT_EQ(core->GetRun(run)->state, RunState::kCancelled);
  EXPECT_EQ(core->GetRun(run)->checkpoint_step, stop);
  EXPECT_EQ(core->GetRun(run)->reason, "enough");
}

}  // namespace
}  // namespace weft::coordinator_restore_test
