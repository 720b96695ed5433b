// The worker's threads and waiting where a device is given jobs ahead, in one process or two: the numbers are
// right only if nothing was read before the device had made it, or after it was given up.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/dispatch/claim_order.h"
#include "tests/unit/launching_device.h"
#include "tests/unit/scripted_link.h"
#include "worker/shell/loop/job_runner.h"
#include "worker/shell/loop/run_shape.h"
#include "worker/shell/loop/worker_loop.h"
#include "worker/shell/transport/loopback_transport.h"

namespace weft::worker_launching_test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kRun = 7;
constexpr int kSteps = 3;

struct Case {
  const char *name, *schedule;
  int stages, microbatches, processes;
  bool carries;
};

// A worker process, without the process.
struct Worker {
  Worker(LoopbackNetwork& network, int launch_ahead, bool carries, WorkerLoopOptions options)
      : device(launch_ahead),
        transport(carries ? CarryDeviceMemory(network.CreateTransport(), &device.queue)
                          : network.CreateTransport()),
        loop(options, device, *transport, link),
        thread([this] {
          link.on_send = [this](const FromWorker& message) {
            MutexLock lock(mu);
            if (const auto* f = std::get_if<Failed>(&message)) failed = f->reason;
          };
          ended = loop.Run();
          returned = true;
        }) {}
  ~Worker() { Join(); }
  void Join() {
    if (!thread.joinable()) return;
    loop.Stop();
    thread.join();
  }

  std::string failure() {
    MutexLock lock(mu);
    return failed;
  }

  LaunchingDevice device;
  std::unique_ptr<Transport> transport;
  Mutex mu;
  std::string failed ABSL_GUARDED_BY(mu);
  ScriptedLink link;
  WorkerLoop loop;
  absl::Status ended;
  std::atomic<bool> returned{false};
  std::thread thread;  // last: it uses everything above
};

class LaunchingLoopTest : public ::testing::Test {
 protected:
  void Plan(const Case& c, int launch_ahead) {
    spec_ = absl::Substitute(
        R"({"name": "ahead", "model": {"gpt": {"layers": 6, "width": 32, "heads": 2, "context": 16}},
          "data": {"text": {"path": "/none"}, "order": "sequential"},
          "train": {"steps": $3, "batch": $0, "microbatches": $0, "seed": 1,
                    "optimizer": {"adamw": {"lr": 0.001}}},
          "stages": $1, "schedule": $2})",
        c.microbatches, c.stages, c.schedule, kSteps);
    const auto shape = ParseRunShape(spec_);
    ASSERT_TRUE(shape.ok()) << shape.status();
    graph_ = std::make_unique<Graph>(shape->schedule, kSteps);
    processes_ = c.processes;
    for (int p = 0; p < processes_; ++p) {
      // No thread wakes by chance: a thread that waits is woken for what the device is given.
      constexpr int64_t kHour = 3'600'000'000'000;
      WorkerLoopOptions options = {/*spin_microseconds=*/20, /*report_interval_ns=*/kHour,
                                   /*look_interval_ns=*/kHour};
      options.device_grace_ns = grace_ns_;
      workers_.push_back(std::make_unique<Worker>(network_, launch_ahead, c.carries, options));
      workers_.back()->device.set_graph(graph_.get());
    }
  }
  static void AwaitReturn(const Worker& worker) {
    const int64_t deadline = MonotonicNow() + kPatience;
    while (!worker.returned && MonotonicNow() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // It has returned without what the device holds.
  static void ExpectGivenUp(Worker& worker) {
    ASSERT_TRUE(worker.returned);
    worker.Join();
    EXPECT_TRUE(absl::IsDeadlineExceeded(worker.ended)) << worker.ended;
    EXPECT_TRUE(worker.loop.hangs());
  }
  int ProcessOf(Rank rank) const { return rank * processes_ / graph_->schedule().ranks; }
  static Token TokenOf(Rank rank) { return {1, static_cast<uint64_t>(rank) + 1}; }

  void Assign(uint64_t run) {
    for (int p = 0; p < processes_; ++p) {
      weft::Assign a;
      a.run = run;
      a.epoch = 1;
      a.spec = spec_;
      a.output = ::testing::TempDir() + "/weft-launching-none";
      for (Rank rank = 0; rank < graph_->schedule().ranks; ++rank) {
        a.process_of_rank.push_back(ProcessOf(rank));
        if (ProcessOf(rank) == p) a.leases.push_back({rank, TokenOf(rank)});
      }
      for (int q = 0; q < processes_; ++q)
        a.peers.push_back({q, workers_[q]->transport->address(), absl::StrCat("process ", q)});
      workers_[p]->link.Say(a);
    }
  }
  void Begin(uint64_t run = kRun) {
    Assign(run);
    for (auto& worker : workers_) ASSERT_TRUE(worker->link.Await<Prepared>().has_value());
    const std::vector<std::vector<Job>> claims = ClaimOrder(*graph_)->front();
    for (int step = 0; step < kSteps; ++step) {
      for (Rank rank = 0; rank < graph_->schedule().ranks; ++rank) {
        std::vector<Job> jobs = claims[rank];
        for (Job& job : jobs) job.step = step;
        workers_[ProcessOf(rank)]->link.Say(Grant{run, rank, TokenOf(rank), jobs});
      }
    }
  }
  // Every job has been told of once, with times and the loss of the device.
  void AwaitCompletions() {
    std::map<Job, Completion> reported;
    for (int p = 0; p < processes_; ++p) {
      size_t jobs = 0;
      for (int64_t i = 0; i < graph_->jobs_per_step(); ++i)
        jobs += ProcessOf(graph_->RankOf(graph_->JobAt(0, static_cast<int>(i)))) == p;
      for (size_t ended = 0; ended < kSteps * jobs;) {
        const auto completions = workers_[p]->link.Await<Completions>();
        ASSERT_TRUE(completions.has_value())
            << ended << " of " << kSteps * jobs << " jobs ended; " << workers_[p]->failure();
        ended += completions->jobs.size();
        for (const Completion& c : completions->jobs)
          ASSERT_TRUE(reported.emplace(c.job, c).second) << Describe(c.job);
      }
    }
    for (const auto& [job, completion] : reported) {
      EXPECT_LT(completion.start_ns, completion.end_ns) << Describe(job);
      const bool has_loss = job.kind == JobKind::kForward && job.stage + 1 == graph_->schedule().stages;
      EXPECT_EQ(completion.has_loss, has_loss) << Describe(job);
    }
  }
  void Finish(uint64_t run = kRun) {
    for (auto& worker : workers_) worker->link.Say(TakeSnapshot{run, kSteps});
    for (auto& worker : workers_) {
      const auto saved = worker->link.Await<SnapshotSaved>();
      ASSERT_TRUE(saved.has_value());
      EXPECT_EQ(saved->failure, "");
    }
    for (auto& worker : workers_) worker->link.Say(weft::Finish{run});
    for (auto& worker : workers_) ASSERT_TRUE(worker->link.Await<Finished>().has_value());
    const std::vector<Held> plain = PlainLoop(*graph_, kSteps);
    size_t saved = 0;
    for (auto& worker : workers_) {
      EXPECT_EQ(worker->device.queue.problem(), "");
      for (const auto& [where, weights] : worker->device.saved()) {
        ++saved;
        EXPECT_EQ(weights.first, kSteps);
        EXPECT_EQ(weights.second, plain[kSteps][where.second][0])
            << "stage " << where.second << " on rank " << where.first;
      }
    }
    EXPECT_GE(saved, static_cast<size_t>(graph_->schedule().stages));
  }

  int64_t grace_ns_ = kPatience;
  LoopbackNetwork network_;
  std::string spec_;
  std::unique_ptr<Graph> graph_;
  int processes_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
};

class LaunchingLoopsTest : public LaunchingLoopTest, public ::testing::WithParamInterface<Case> {};

TEST_P(LaunchingLoopsTest, AnyOrderOfTheDevicesWork_EndsWithThePlainLoopsWeights) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    workers_.clear();
    ASSERT_NO_FATAL_FAILURE(Plan(GetParam(), /*launch_ahead=*/1 + static_cast<int>(seed)));
    for (auto& worker : workers_) worker->device.queue.Run(seed);
    ASSERT_NO_FATAL_FAILURE(Begin());
    ASSERT_NO_FATAL_FAILURE(AwaitCompletions());
    ASSERT_NO_FATAL_FAILURE(Finish());
    int most = 0;
    for (auto& worker : workers_) {
      most = std::max(most, worker->device.queue.max_ahead());
      EXPECT_EQ(worker->loop.Snapshot().failures, 0u);
      while (worker->device.ranks() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      worker->Join();
      EXPECT_TRUE(worker->ended.ok()) << worker->ended;
    }
    EXPECT_GT(most, 1) << "jobs were given ahead";
    // There are as many more beside forwards.
    EXPECT_LE(most, (graph_->has_pairs() ? 2 : 1) * (1 + static_cast<int>(seed)));
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, LaunchingLoopsTest,
                         ::testing::Values(Case{"PipelineInOneProcess", R"({"1f1b": {}})", 4, 4, 1, false},
                                           Case{"PipelineStaged", R"({"1f1b": {}})", 4, 4, 2, false},
                                           Case{"PipelineCarried", R"({"1f1b": {}})", 4, 4, 2, true},
                                           Case{"SplitBackwardCarried", R"({"zb_h1": {}})", 4, 4, 2, true},
                                           Case{"ReplicasStaged", R"({"ddp": {}})", 2, 4, 2, false},
                                           Case{"ReplicasCarried", R"({"ddp": {}})", 2, 4, 2, true},
                                           Case{"ShardsStaged", R"({"fsdp": {}})", 4, 4, 2, false},
                                           Case{"ShardsCarried", R"({"fsdp": {}})", 4, 4, 2, true},
                                           Case{"PairsInOneProcess", R"({"dualpipe_v": {}})", 4, 8, 1, false},
                                           Case{"PairsCarried", R"({"dualpipe_v": {}})", 4, 8, 2, true}),
                         [](const auto& info) { return std::string(info.param.name); });

constexpr Case kPipeline = {"Pipeline", R"({"1f1b": {}})", 2, 4, 2, true};

// The output waits until the device has made it; the peer that waits for it cannot tell otherwise.
TEST_F(LaunchingLoopTest, OutputForAnotherProcess_LeavesWhenItsJobIsDone) {
  ASSERT_NO_FATAL_FAILURE(Plan(kPipeline, 2));
  ASSERT_NO_FATAL_FAILURE(Begin());
  DeviceQueue &first = workers_[0]->device.queue, &second = workers_[1]->device.queue;
  while (first.Unfinished(0).size() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time to send it too early
  EXPECT_EQ(workers_[0]->loop.Snapshot().transport.tensors_sent, 0u);
  EXPECT_TRUE(second.Unfinished(1).empty());
  EXPECT_FALSE(second.RunOne());
  ASSERT_TRUE(first.RunOne());
  while (second.Unfinished(1).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (auto& worker : workers_) worker->device.queue.Run(1);
  ASSERT_NO_FATAL_FAILURE(AwaitCompletions());
  ASSERT_NO_FATAL_FAILURE(Finish());
}

TEST_F(LaunchingLoopTest, DeviceThatFails_NamesTheJobAndServesTheNextRun) {
  ASSERT_NO_FATAL_FAILURE(Plan({"One", R"({"1f1b": {}})", 2, 4, 1, false}, 3));
  workers_[0]->device.queue.FailAt(Job::Compute(1, 1, 2, JobKind::kBackward));
  workers_[0]->device.queue.Run(5);
  ASSERT_NO_FATAL_FAILURE(Begin());
  const auto failed = workers_[0]->link.Await<Failed>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_THAT(failed->reason, HasSubstr("an illegal address"));
  EXPECT_THAT(failed->reason, HasSubstr("on rank "));
  EXPECT_THAT(failed->reason, HasSubstr("step 1"));
  workers_[0]->link.Say(Abort{kRun, "a job failed"});
  Assign(kRun + 1);
  const auto prepared = workers_[0]->link.Await<Prepared>();
  ASSERT_TRUE(prepared.has_value());
  EXPECT_EQ(prepared->run, kRun + 1);
  EXPECT_EQ(workers_[0]->loop.Snapshot().failures, 1u);
  EXPECT_EQ(workers_[0]->device.queue.problem(), "");
}

TEST_F(LaunchingLoopTest, StopWhileJobsAreLaunched_RunReturnsWhenTheyAreDone) {
  ASSERT_NO_FATAL_FAILURE(Plan(kPipeline, 3));
  ASSERT_NO_FATAL_FAILURE(Begin());
  Worker& first = *workers_[0];
  while (first.device.queue.Unfinished(0).size() < 2)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  first.loop.Stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time to return too early
  EXPECT_FALSE(first.returned);
  while (!first.returned) first.device.queue.RunOne();
  first.Join();
  EXPECT_TRUE(first.ended.ok()) << first.ended;
  EXPECT_FALSE(first.loop.hangs());
  EXPECT_TRUE(first.device.queue.Unfinished(0).empty());
  workers_[1]->device.queue.Run(2);  // what the other has got from it meanwhile
}

TEST_F(LaunchingLoopTest, AbortWhileJobsAreLaunched_NextRunBeginsWhenTheyAreDone) {
  ASSERT_NO_FATAL_FAILURE(Plan({"One", R"({"1f1b": {}})", 2, 4, 1, false}, 3));
  ASSERT_NO_FATAL_FAILURE(Begin());
  Worker& worker = *workers_[0];
  while (worker.device.queue.Unfinished(0).size() < 2)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  worker.link.Say(Abort{kRun, "cancelled"});
  Assign(kRun + 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time to begin too early
  EXPECT_EQ(worker.device.ranks(), 2);
  worker.device.queue.Run(3);
  const auto prepared = worker.link.Await<Prepared>();
  ASSERT_TRUE(prepared.has_value());
  EXPECT_EQ(prepared->run, kRun + 1);
  EXPECT_EQ(worker.device.queue.problem(), "");
}

// A tensor that a launched job only passes on waits for the job where the device may still write it, as its
// own outputs do.
TEST(LaunchedReduce, SumThatCame_IsThereAsItWas) {
  LaunchingDevice device(2);
  device.PrepareThread();
  PlainMemory memory;
  const auto rank = *device.CreateRank(ScheduledRun(), 0, memory);
  for (const MemoryPlace place : {MemoryPlace::kHost, MemoryPlace::kDevice}) {
    JobTask task;
    task.start.job = Job::Reduce(0, 1, 0);
    task.start.inputs.emplace_back();
    task.start.inputs.back().kind = TensorKind::kGradientSum;
    task.inputs = {device.queue.NewTensor(place)};
    const void* const bytes = task.inputs[0].data;
    const JobOutcome outcome = RunJob(*rank, std::move(task));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    ASSERT_NE(outcome.launched, nullptr);
    EXPECT_EQ(outcome.gradient_sum.data, bytes);
    EXPECT_EQ(outcome.gradient_sum.ready, place == MemoryPlace::kHost ? nullptr : outcome.launched);
    while (device.queue.RunOne()) continue;
  }
}

class HangingDeviceTest : public LaunchingLoopTest {
 protected:
  void SetUp() override {
    grace_ns_ = 50'000'000;
    ASSERT_NO_FATAL_FAILURE(Plan({"One", R"({"1f1b": {}})", 2, 4, 1, false}, 2));
    workers_[0]->device.queue.HangAt(Job::Compute(0, 1, 1, JobKind::kForward));
    workers_[0]->device.queue.Run(3);
    ASSERT_NO_FATAL_FAILURE(Begin());
    while (!workers_[0]->device.queue.hangs()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void ExpectReturn() {
    Worker& worker = *workers_[0];
    AwaitReturn(worker);
    ASSERT_NO_FATAL_FAILURE(ExpectGivenUp(worker));
    EXPECT_THAT(std::string(worker.ended.message()), HasSubstr("on rank "));
    EXPECT_THAT(std::string(worker.ended.message()), HasSubstr("has not done it"));
    EXPECT_GT(worker.device.ranks(), 0) << "what the device may still use was left";
  }
};

TEST_F(HangingDeviceTest, Stop_ReturnsAfterItsDeadlineWithTheNameOfTheJob) {
  workers_[0]->loop.Stop();
  ExpectReturn();
}

TEST_F(HangingDeviceTest, Abort_ReturnsAfterItsDeadlineWithTheNameOfTheJob) {
  workers_[0]->link.Say(Abort{kRun, "cancelled"});
  ExpectReturn();
}

// The driver may block a thread that gives it more work.
TEST_F(LaunchingLoopTest, StopWhileAThreadIsHeldInTheDevice_ReturnsAfterItsDeadline) {
  grace_ns_ = 50'000'000;
  ASSERT_NO_FATAL_FAILURE(Plan({"One", R"({"1f1b": {}})", 2, 4, 1, false}, 2));
  Worker& worker = *workers_[0];
  worker.device.HoldAt(Job::Compute(0, 1, 0, JobKind::kForward));
  worker.device.queue.Run(3);
  ASSERT_NO_FATAL_FAILURE(Begin());
  while (!worker.device.holds()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  worker.loop.Stop();
  AwaitReturn(worker);
  static_cast<void>(workers_[0].release());  // the thread that is held uses it for ever
  ASSERT_NO_FATAL_FAILURE(ExpectGivenUp(worker));
}

// The held thread may also be one that ends a rank of a run that nothing else holds any more.
TEST_F(LaunchingLoopTest, AbortWhileARankIsHeldAtItsEnd_ReturnsAfterItsDeadlineWithItsName) {
  grace_ns_ = 50'000'000;
  ASSERT_NO_FATAL_FAILURE(Plan({"One", R"({"1f1b": {}})", 2, 4, 1, false}, 2));
  Worker& worker = *workers_[0];
  worker.device.HoldEnds();
  Assign(kRun);
  ASSERT_TRUE(worker.link.Await<Prepared>().has_value());
  worker.link.Say(Abort{kRun, "cancelled"});
  AwaitReturn(worker);
  static_cast<void>(workers_[0].release());  // the threads that are held use it for ever
  ASSERT_NO_FATAL_FAILURE(ExpectGivenUp(worker));
  EXPECT_THAT(std::string(worker.ended.message()), HasSubstr("the work that ends rank "));
}

}  // namespace
}  // namespace weft::worker_launching_test
