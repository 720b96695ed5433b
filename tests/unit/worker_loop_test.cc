// The worker's threads and waiting, with a scripted coordinator, a loopback transport and no computing.
#include "worker/shell/loop/worker_loop.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/substitute.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/simulator/simulate.h"
#include "tests/test_folder.h"
#include "tests/unit/scripted_link.h"
#include "worker/shell/loop/run_shape.h"
#include "worker/shell/transport/loopback_transport.h"

namespace weft::worker_loop_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Computes nothing: a forward lasts until the test ends it, or each job is what the test makes of it.
class GatedCompute final : public RankCompute {
 public:
  struct Gate {
    Notification begun, may_end;
    std::atomic<int> forwards{0}, ended{0};
    std::function<absl::Status(const Job&)> compute;  // instead; set before the run
    std::function<void()> end;                        // of a rank; likewise
  };
  explicit GatedCompute(Gate* gate) : gate_(gate) {}
  ~GatedCompute() override {
    EXPECT_EQ(computing_, 0) << "a job still uses it";
    if (gate_->end) gate_->end();
  }

  absl::Status AddStage(int, const StageRole&) override { return absl::OkStatus(); }
  absl::StatusOr<Tensor> GatherWeights(const Job&, const std::vector<Tensor>&, int) override {
    return Tensor{};
  }
  absl::Status BeginState(const Job&) override { return absl::OkStatus(); }
  absl::Status InstallState(const Job&, Tensor) override { return absl::OkStatus(); }
  absl::StatusOr<Tensor> GiveState(const Job&) override { return Tensor{}; }
  bool HasState(int) const override { return true; }
  int64_t stage_elements(int) const override { return 0; }
  absl::StatusOr<ForwardResult> Forward(const Job& job, std::vector<Tensor>, Tensor, int) override {
    if (gate_->compute) {
      if (absl::Status s = Compute(job); !s.ok()) return s;
      return ForwardResult{};
    }
    if (++gate_->forwards == 1) gate_->begun.Notify();
    gate_->may_end.Wait();
    ++gate_->ended;
    return ForwardResult{};
  }
  absl::StatusOr<ForwardResult> ForwardOnly(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                            int version) override {
    return Forward(job, std::move(inputs), std::move(weights), version);
  }
  absl::Status TakePass(const Job&, std::vector<Tensor>) override { return absl::OkStatus(); }
  absl::StatusOr<BackwardResult> Backward(const Job& job, std::vector<Tensor>, Tensor, int, bool) override {
    if (gate_->compute) {
      if (absl::Status s = Compute(job); !s.ok()) return s;
    }
    BackwardResult result;
    if (job.stage > 0 && job.kind != JobKind::kBackwardWeight) result.input_gradients.resize(1);
    return result;
  }
  absl::Status Accumulate(const Job&, int, const Tensor&, int, int) override { return absl::OkStatus(); }
  absl::StatusOr<Tensor> AddToSum(const Job&, const Tensor&, Tensor gradient) override { return gradient; }
  absl::StatusOr<Tensor> TakeSum(const Job&, int, int) override { return Tensor{}; }
  absl::StatusOr<Tensor> SumSquares(const Job&, const Tensor&, int, int,
                                    const std::vector<Tensor>&) override {
    return Tensor{};
  }
  absl::Status Update(const Job&, const std::vector<Tensor>&, const Tensor&, bool) override {
    return absl::OkStatus();
  }
  absl::Status InstallWeights(const Job&, const Tensor&, bool) override { return absl::OkStatus(); }
  absl::StatusOr<Tensor> Weights(int, int) override { return Tensor{}; }
  void DropWeights(int, int) override {}
  absl::Status Save(int, const std::string&) override { return absl::OkStatus(); }
  absl::Status SaveInitial(int, const std::string&) override { return absl::OkStatus(); }
  BytesByClass live_bytes() const override { return {}; }
  BytesByClass peak_bytes() const override { return {}; }
  int64_t most_bytes() const override { return 0; }

 private:
  absl::Status Compute(const Job& job) {
    ++computing_;
    absl::Status status = gate_->compute(job);
    --computing_;
    return status;
  }

  Gate* const gate_;
  std::atomic<int> computing_{0};
};

class GatedDevice final : public Device {
 public:
  absl::string_view name() const override { return kind; }
  absl::StatusOr<std::unique_ptr<RankCompute>> CreateRank(const ScheduledRun&, Rank, MemorySource&) override {
    return std::make_unique<GatedCompute>(&gate);
  }

  absl::Status Health() override { return health; }

  absl::StatusOr<Evaluation> Validate(const RunSpec& run, const std::string& folder,
                                      const EvaluationProgress&) override {
    EXPECT_TRUE(std::filesystem::exists(folder)) << folder;
    const int64_t samples = run.validate.samples;
    const auto all = static_cast<double>(samples);
    return Evaluation{"1", samples, samples, samples, samples, {2.5 * all, all}, {}};
  }

  GatedCompute::Gate gate;
  absl::Status health;
  std::string kind = "gated";
};

class WorkerLoopTest : public ::testing::Test {
 protected:
  explicit WorkerLoopTest(WorkerLoopOptions options = {/*spin_microseconds=*/0,
                                                       /*report_interval_ns=*/1'000'000})
      : loop_(options, device_, *transport_, link_), thread_([this] {
          ended_ = loop_.Run();
          forwards_ended_ = device_.gate.ended;
        }) {}
  ~WorkerLoopTest() override { Join(); }

  void Join() {
    if (!thread_.joinable()) return;
    loop_.Stop();
    thread_.join();
  }

  static constexpr uint64_t kRun = 7;

  // A pipeline of two stages; `peer`, if any, is the address of the process that has the second.
  Assign Pipeline(uint64_t run, const std::string& peer = "") const {
    Assign a;
    a.run = run;
    a.epoch = 1;
    a.spec = R"({"name": "two", "model": {"gpt": {"layers": 2, "width": 32, "heads": 2, "context": 16}},
      "data": {"text": {"path": "/none"}, "order": "sequential"},
      "train": {"steps": 1, "batch": 4, "microbatches": 2, "seed": 1, "optimizer": {"adamw": {"lr": 0.001}}},
      "stages": 2, "schedule": {"1f1b": {}}})";
    a.process_of_rank = {0, peer.empty() ? 0 : 1};
    a.leases = {{0, {1, 1}}};
    if (peer.empty()) a.leases.push_back({1, {1, 2}});
    a.peers = {{0, transport_->address(), "process 0"}};
    if (!peer.empty()) a.peers.push_back({1, peer, "process 1"});
    return a;
  }

  // Begins the forward of the first stage in a process that has both.
  void BeginForward() {
    link_.Say(Pipeline(kRun));
    ASSERT_TRUE(link_.Await<Prepared>().has_value());
    for (const Rank rank : {0, 1}) {
      const Token token{1, static_cast<uint64_t>(rank) + 1};
      link_.Say(Grant{kRun, rank, token, {Job::Compute(0, rank, 0, JobKind::kForward)}});
    }
    device_.gate.begun.Wait();
  }

  LoopbackNetwork network_;
  const std::unique_ptr<Transport> transport_ = network_.CreateTransport();
  const std::unique_ptr<Transport> other_ = network_.CreateTransport();
  GatedDevice device_;
  ScriptedLink link_;
  WorkerLoop loop_;
  absl::Status ended_;
  int forwards_ended_ = -1;  // when Run returned
  std::thread thread_;       // last: it uses everything above
};

// The run is the process's own until the coordinator aborts it, so it reports meanwhile.
TEST_F(WorkerLoopTest, PeerThatCannotBeReached_FailsTheRunAndServesTheNext) {
  link_.Say(Pipeline(kRun, "nobody"));
  const auto failed = link_.Await<Failed>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->run, kRun);
  EXPECT_THAT(failed->reason, HasSubstr("process 1"));
  const auto report = link_.Await<Report>();
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->ranks.size(), 1u);
  EXPECT_EQ(report->ranks[0].rank, 0);
  EXPECT_TRUE(loop_.Snapshot().runs == 1);
  link_.Say(Abort{kRun, "a process failed"});
  link_.Say(Pipeline(kRun + 1, other_->address()));
  const auto prepared = link_.Await<Prepared>();
  ASSERT_TRUE(prepared.has_value());
  EXPECT_EQ(prepared->run, kRun + 1);
}

// The process was a member of the run before, and its end is noticed late.
TEST_F(WorkerLoopTest, ProcessOfAFormerRunEnds_ThePresentRunGoesOn) {
  link_.Say(Pipeline(kRun, other_->address()));
  ASSERT_TRUE(link_.Await<Prepared>().has_value());
  link_.Say(Abort{kRun, "a process was lost"});
  ASSERT_TRUE(link_.Await<Forgotten>().has_value());
  link_.Say(Pipeline(kRun + 1));
  ASSERT_TRUE(link_.Await<Prepared>().has_value());
  network_.Kill(other_->address());
  link_.Say(Grant{kRun + 1, 0, {1, 1}, {Job::Compute(0, 0, 0, JobKind::kForward)}});
  device_.gate.begun.Wait();
  device_.gate.may_end.Notify();
  EXPECT_TRUE(link_.Await<Completions>().has_value()) << "the run has failed";
}

// A worker that looks around only when it is woken.
class WakenWorkerLoopTest : public WorkerLoopTest {
 protected:
  static constexpr int64_t kHour = 3600'000'000'000;
  explicit WakenWorkerLoopTest(int64_t gather_ns = WorkerLoopOptions().gather_ns)
      : WorkerLoopTest({0, kHour, kHour, gather_ns}) {}

  // Has the only rank of the process make so many forwards, one after the other.
  void MakeForwards(int count, int watched_before) {
    Assign assign = Pipeline(kRun, other_->address());
    assign.spec = absl::StrReplaceAll(
        assign.spec, {{R"("microbatches": 2)", R"("microbatches": 4)"}, {R"({"1f1b": {}})", R"("gpipe")"}});
    assign.watched_before = watched_before;
    link_.Say(assign);
    ASSERT_TRUE(link_.Await<Prepared>().has_value());
    Grant grant{kRun, 0, {1, 1}, {}};
    for (int m = 0; m < count; ++m) grant.jobs.push_back(Job::Compute(0, 0, m, JobKind::kForward));
    link_.Say(grant);
    for (int done = 0; done < count;) {
      const auto completions = link_.Await<Completions>();
      ASSERT_TRUE(completions.has_value());
      done += static_cast<int>(completions->jobs.size());
    }
  }
};

// Nothing wakes the main thread while the only rank computes, and it tells of the job before all the same.
TEST_F(WakenWorkerLoopTest, CompletionBeforeALongJob_LeavesWhileThatRuns) {
  constexpr auto kLong = std::chrono::milliseconds(20);
  Notification told;
  std::atomic<bool> is_told{false};
  link_.on_send = [&](const FromWorker& message) {
    const auto* completions = std::get_if<Completions>(&message);
    if (completions == nullptr || completions->jobs.back().job.microbatch == 0) return;
    if (!is_told.exchange(true)) told.Notify();
  };
  device_.gate.compute = [&](const Job& job) {
    if (job.microbatch < 2) std::this_thread::sleep_for(kLong);
    return job.microbatch < 2 || told.WaitWithTimeout(kPatience)
               ? absl::OkStatus()
               : absl::DeadlineExceededError("nobody told of the job before");
  };
  const absl::Cleanup join = [&] { Join(); };
  MakeForwards(3, /*watched_before=*/0);
}

// A worker whose completions gather for longer than any test.
class GatheringWorkerLoopTest : public WakenWorkerLoopTest {
 protected:
  GatheringWorkerLoopTest() : WakenWorkerLoopTest(kHour) {}
};

TEST_F(GatheringWorkerLoopTest, MessagesInALongJob_CompletionsStayWhereTheyAre) {
  constexpr auto kLong = std::chrono::milliseconds(20);
  std::atomic<int> told{0};
  int told_meanwhile = -1;
  link_.on_send = [&](const FromWorker& message) {
    if (const auto* completions = std::get_if<Completions>(&message))
      told += static_cast<int>(completions->jobs.size());
  };
  device_.gate.compute = [&](const Job& job) {
    if (job.microbatch < 2) std::this_thread::sleep_for(kLong);
    // The main thread drives before the second job ends. In the third it may be about to wait when the first
    // message comes, but not when the others do.
    const std::array<int, 3> messages = {0, 1, 3};
    for (int i = 0; i < messages[job.microbatch]; ++i) {
      const int before = link_.armed();
      link_.Say(Grant{kRun, 0, {1, 1}, {job}});  // granted before, so this changes nothing
      EXPECT_TRUE(link_.AwaitHeard() && link_.AwaitArmed(before));
    }
    told_meanwhile = told;
    return absl::OkStatus();
  };
  const absl::Cleanup join = [&] { Join(); };
  MakeForwards(3, /*watched_before=*/0);
  EXPECT_EQ(told_meanwhile, 1) << "the first of an attempt leaves at once, the second stays";
}

// The next job may end the process: the one before is told of first, also where jobs are short.
TEST_F(WakenWorkerLoopTest, CompletionOfAWatchedStep_LeavesBeforeTheNextJobBegins) {
  std::atomic<int> told{0};
  std::vector<int> told_at;  // by micro-batch
  link_.on_send = [&](const FromWorker& message) {
    if (const auto* completions = std::get_if<Completions>(&message))
      told += static_cast<int>(completions->jobs.size());
  };
  device_.gate.compute = [&](const Job&) {
    told_at.push_back(told);
    return absl::OkStatus();
  };
  const absl::Cleanup join = [&] { Join(); };
  MakeForwards(4, /*watched_before=*/1);
  EXPECT_THAT(told_at, ElementsAre(0, 1, 2, 3));
}

// Rank 0 has told of its forward and is about to wait. While it writes, rank 1 does its two jobs, so that
// rank 0 is given the backward: it must not wait past it.
TEST_F(WakenWorkerLoopTest, JobGivenWhileTheIdleRankSends_StartsWithoutAFurtherWake) {
  Notification writing;
  std::atomic<bool> reported{false};
  const std::thread::id main = thread_.get_id();
  link_.on_send = [&](const FromWorker& message) {
    const auto* completions = std::get_if<Completions>(&message);
    if (completions == nullptr || completions->rank != 0 || reported.exchange(true)) return;
    writing.Notify();
    if (std::this_thread::get_id() == main) return;  // it was quicker, and rank 0 already waits
    while (loop_.Snapshot().jobs[static_cast<int>(JobKind::kBackward)] == 0) std::this_thread::yield();
  };
  device_.gate.compute = [&](const Job& job) {
    if (job.stage == 1 && !writing.WaitWithTimeout(kPatience)) {
      return absl::DeadlineExceededError("rank 0 did not tell of its forward");
    }
    return absl::OkStatus();
  };
  const absl::Cleanup join = [&] { Join(); };
  link_.Say(Pipeline(kRun));
  ASSERT_TRUE(link_.Await<Prepared>().has_value());
  // Rank 1's first: rank 0 reads no more once it writes.
  for (const Rank rank : {1, 0}) {
    const Token token{1, static_cast<uint64_t>(rank) + 1};
    link_.Say(
        Grant{kRun,
              rank,
              token,
              {Job::Compute(0, rank, 0, JobKind::kForward), Job::Compute(0, rank, 0, JobKind::kBackward)}});
  }
  for (size_t ended = 0; ended < 4;) {
    const auto completions = link_.Await<Completions>();
    ASSERT_TRUE(completions.has_value()) << ended << " of 4 jobs ended";
    ended += completions->jobs.size();
  }
}

// Here a rank's thread that has nothing to do looks for messages without a pause, and sends none. So the main
// thread sends what its jobs ended.
class SpinningWorkerLoopTest : public WorkerLoopTest {
 protected:
  SpinningWorkerLoopTest()
      : WorkerLoopTest({/*spin_microseconds=*/60'000'000, /*report_interval_ns=*/3'600'000'000'000}) {}
};

// The thread that sends needs the lock behind it. The one that looks for messages must neither keep it, nor
// take it again and again: a lock is not fair, and the sender would wait for ever.
TEST_F(SpinningWorkerLoopTest, SessionEndsWhileAThreadSends_OthersWaitAndItIsRenewed) {
  constexpr auto kWhile = std::chrono::milliseconds(200);
  constexpr int kThreads = 8;  // more than the loop has
  std::atomic<bool> ended{false};
  std::atomic<int> looks{0};
  const absl::Cleanup join = [&] { Join(); };
  link_.on_send = [&](const FromWorker& message) {
    if (!std::holds_alternative<Completions>(message) || ended.exchange(true)) return;
    link_.End();
    std::this_thread::sleep_for(kWhile);
    looks = link_.looks_at_end();
  };
  device_.gate.may_end.Notify();
  BeginForward();
  EXPECT_TRUE(link_.renewed.WaitWithTimeout(kPatience));
  EXPECT_LE(looks, kThreads);
}

// A schedule with overlapped pairs, all of whose ranks are in one process.
struct PairedRun {
  const char *name, *schedule;
  int stages, microbatches;
};

constexpr PairedRun kOnePair = {
    "ActionsOfAFile", R"({"file": {"path": "pair.csv", "actions": "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"}})", 1, 2};

class WorkerLoopPairTest : public WorkerLoopTest {
 protected:
  void Plan(const PairedRun& run) {
    spec_ = absl::Substitute(
        R"({"name": "pairs", "model": {"gpt": {"layers": 2, "width": 32, "heads": 2, "context": 16}},
          "data": {"text": {"path": "/none"}, "order": "sequential"},
          "train": {"steps": 1, "batch": $0, "microbatches": $0, "seed": 1,
                    "optimizer": {"adamw": {"lr": 0.001}}},
          "stages": $1, "schedule": $2})",
        run.microbatches, run.stages, run.schedule);
    const auto shape = ParseRunShape(spec_);
    ASSERT_TRUE(shape.ok()) << shape.status();
    schedule_ = shape->schedule;
  }
  Assign Assignment(uint64_t run) const {
    Assign a;
    a.run = run;
    a.epoch = 1;
    a.spec = spec_;
    a.process_of_rank.assign(schedule_.scheme.ranks, 0);
    for (Rank rank = 0; rank < schedule_.scheme.ranks; ++rank) a.leases.push_back({rank, TokenOf(rank)});
    a.peers = {{0, transport_->address(), "process 0"}};
    return a;
  }
  // Claims all jobs of the planned run.
  void Begin() {
    link_.Say(Assignment(kRun));
    ASSERT_TRUE(link_.Await<Prepared>().has_value());
    const std::vector<std::vector<Job>> claims = ClaimOrder(Graph(schedule_))->front();
    for (Rank rank = 0; rank < schedule_.scheme.ranks; ++rank) {
      link_.Say(Grant{kRun, rank, TokenOf(rank), claims[rank]});
      claimed_ += claims[rank].size();
    }
  }
  static Token TokenOf(Rank rank) { return {1, static_cast<uint64_t>(rank) + 1}; }

  std::string spec_;
  RunSchedule schedule_;
  size_t claimed_ = 0;
};

class WorkerLoopPairsTest : public WorkerLoopPairTest, public ::testing::WithParamInterface<PairedRun> {};

// No forward of a pair ends before the backward beside it has begun: on one thread it would wait for ever.
TEST_P(WorkerLoopPairsTest, EveryPair_BackwardRunsWhileTheForwardDoes) {
  ASSERT_NO_FATAL_FAILURE(Plan(GetParam()));
  std::map<Job, Job> overlapped;      // by forward
  std::map<Job, Notification> begun;  // by backward
  for (size_t r = 0; r < schedule_.scheme.order.size(); ++r) {
    const std::vector<Job>& order = schedule_.scheme.order[r];
    for (size_t i = 0; i + 1 < order.size(); ++i) {
      const bool paired = (schedule_.scheme.order_marks[r][i + 1] & kOverlapsForward) != 0;
      if (order[i].kind != JobKind::kForward || !paired) continue;
      overlapped[order[i]] = order[i + 1];
      begun[order[i + 1]];
    }
  }
  ASSERT_FALSE(overlapped.empty());
  device_.gate.compute = [&](const Job& job) {
    if (const auto backward = begun.find(job); backward != begun.end()) backward->second.Notify();
    const auto pair = overlapped.find(job);
    if (pair == overlapped.end() || begun.at(pair->second).WaitWithTimeout(kPatience))
      return absl::OkStatus();
    return absl::DeadlineExceededError(
        absl::StrCat(Describe(pair->second), " did not begin beside ", Describe(job)));
  };
  const absl::Cleanup join = [&] { Join(); };
  Begin();
  for (size_t ended = 0; ended < claimed_;) {
    const auto completions = link_.Await<Completions>();
    ASSERT_TRUE(completions.has_value()) << ended << " of " << claimed_ << " jobs ended";
    ended += completions->jobs.size();
  }
  EXPECT_EQ(loop_.Snapshot().failures, 0u);
}

INSTANTIATE_TEST_SUITE_P(Schedules, WorkerLoopPairsTest,
                         ::testing::Values(kOnePair, PairedRun{"DualPipe", R"({"dualpipe": {}})", 4, 8},
                                           PairedRun{"DualPipeV", R"({"dualpipe_v": {}})", 4, 8}),
                         [](const auto& info) { return std::string(info.param.name); });

class WorkerLoopPairFailureTest : public WorkerLoopPairTest, public ::testing::WithParamInterface<JobKind> {};

// The parameter is the kind of the job that fails. The other still uses the rank's state, whatever the
// coordinator says.
TEST_P(WorkerLoopPairFailureTest, OneFails_TheRunIsForgottenAfterTheOtherAndTheNextIsServed) {
  ASSERT_NO_FATAL_FAILURE(Plan(kOnePair));
  Notification other_begun, may_end;
  device_.gate.compute = [&](const Job& job) {
    const bool paired = job.microbatch == (job.kind == JobKind::kForward ? 1 : 0);
    if (!paired) return absl::OkStatus();
    if (job.kind == GetParam()) {
      other_begun.WaitWithTimeout(kPatience);
      return absl::InternalError("no luck");
    }
    other_begun.Notify();
    may_end.WaitWithTimeout(kPatience);
    return absl::InternalError("no luck either");
  };
  const absl::Cleanup join = [&] {
    may_end.Notify();
    Join();
  };
  Begin();
  const auto failed = link_.Await<Failed>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->reason, "no luck");
  link_.Say(Abort{kRun, "a job failed"});
  link_.Say(Assignment(kRun + 1));
  link_.Say(Grant{kRun + 2, 0, TokenOf(0), {}});
  // The grant is of no run here: when it is counted, the messages before it have been handled.
  while (loop_.Snapshot().stale_grants == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  may_end.Notify();
  const auto prepared = link_.Await<Prepared>();
  ASSERT_TRUE(prepared.has_value());
  EXPECT_EQ(prepared->run, kRun + 1);
  EXPECT_EQ(loop_.Snapshot().failures, 1u) << "a run fails once";
}

INSTANTIATE_TEST_SUITE_P(Kinds, WorkerLoopPairFailureTest,
                         ::testing::Values(JobKind::kForward, JobKind::kBackward),
                         [](const auto& info) { return std::string(JobKindName(info.param)); });

// A thread for each of so many ranks would be more than a process is given, and cost a switch for each job.
TEST_F(WorkerLoopPairTest, ManyRanks_AreComputedByFewThreads) {
  constexpr int kRanks = 64;
  spec_ = absl::Substitute(
      R"({"name": "many", "model": {"gpt": {"layers": $0, "width": 32, "heads": 2, "context": 16}},
        "data": {"text": {"path": "/none"}, "order": "sequential"},
        "train": {"steps": 1, "batch": 4, "microbatches": 4, "seed": 1,
                  "optimizer": {"adamw": {"lr": 0.001}}},
        "stages": $0, "schedule": {"1f1b": {}}})",
      kRanks);
  const auto shape = ParseRunShape(spec_);
  ASSERT_TRUE(shape.ok()) << shape.status();
  schedule_ = shape->schedule;
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  std::mutex mutex;
  std::set<std::thread::id> computed_by;
  device_.gate.compute = [&](const Job&) {
    const std::lock_guard<std::mutex> lock(mutex);
    computed_by.insert(std::this_thread::get_id());
    return absl::OkStatus();
  };
  const absl::Cleanup join = [&] { Join(); };
  const auto before = threads();
  Begin();
  const auto most = std::max<size_t>(16, std::thread::hardware_concurrency());
  EXPECT_LE(threads() - before, static_cast<std::ptrdiff_t>(most));
  for (size_t ended = 0; ended < claimed_;) {
    const auto completions = link_.Await<Completions>();
    ASSERT_TRUE(completions.has_value()) << ended << " of " << claimed_ << " jobs ended";
    ended += completions->jobs.size();
  }
  EXPECT_EQ(claimed_, static_cast<size_t>(kRanks) * (4 + 4 + 1));
  EXPECT_LE(computed_by.size(), most);
}

TEST_F(WorkerLoopTest, Abort_IsAnsweredWhenNothingOfTheRunIsLeft) {
  BeginForward();
  link_.Say(Abort{kRun, "cancelled"});
  link_.Say(Abort{kRun + 1, "a run that this process never saw"});
  auto forgotten = link_.Await<Forgotten>();
  ASSERT_TRUE(forgotten.has_value());
  EXPECT_EQ(forgotten->run, kRun + 1) << "the other one still computes";
  device_.gate.may_end.Notify();
  forgotten = link_.Await<Forgotten>();
  ASSERT_TRUE(forgotten.has_value());
  EXPECT_EQ(forgotten->run, kRun);
}

TEST_F(WorkerLoopTest, ModelThatCannotFit_IsRefusedWithItsBytesBeforeAnythingIsAllocated) {
  device_.kind = "cpu";
  Assign a = Pipeline(kRun);
  a.spec =
      absl::StrReplaceAll(a.spec, {{"\"layers\": 2, \"width\": 32", "\"layers\": 200, \"width\": 16384"}});
  link_.Say(a);
  const auto failed = link_.Await<Failed>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_THAT(failed->reason,
              HasSubstr("weights, gradients and optimizer of this process's 2 ranks take at least"));
  EXPECT_THAT(failed->reason, HasSubstr("GiB available on the machine"));
  link_.Say(Abort{kRun, "a process failed"});
  EXPECT_TRUE(link_.Await<Forgotten>().has_value());
}

// Where another process has the other rank, one of the states is here at a time; else both are.
TEST_F(WorkerLoopTest, StatesThatMigrateAndCannotFit_AreRefusedWithTheirBytes) {
  device_.kind = "cpu";
  uint64_t run = kRun;
  double bytes = 0;
  for (const std::string& peer : {other_->address(), std::string()}) {
    Assign a = Pipeline(++run, peer);
    a.spec = absl::StrReplaceAll(
        a.spec, {{"\"layers\": 2, \"width\": 32", "\"layers\": 200, \"width\": 16384"},
                 {"{\"1f1b\": {}}", "{\"fsdp\": {\"residency\": \"migrating\"}, \"rule\": \"cdp_v2\"}"}});
    link_.Say(a);
    const auto failed = link_.Await<Failed>();
    ASSERT_TRUE(failed.has_value());
    const std::string words = " ranks take at least ";
    const size_t at = failed->reason.find(words);
    ASSERT_NE(at, std::string::npos) << failed->reason;
    const double needed = std::strtod(failed->reason.c_str() + at + words.size(), nullptr);
    EXPECT_GT(needed, 1.5 * bytes) << failed->reason;
    bytes = needed;
    link_.Say(Abort{run, "a process failed"});
    EXPECT_TRUE(link_.Await<Forgotten>().has_value());
  }
}

TEST_F(WorkerLoopTest, JobThatRuns_IsReportedWithItsAge) {
  BeginForward();
  const absl::Cleanup end = [&] { device_.gate.may_end.Notify(); };
  std::vector<RunningJob> running;
  while (running.empty()) {
    const auto report = link_.Await<Report>();
    ASSERT_TRUE(report.has_value());
    running = report->running;
  }
  ASSERT_EQ(running.size(), 1u);
  EXPECT_EQ(running[0].rank, 0);
  EXPECT_EQ(running[0].job, Job::Compute(0, 0, 0, JobKind::kForward));
  EXPECT_GE(running[0].age_ns, 500'000'000);
  EXPECT_LT(running[0].age_ns, kPatience);
}

TEST_F(WorkerLoopTest, DeviceIsLostToTheProcess_RunFailsAndTheWorkerEnds) {
  device_.health = absl::ResourceExhaustedError("the GPU does nothing more for this process");
  device_.gate.compute = [](const Job&) { return absl::InternalError("an illegal memory access"); };
  const absl::Cleanup join = [&] { Join(); };
  link_.Say(Pipeline(kRun));
  ASSERT_TRUE(link_.Await<Prepared>().has_value());
  link_.Say(Grant{kRun, 0, {1, 1}, {Job::Compute(0, 0, 0, JobKind::kForward)}});
  const auto failed = link_.Await<Failed>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_TRUE(failed->device_lost);
  link_.Say(Abort{kRun, "a job failed"});
  ASSERT_TRUE(link_.Await<Forgotten>().has_value());
  thread_.join();
  EXPECT_EQ(ended_, device_.health);
}

// A pipeline that validates, with a folder for its data and its results.
class ValidatingWorkerLoopTest : public WorkerLoopTest {
 protected:
  ~ValidatingWorkerLoopTest() override { Join(); }

  Assign Validating(const std::string& peer = "") const {
    Assign a = Pipeline(kRun, peer);
    a.output = folder;
    a.spec = absl::StrReplaceAll(
        a.spec, {{"\"stages\": 2", absl::StrCat("\"validate\": {\"data\": {\"text\": {\"path\": \"", folder,
                                                "/held.txt\"}}, \"samples\": 3}, \"stages\": 2")}});
    return a;
  }
  void WriteHeldOut() const { std::ofstream(folder + "/held.txt") << std::string(100, 'a'); }

  const TestFolder temporary;
  const std::string folder = temporary.path();
};

// Weights that a snapshot left aside, and held-out data that cannot be read.
TEST_F(ValidatingWorkerLoopTest, Validate_TellsTheFiguresAndRemovesTheWeights) {
  Assign a = Validating();
  link_.Say(a);
  const auto failed = link_.Await<Failed>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_THAT(failed->reason, HasSubstr("validate.data.text.path"));
  link_.Say(Abort{kRun, "a process failed"});
  ASSERT_TRUE(link_.Await<Forgotten>().has_value());

  WriteHeldOut();
  a.run = kRun + 1;
  a.epoch = 2;
  link_.Say(a);
  ASSERT_TRUE(link_.Await<Prepared>().has_value());
  const std::string aside = folder + "/checkpoint.run-2.validation.partial";
  std::filesystem::create_directory(aside);
  link_.Say(Validate{kRun + 1, 1});
  const auto validation = link_.Await<Validation>();
  ASSERT_TRUE(validation.has_value());
  EXPECT_EQ(validation->step, 1);
  EXPECT_EQ(validation->samples, 3);
  EXPECT_DOUBLE_EQ(validation->loss, 2.5);
  EXPECT_DOUBLE_EQ(validation->metrics.at("accuracy"), 1);
  EXPECT_FALSE(std::filesystem::exists(aside));
}

// The last checkpoint is complete before its weights are validated, so nothing comes from peers any more.
TEST_F(ValidatingWorkerLoopTest, PeerIsLostBehindTheLastCheckpoint_RunFinishes) {
  WriteHeldOut();
  link_.Say(Validating(other_->address()));
  ASSERT_TRUE(link_.Await<Prepared>().has_value());
  std::filesystem::create_directory(folder + "/checkpoint.run-1.validation.partial");
  link_.Say(Validate{kRun, 1});
  ASSERT_TRUE(link_.Await<Validation>().has_value());
  network_.Kill(other_->address());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(link_.Await<Report>().has_value());  // it looks around meanwhile
  link_.Say(Finish{kRun});
  EXPECT_TRUE(link_.Await<Finished>().has_value()) << "the run has failed";
}

// The rank takes its time like one with a device's driver to wait for. Its memory goes, so it tells no
// figures meanwhile: they would count as its last ones.
TEST_F(WorkerLoopTest, RankThatTakesLongToEnd_HoldsTheNextRunAndNothingElse) {
  Notification may_end;
  std::atomic<int> ending{0};
  std::atomic<bool> answered{true};
  device_.gate.end = [&] {
    ++ending;
    if (!may_end.WaitWithTimeout(kPatience)) answered = false;
  };
  const absl::Cleanup join = [&] {
    may_end.Notify();
    Join();
    device_.gate.end = nullptr;
  };
  bool prepared_once = false;  // from here on, all ranks of the run have told their bytes
  link_.on_send = [&](const FromWorker& message) {
    prepared_once |= std::holds_alternative<Prepared>(message);
    const auto* report = std::get_if<Report>(&message);
    if (report == nullptr || report->run != kRun || !prepared_once) return;
    for (const RankReport& rank : report->ranks) EXPECT_FALSE(rank.peak_bytes.empty()) << rank.rank;
  };
  link_.Say(Pipeline(kRun));
  ASSERT_TRUE(link_.Await<Prepared>().has_value());
  link_.Say(Abort{kRun, "cancelled"});
  link_.Say(Pipeline(kRun + 1));
  while (ending == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  link_.Say(Grant{kRun + 2, 0, {1, 1}, {}});
  while (loop_.Snapshot().stale_grants == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(loop_.Snapshot().runs == 1);
  may_end.Notify();
  const auto prepared = link_.Await<Prepared>();
  ASSERT_TRUE(prepared.has_value());
  EXPECT_EQ(prepared->run, kRun + 1);
  EXPECT_TRUE(answered);
}

class HangingJobTest : public ::testing::Test {
 protected:
  struct Process {
    LoopbackNetwork network;
    const std::unique_ptr<Transport> transport = network.CreateTransport();
    GatedDevice device;
    ScriptedLink link;
    FlightRing ring;
    WorkerLoopOptions options = [this] {
      WorkerLoopOptions o;
      o.stop_grace_ns = 50'000'000;
      o.flight_ring = &ring;
      return o;
    }();
    WorkerLoop loop{options, device, *transport, link};
  };
};

// The process can only end then, and so nothing of it is given back here either.
TEST_F(HangingJobTest, Stop_ReturnsAfterItsGraceWithTheNameOfTheJob) {
  static Process* const process = new Process;
  absl::Status ended;
  std::thread main([&] { ended = process->loop.Run(); });
  Assign a;
  a.run = 7;
  a.epoch = 1;
  a.spec = R"({"name": "one", "model": {"gpt": {"layers": 2, "width": 32, "heads": 2, "context": 16}},
      "data": {"text": {"path": "/none"}, "order": "sequential"},
      "train": {"steps": 1, "batch": 4, "microbatches": 2, "seed": 1, "optimizer": {"adamw": {"lr": 0.001}}},
      "stages": 1, "schedule": {"1f1b": {}}})";
  a.process_of_rank = {0};
  a.leases = {{0, {1, 1}}};
  a.peers = {{0, process->transport->address(), "process 0"}};
  process->link.Say(a);
  ASSERT_TRUE(process->link.Await<Prepared>().has_value());
  process->link.Say(Grant{7, 0, {1, 1}, {Job::Compute(0, 0, 0, JobKind::kForward)}});
  process->device.gate.begun.Wait();
  process->loop.Stop();
  main.join();
  EXPECT_TRUE(process->loop.hangs());
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended));
  EXPECT_THAT(
      std::string(ended.message()),
      HasSubstr("told to stop, and some of its work has not come to an end: forward (step 0, stage 0, "
                "micro-batch 0) of rank 0 for "));
  // A crash at this point would leave this event as the last one.
  FlightRing::Event last;
  ASSERT_TRUE(process->ring.Read(process->ring.next() - 1, &last));
  EXPECT_EQ(last.view(), "event=job_begins rank=0 kind=forward step=0 stage=0 microbatch=0");
}

// The caller of Run closes link and transport next: no rank may use them then.
TEST_F(WorkerLoopTest, Shutdown_WhileARankComputes_RunReturnsAfterItsJob) {
  BeginForward();
  link_.Say(Shutdown{"enough"});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time to return too early
  device_.gate.may_end.Notify();
  thread_.join();
  EXPECT_TRUE(ended_.ok()) << ended_;
  EXPECT_EQ(forwards_ended_, 1);
}

// The output of the job that ends last is the input of the other rank, which is stopped already.
TEST_F(WorkerLoopTest, Stop_WhileARankComputes_RunReturnsAfterItsJob) {
  BeginForward();
  loop_.Stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time to return too early
  device_.gate.may_end.Notify();
  thread_.join();
  EXPECT_TRUE(ended_.ok()) << ended_;
  EXPECT_EQ(forwards_ended_, 1);
}

}  // namespace
}  // namespace weft::worker_loop_test
