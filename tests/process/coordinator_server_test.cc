// The coordinator's server and worker sessions over real sockets, in one process; the workers are scripted
// and compute nothing.
#include "coordinator/shell/coordinator_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "base/mutex.h"
#include "coordinator/store/store_writer.h"
#include "schedules/families/families.h"
#include "tests/conformance/held_store.h"
#include "tests/process/quick_planner.h"
#include "tests/process/scripted_worker.h"
#include "tests/unit/without_terms.h"

namespace weft::coordinator_server_test {
namespace {

using ::testing::HasSubstr;

constexpr int kStages = 4, kMicrobatches = 8, kSteps = 3;
constexpr int64_t kPatience = 60'000'000'000;

// The "run file" of these tests is the name of a schedule.
absl::StatusOr<std::shared_ptr<const RunPlan>> Plan(const std::string& spec) {
  absl::StatusOr<Schedule> schedule = MakeSchedule(spec, {}, kStages, kMicrobatches);
  if (!schedule.ok()) return schedule.status();
  return MakeRunPlan("test", spec, WithoutTerms(*std::move(schedule)), kSteps);
}

// Keeps the events that the observer heard.
class Heard {
 public:
  CoordinatorObserver observer() {
    CoordinatorObserver o;
    o.run = [this](const RunInfo& r) {
      MutexLock lock(mu_);
      runs_[r.id] = r;
      changed_.SignalAll();
    };
    o.step = [this](const StepDone& s) {
      MutexLock lock(mu_);
      steps_.push_back(s);
    };
    o.jobs = [this](const JobsEnded& j) {
      MutexLock lock(mu_);
      for (const Completion& c : j.jobs) jobs_.insert(c.job);
    };
    o.worker = [this](const WorkerChange& w) {
      MutexLock lock(mu_);
      joined_ += w.kind == WorkerChange::Kind::kJoined;
      changed_.SignalAll();
    };
    return o;
  }

  RunInfo WaitForEnd(uint64_t run) {
    MutexLock lock(mu_);
    Await([&] { return runs_.count(run) > 0 && IsFinal(runs_[run].state); });
    return runs_[run];
  }
  bool WaitForState(uint64_t run, RunState state) {
    MutexLock lock(mu_);
    return Await([&] { return runs_.count(run) > 0 && runs_[run].state == state; });
  }
  bool WaitForWorkers(int count) {
    MutexLock lock(mu_);
    return Await([&] { return joined_ >= count; });
  }
  bool Knows(uint64_t run) {
    MutexLock lock(mu_);
    return runs_.count(run) > 0;
  }
  std::vector<StepDone> steps() {
    MutexLock lock(mu_);
    return steps_;
  }
  std::multiset<Job> jobs() {
    MutexLock lock(mu_);
    return jobs_;
  }

 private:
  template <typename Condition>
  bool Await(Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int64_t deadline = MonotonicNow() + kPatience;
    while (!condition()) {
      const int64_t now = MonotonicNow();
      if (now >= deadline) return false;
      changed_.WaitWithTimeout(mu_, deadline - now);
    }
    return true;
  }

  Mutex mu_;
  CondVar changed_;
  std::map<uint64_t, RunInfo> runs_;
  std::vector<StepDone> steps_;
  std::multiset<Job> jobs_;
  int joined_ = 0;
};

struct Door {
  std::string name;
  bool unix_socket = false;
  int spin_microseconds = 0;
};

class CoordinatorServerTest : public ::testing::TestWithParam<Door> {
 protected:
  void StartServer(CoreOptions core = {}) {
    CoordinatorServerOptions options;
    options.listen = {GetParam().unix_socket
                          ? absl::StrCat("unix:", testing::TempDir(), "/weft-test-", getpid(), ".sock")
                          : "127.0.0.1:0"};
    options.spin_microseconds = GetParam().spin_microseconds;
    options.core = core;
    options.planner = QuickPlanner(Plan);
    options.observer = heard_.observer();
    auto server = CoordinatorServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  ScriptedWorkerOptions WorkerOptions(int number) {
    ScriptedWorkerOptions o;
    o.address = server_->addresses()[0];
    o.name = absl::StrCat("worker-", number);
    o.pid = 1000 + number;
    o.stages = kStages;
    return o;
  }

  uint64_t Submit(const std::string& schedule, int processes) {
    const absl::StatusOr<uint64_t> run = server_->Submit({"", schedule, processes, ""});
    EXPECT_TRUE(run.ok()) << run.status();
    return run.value_or(0);
  }

  Heard heard_;
  std::unique_ptr<CoordinatorServer> server_;
};

TEST_P(CoordinatorServerTest, Run_TwoWorkersFourRanks_FinishesWithEveryJobOnce) {
  StartServer();
  ScriptedWorker a(WorkerOptions(0)), b(WorkerOptions(1));
  const uint64_t run = Submit("1f1b", 2);
  const RunInfo info = heard_.WaitForEnd(run);
  ASSERT_EQ(info.state, RunState::kFinished) << info.reason;
  EXPECT_EQ(info.steps_done, kSteps);
  EXPECT_EQ(info.reports.size(), 4u);
  EXPECT_EQ(info.reports[3].busy_seconds.at("forward"), 3.5);

  const std::multiset<Job> jobs = heard_.jobs();
  EXPECT_EQ(jobs.size(), size_t{kSteps} * (2 * kStages * kMicrobatches + kStages));
  EXPECT_TRUE(std::adjacent_find(jobs.begin(), jobs.end()) == jobs.end()) << "a job ended twice";

  const std::vector<StepDone> steps = heard_.steps();
  ASSERT_EQ(steps.size(), size_t{kSteps});
  for (int t = 0; t < kSteps; ++t) {
    EXPECT_EQ(steps[t].step, t);
    EXPECT_TRUE(steps[t].has_loss);
    EXPECT_DOUBLE_EQ(steps[t].loss, t + 0.035);
    EXPECT_GT(steps[t].end_ns, 0);
  }
}

TEST_P(CoordinatorServerTest, Run_DuplicatesAndStaleTokens_ChangeNothing) {
  StartServer();
  ScriptedWorkerOptions twice = WorkerOptions(0), stale = WorkerOptions(1);
  twice.complete_twice = true;
  stale.stale_tokens = true;
  ScriptedWorker a(twice), b(stale);
  const RunInfo info = heard_.WaitForEnd(Submit("1f1b", 2));
  ASSERT_EQ(info.state, RunState::kFinished) << info.reason;
  const std::multiset<Job> jobs = heard_.jobs();
  EXPECT_EQ(jobs.size(), size_t{kSteps} * (2 * kStages * kMicrobatches + kStages));
  EXPECT_TRUE(std::adjacent_find(jobs.begin(), jobs.end()) == jobs.end()) << "a job ended twice";
  EXPECT_DOUBLE_EQ(heard_.steps().back().loss, 2.035);
}

TEST_P(CoordinatorServerTest, Run_WorkerVanishes_FailsWithItsName) {
  CoreOptions core;
  core.grace_ns = 200'000'000;
  StartServer(core);
  ScriptedWorkerOptions dying = WorkerOptions(1);
  dying.vanish_after = 3;
  ScriptedWorker a(WorkerOptions(0)), b(dying);
  const RunInfo info = heard_.WaitForEnd(Submit("1f1b", 2));
  EXPECT_EQ(info.state, RunState::kFailed);
  EXPECT_THAT(info.reason, HasSubstr("worker-1, pid 1001 on host test"));
  EXPECT_THAT(info.reason, HasSubstr("did not come back"));
}

// Nobody hears of a run before the store has it.
TEST(CoordinatorServerStore, Effects_WaitUntilTheirRecordIsStored) {
  auto owned = std::make_unique<HeldStore>();
  HeldStore& store = *owned;
  StoreWriter writer(std::move(owned), {});
  Heard heard;
  CoordinatorServerOptions options;
  options.listen = {"127.0.0.1:0"};
  options.planner = QuickPlanner(Plan);
  options.observer = heard.observer();
  options.store = &writer;
  const auto server = CoordinatorServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  std::thread client([&] { EXPECT_EQ((*server)->Submit({"", "gpipe", 1, ""}).value_or(0), 1u); });
  store.AwaitCommits(1);
  EXPECT_FALSE(heard.Knows(1));
  store.LetGo(1'000'000);
  client.join();
  EXPECT_TRUE(heard.WaitForState(1, RunState::kWaiting));
}

// Keeps the first commit that has a step waiting until it is let go.
class StepsHeld final : public Store {
 public:
  absl::StatusOr<StoredState> Load() override { return StoredState(); }
  absl::Status Commit(const std::vector<Records>& batch) override {
    const bool has_step =
        std::any_of(batch.begin(), batch.end(), [](const Records& r) { return !r.steps.empty(); });
    if (has_step) held_.Notify();
    if (has_step) let_go_.Wait();
    return absl::OkStatus();
  }
  void Await() { held_.Wait(); }
  void LetGo() { let_go_.Notify(); }

 private:
  Notification held_, let_go_;
};

// What waits for a store would otherwise grow as long as the run goes on.
TEST(CoordinatorServerStore, StoreStandsStill_GrantsWaitToo) {
  auto owned = std::make_unique<StepsHeld>();
  StepsHeld& store = *owned;
  StoreWriter writer(std::move(owned), {});
  Heard heard;
  CoordinatorServerOptions options;
  options.listen = {"127.0.0.1:0"};
  options.planner = QuickPlanner(Plan);
  options.observer = heard.observer();
  options.store = &writer;
  options.most_held = 2;
  const auto server = CoordinatorServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  ScriptedWorkerOptions one;
  one.address = (*server)->addresses()[0];
  one.name = "worker-0";
  one.stages = kStages;
  ScriptedWorker worker(one);
  const absl::StatusOr<uint64_t> run = (*server)->Submit({"", "gpipe", 1, ""});
  ASSERT_TRUE(run.ok()) << run.status();
  store.Await();
  for (int before = -1; before != worker.jobs(); usleep(500'000)) before = worker.jobs();
  EXPECT_LT(worker.jobs(), kSteps * (2 * kStages * kMicrobatches + kStages));
  store.LetGo();
  EXPECT_EQ(heard.WaitForEnd(*run).state, RunState::kFinished);
  EXPECT_EQ(heard.jobs().size(), size_t{kSteps} * (2 * kStages * kMicrobatches + kStages));
}

TEST_P(CoordinatorServerTest, Run_OwnerTellsExit_ReasonIsTold) {
  StartServer();
  ScriptedWorkerOptions dying = WorkerOptions(1);
  dying.vanish_after = 3;
  ScriptedWorker a(WorkerOptions(0)), b(dying);
  const uint64_t run = Submit("1f1b", 2);
  ASSERT_TRUE(heard_.WaitForState(run, RunState::kRunning));
  server_->WorkerExited({1001, "killed by signal 9"});
  const RunInfo info = heard_.WaitForEnd(run);
  EXPECT_EQ(info.state, RunState::kFailed);
  EXPECT_THAT(info.reason, HasSubstr("pid 1001 on host test) was lost: killed by signal 9"));
}

TEST_P(CoordinatorServerTest, Run_WorkerFails_ReasonIsTold) {
  CoreOptions core;
  core.blame_ns = 100'000'000;
  StartServer(core);
  ScriptedWorkerOptions failing = WorkerOptions(0);
  failing.fail_after_first = "out of memory in stage 2";
  ScriptedWorker a(failing), b(WorkerOptions(1));
  const RunInfo info = heard_.WaitForEnd(Submit("1f1b", 2));
  EXPECT_EQ(info.state, RunState::kFailed);
  EXPECT_THAT(info.reason, HasSubstr("failed: out of memory in stage 2"));
}

TEST_P(CoordinatorServerTest, Runs_SubmittedTogether_RunOneAfterTheOther) {
  StartServer();
  const uint64_t first = Submit("1f1b", 2), second = Submit("gpipe", 1);
  ASSERT_TRUE(heard_.WaitForState(first, RunState::kWaiting));
  ScriptedWorker a(WorkerOptions(0)), b(WorkerOptions(1));
  EXPECT_EQ(heard_.WaitForEnd(first).state, RunState::kFinished);
  EXPECT_EQ(heard_.WaitForEnd(second).state, RunState::kFinished);
  EXPECT_EQ(a.finished() + b.finished(), 3);
}

TEST_P(CoordinatorServerTest, Cancel_WaitingRun_EndsIt) {
  StartServer();
  const uint64_t run = Submit("1f1b", 2);
  EXPECT_TRUE(server_->Cancel(run, "changed my mind").ok());
  const RunInfo info = heard_.WaitForEnd(run);
  EXPECT_EQ(info.state, RunState::kCancelled);
  EXPECT_THAT(info.reason, HasSubstr("changed my mind"));
  EXPECT_EQ(server_->Cancel(99, "").code(), absl::StatusCode::kNotFound);
}

TEST_P(CoordinatorServerTest, Submit_SameRequestTwice_IsOneRun) {
  StartServer();
  const auto first = server_->Submit({"req-1", "1f1b", 2, ""});
  const auto second = server_->Submit({"req-1", "1f1b", 2, ""});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(server_->Submit({"req-1", "gpipe", 2, ""}).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(server_->Submit({"", "1f1b", 5, ""}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(server_->Submit({"", "no-such-schedule", 1, ""}).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(CoordinatorServerTest, Stop_WithWorkers_TellsThemToShutDown) {
  StartServer();
  ScriptedWorker a(WorkerOptions(0)), b(WorkerOptions(1));
  ASSERT_TRUE(heard_.WaitForWorkers(2));
  server_->Stop("test");
  for (int i = 0; i < 1000 && !(a.shut_down() && b.shut_down()); ++i) usleep(10'000);
  EXPECT_TRUE(a.shut_down());
  EXPECT_TRUE(b.shut_down());
  EXPECT_EQ(server_->Submit({"", "1f1b", 2, ""}).status().code(), absl::StatusCode::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(Transports, CoordinatorServerTest,
                         ::testing::Values(Door{"UnixSocket", true}, Door{"Tcp"},
                                           Door{"TcpSpinning", false, 1000}),
                         [](const auto& info) { return info.param.name; });

TEST(CoordinatorServerStart, PortInUse_SaysSo) {
  CoordinatorServerOptions options;
  options.listen = {"127.0.0.1:0"};
  options.planner = QuickPlanner(Plan);
  auto first = CoordinatorServer::Start(options);
  ASSERT_TRUE(first.ok());
  options.listen = (*first)->addresses();
  auto second = CoordinatorServer::Start(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use"));
}

TEST(CoordinatorServerStart, UnixPathInUse_SaysSoAndLeavesTheOtherAlone) {
  CoordinatorServerOptions options;
  options.listen = {absl::StrCat("unix:", testing::TempDir(), "/weft-used-", getpid(), ".sock")};
  options.planner = QuickPlanner(Plan);
  auto first = CoordinatorServer::Start(options);
  ASSERT_TRUE(first.ok());
  auto second = CoordinatorServer::Start(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  first->reset();
  EXPECT_TRUE(CoordinatorServer::Start(options).ok()) << "the path is free again";
}

TEST(CoordinatorServerStart, OtherMachines_AreRefusedUnlessInsecure) {
  CoordinatorServerOptions options;
  options.listen = {"0.0.0.0:0"};
  options.planner = QuickPlanner(Plan);
  const auto refused = CoordinatorServer::Start(options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--insecure"));
  options.security.insecure = true;
  EXPECT_TRUE(CoordinatorServer::Start(options).ok());
}

}  // namespace
}  // namespace weft::coordinator_server_test
