// Whole runs whose ranks reduce by collectives: the coordinator's core, the workers' loops and the adapter of
// NCCL, each worker with a device of its own, in one process over fakes (fake_cuda.h) and a loopback
// transport; what is computed is computed by the CPU.
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "coordinator/core/coordinator_core.h"
#include "coordinator/shell/spec_planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/run_schedule.h"
#include "tests/conformance/fake_cuda.h"
#include "tests/conformance/link_in_process.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/cuda/nccl_communicator.h"
#include "worker/shell/loop/worker_loop.h"
#include "worker/shell/transport/loopback_transport.h"

namespace weft::collective_training_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using testing::FakeCommunicators;
using testing::FakeOperationsDone;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::Reference;
using ::testing::StartsWith;

constexpr int64_t kPatience = 120'000'000'000;

// The CPU, as if it were a GPU with a number and memory of its own, which is there longer than the transport.
class NumberedDevice final : public Device {
 public:
  NumberedDevice(Device& cpu, int number, bool shared)
      : cpu_(cpu),
        name_(absl::StrCat("fake:", number)),
        uuid_(shared ? "fake-uuid" : absl::StrCat("fake-uuid-", number)),
        communication_(CreateNcclLibrary(number)) {}
  absl::string_view name() const override { return name_; }
  absl::string_view uuid() const override { return uuid_; }
  CommunicationLibrary* communication() override { return communication_.get(); }
  absl::StatusOr<std::unique_ptr<RankCompute>> CreateRank(const ScheduledRun& run, Rank rank,
                                                          MemorySource&) override {
    return cpu_.CreateRank(run, rank, memory_);
  }

 private:
  Device& cpu_;
  PlainMemory memory_;
  const std::string name_, uuid_;
  const std::unique_ptr<CommunicationLibrary> communication_;
};

// A coordinator's core and the workers, by plain calls.
class Cluster {
 public:
  struct Options {
    int processes = 2;
    bool share_a_device = false;
    WorkerLoopOptions loop = {/*spin_microseconds=*/0};
  };

  explicit Cluster(const Options& options) {
    static Device* const cpu = CreateCpuDevice().release();
    for (int p = 0; p < options.processes; ++p) {
      workers_.push_back(std::make_unique<Worker>(*this, p, *cpu, options));
      Worker& w = *workers_.back();
      Step(SessionOpened{w.session});
      Step(SessionMessage{w.session,
                          Hello{absl::StrCat("w", p), "h", 100 + p, p, w.transport->address(), "fake",
                                std::string(w.device.uuid()), w.device.communication()->name()}});
    }
    for (auto& w : workers_) w->thread = std::thread([&w = *w] { w.loop.Run().IgnoreError(); });
  }
  ~Cluster() {
    for (auto& w : workers_) Kill(w->number);
  }

  uint64_t Submit(const RunSpec& run, const std::string& output) {
    const std::string spec = ToJson(run).dump();
    auto plan = PlanRun(run, *ScheduleOf(run));
    EXPECT_TRUE(plan.ok()) << plan.status();
    Step(SubmitRun{1, "", *plan, spec, static_cast<int32_t>(workers_.size()), output});
    return 1;
  }
  // The run once `until` says so, or it has ended.
  template <typename Until>
  RunInfo AwaitRun(uint64_t run, Until until) {
    const int64_t deadline = MonotonicNow() + kPatience;
    while (true) {
      Step(Tick{});
      {
        MutexLock lock(mu_);
        const RunInfo info = *core_.GetRun(run);
        if (IsFinal(info.state) || until(info)) return info;
        if (MonotonicNow() > deadline) {
          ADD_FAILURE() << "the run is still " << RunStateName(info.state);
          return info;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  RunInfo AwaitEnd(uint64_t run) {
    return AwaitRun(run, [](const RunInfo&) { return false; });
  }
  // Acts as if the process had died.
  void Kill(int process) {
    Worker& w = *workers_[process];
    if (!w.thread.joinable()) return;
    w.loop.Stop();
    w.thread.join();
    Step(SessionClosed{w.session, "killed"});
  }
  std::vector<double> losses() {
    MutexLock lock(mu_);
    return losses_;
  }
  std::vector<double> norms() {
    MutexLock lock(mu_);
    return norms_;
  }
  // Returns why the run changed its state, each time.
  std::vector<std::string> reasons() {
    MutexLock lock(mu_);
    return reasons_;
  }
  uint64_t fenced() {
    MutexLock lock(mu_);
    return core_.probe().fenced;
  }

  void Step(Event event) {
    Effects effects;
    {
      MutexLock lock(mu_);
      effects = core_.Step(MonotonicNow(), std::move(event));
      for (const StepDone& s : effects.steps) {
        losses_.push_back(s.loss);
        if (s.gradient_norm.has_value()) norms_.push_back(*s.gradient_norm);
      }
      for (const RunInfo& run : effects.runs) reasons_.push_back(run.reason);
      // Messages are delivered in the order in which the core sent them.
      for (OutgoingMessage& m : effects.messages) {
        for (auto& w : workers_) {
          if (w->session == m.session) w->link.Say(std::move(m.message));
        }
      }
    }
  }

 private:
  struct Worker {
    Worker(Cluster& cluster, int p, Device& cpu, const Options& options)
        : number(p),
          session(p + 1),
          device(cpu, p, options.share_a_device),
          transport(cluster.network_.CreateTransport()),
          link([&cluster, this](FromWorker m) {
            cluster.Step(SessionMessage{session, std::move(m)});
          }),
          loop(options.loop, device, *transport, link) {}
    const int number;
    const SessionId session;
    NumberedDevice device;
    const std::unique_ptr<Transport> transport;
    LinkInProcess link;
    WorkerLoop loop;
    std::thread thread;
  };

  LoopbackNetwork network_;
  std::vector<std::unique_ptr<Worker>> workers_;  // all made before the first thread
  Mutex mu_;
  CoordinatorCore core_ ABSL_GUARDED_BY(mu_){CoreOptions{}};
  std::vector<double> losses_ ABSL_GUARDED_BY(mu_), norms_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> reasons_ ABSL_GUARDED_BY(mu_);
};

RunSpec FastRun(const std::string& folder, const std::string& schedule, int stages, int microbatches) {
  RunSpec run = testing::SmallGptRun(folder, stages);
  run.train.microbatches = microbatches;
  run.train.batch = 3 * microbatches;
  run.schedule = *ParseScheduleText(schedule);
  return run;
}

// The greatest difference of any element, relative to the greatest of its tensor.
double Difference(const std::map<std::string, std::vector<uint8_t>>& a,
                  const std::map<std::string, std::vector<uint8_t>>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (const auto& [name, bytes] : a) {
    const auto& other = b.at(name);
    EXPECT_EQ(bytes.size(), other.size()) << name;
    std::vector<float> x(bytes.size() / sizeof(float)), y(x.size());
    std::memcpy(x.data(), bytes.data(), x.size() * sizeof(float));
    std::memcpy(y.data(), other.data(), y.size() * sizeof(float));
    float scale = 1e-6f, difference = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      scale = std::max(scale, std::fabs(x[i]));
      difference = std::max(difference, std::fabs(x[i] - y[i]));
    }
    most = std::max<double>(most, difference / scale);
  }
  return most;
}

void ExpectTheBitsOf(const Outcome& plain, Cluster& cluster, const std::string& folder) {
  EXPECT_EQ(testing::ReadCheckpoint(folder + "/checkpoint"), plain.trained);
  EXPECT_EQ(cluster.losses(), plain.losses);
  EXPECT_EQ(cluster.norms(), plain.norms);
}

TEST(CollectiveTraining, TwoMicrobatches_TheBitsOfThePlainLoop) {
  // A sum of two is the same in any order.
  for (const double clip : {0.0, 0.05}) {
    TestFolder folder;
    RunSpec run = FastRun(folder.path(), "ddp,reduction=fast", 3, 2);
    run.train.clip_norm = clip;
    const Outcome plain = Reference(run);
    const int before = FakeOperationsDone();
    Cluster cluster({});
    const RunInfo info = cluster.AwaitEnd(cluster.Submit(run, folder.path()));
    ASSERT_EQ(info.state, RunState::kFinished) << info.reason;
    EXPECT_EQ(info.reduction, absl::StrCat("fast: the fake devices sum by ", CreateNcclLibrary(0)->name()));
    ExpectTheBitsOf(plain, cluster, folder.path());
    // Every stage of every step, once a member.
    EXPECT_EQ(FakeOperationsDone() - before, run.train.steps * 3 * 2);
    for (const RankReport& report : info.reports) {
      EXPECT_EQ(report.bytes_sent.at("gradient"), 0);
      EXPECT_GT(report.bytes_sent.at("gradient_sum"), 0);
    }
  }
  EXPECT_TRUE(testing::AwaitFakeCommunicators(0));
}

// Slices that differ are moved one by one.
int OperationsOfSlices(const RunSpec& run, int stage) {
  const int64_t elements = LayOutStage(run, stage).elements;
  const auto length = [&](int part) {
    return SliceOf(elements, part, 2).end - SliceOf(elements, part, 2).begin;
  };
  return length(0) == length(1) ? 1 : 2;
}

TEST(CollectiveTraining, WeightsInSlices_TwoMicrobatches_TheBitsOfThePlainLoop) {
  for (const double clip : {0.0, 0.05}) {
    TestFolder folder;
    RunSpec run = FastRun(folder.path(), "fsdp,shard=width,reduction=fast", 3, 2);
    run.train.clip_norm = clip;
    const Outcome plain = Reference(run);
    const int before = FakeOperationsDone();
    Cluster cluster({});
    const RunInfo info = cluster.AwaitEnd(cluster.Submit(run, folder.path()));
    ASSERT_EQ(info.state, RunState::kFinished) << info.reason;
    EXPECT_THAT(info.reduction, StartsWith("fast: "));
    // Every stage has these in every step, by both members: weights for the forward and the backward, and the
    // gradient.
    int operations = 0;
    for (int s = 0; s < 3; ++s) operations += 2 * 3 * OperationsOfSlices(run, s);
    EXPECT_EQ(FakeOperationsDone() - before, run.train.steps * operations);
    ExpectTheBitsOf(plain, cluster, folder.path());
    ASSERT_EQ(info.reports.size(), 2u);
    for (const RankReport& report : info.reports) {
      EXPECT_EQ(report.bytes_sent.at("gradient"), 0);
      EXPECT_GT(report.bytes_sent.at("gradient_sum"), 0);
      // A ring passes all but one of n parts on.
      EXPECT_EQ(report.bytes_sent.at("weights"), 2 * report.bytes_sent.at("gradient_sum"));
      EXPECT_EQ(report.peak_weight_versions, 1);
    }
  }
  EXPECT_TRUE(testing::AwaitFakeCommunicators(0));
}

TEST(CollectiveTraining, ManyMicrobatchesAndGroups_ThePlainLoopUpToRounding) {
  struct Case {
    std::string schedule;
    int stages, microbatches, processes;
    double clip;
  };
  for (const Case& c :
       {Case{"ddp,reduction=fast", 2, 4, 4, 0}, Case{"lpp,groups=2,ranks=2,reduction=fast", 2, 8, 4, 0.05},
        Case{"lpp,groups=3,ranks=1,reduction=fast", 3, 6, 3, 0},
        Case{"dualpipe,reduction=fast", 2, 6, 2, 0.05}, Case{"fsdp,shard=width,reduction=fast", 2, 4, 4, 0},
        Case{"fsdp,shard=width,reduction=fast", 3, 4, 4, 0.05}}) {
    SCOPED_TRACE(c.schedule);
    TestFolder folder;
    RunSpec run = FastRun(folder.path(), c.schedule, c.stages, c.microbatches);
    run.train.clip_norm = c.clip;
    run.train.optimizer = testing::Sgd();  // adamw divides by what may be next to nothing
    const Outcome plain = Reference(run);
    const int before = FakeOperationsDone();
    Cluster::Options options;
    options.processes = c.processes;
    Cluster cluster(options);
    const RunInfo info = cluster.AwaitEnd(cluster.Submit(run, folder.path()));
    ASSERT_EQ(info.state, RunState::kFinished) << info.reason;
    EXPECT_THAT(info.reduction, StartsWith("fast: "));
    EXPECT_LT(Difference(testing::ReadCheckpoint(folder.path() + "/checkpoint"), plain.trained), 1e-5);
    ASSERT_EQ(cluster.norms().size(), plain.norms.size());
    EXPECT_GT(FakeOperationsDone(), before);
  }
  EXPECT_TRUE(testing::AwaitFakeCommunicators(0));
}

TEST(CollectiveTraining, RanksThatShareADevice_AreOrderedAndSayWhy) {
  TestFolder folder;
  const RunSpec run = FastRun(folder.path(), "ddp,reduction=fast", 2, 2);
  const Outcome plain = Reference(run);
  const int before = FakeOperationsDone();
  Cluster::Options options;
  options.share_a_device = true;
  Cluster cluster(options);
  const RunInfo info = cluster.AwaitEnd(cluster.Submit(run, folder.path()));
  ASSERT_EQ(info.state, RunState::kFinished) << info.reason;
  EXPECT_THAT(info.reduction,
              AllOf(StartsWith("fast is done as ordered: "), HasSubstr("share the device fake-uuid")));
  EXPECT_EQ(testing::ReadCheckpoint(folder.path() + "/checkpoint"), plain.trained);
  EXPECT_EQ(FakeOperationsDone(), before);
}

TEST(CollectiveTraining, AMemberDies_TheRunFailsWithItsNameAndNothingHangs) {
  for (const char* schedule : {"ddp,reduction=fast", "fsdp,shard=width,reduction=fast"}) {
    SCOPED_TRACE(schedule);
    TestFolder folder;
    RunSpec run = FastRun(folder.path(), schedule, 2, 3);
    run.train.steps = 100'000;
    run.restarts = 0;
    Cluster::Options options;
    options.processes = 3;
    Cluster cluster(options);
    const uint64_t id = cluster.Submit(run, "");
    const RunInfo running = cluster.AwaitRun(id, [](const RunInfo& r) { return r.steps_done > 2; });
    ASSERT_EQ(running.state, RunState::kRunning) << running.reason;
    cluster.Kill(1);
    const RunInfo info = cluster.AwaitEnd(id);
    EXPECT_EQ(info.state, RunState::kFailed);
    EXPECT_THAT(info.reason, HasSubstr("process 1 (w1"));
    // The others forget the run, and leave its groups.
    const int64_t deadline = MonotonicNow() + kPatience;
    while (FakeCommunicators() > 1 && MonotonicNow() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_LE(FakeCommunicators(), 1) << "but for the dead one's, which nobody destroyed";
  }
}

TEST(CollectiveTraining, ACollectiveThatHangs_TheRunBeginsAgainAndEndsWithTheBitsOfThePlainLoop) {
  for (const char* schedule : {"ddp,reduction=fast", "fsdp,shard=width,reduction=fast"}) {
    SCOPED_TRACE(schedule);
    TestFolder folder;
    RunSpec run = FastRun(folder.path(), schedule, 2, 2);
    run.restarts = 1;
    run.job_timeout.at_least = 1;
    const Outcome plain = Reference(run);
    Cluster cluster({});
    testing::HangNextFakeOperation();
    const uint64_t id = cluster.Submit(run, folder.path());
    const RunInfo info = cluster.AwaitEnd(id);
    ASSERT_EQ(info.state, RunState::kFinished) << info.reason;
    EXPECT_EQ(info.restarts, 1);
    EXPECT_THAT(cluster.reasons(),
                Contains(AllOf(HasSubstr("the collective of "), HasSubstr("on ranks 0, 1 hangs"))));
    ExpectTheBitsOf(plain, cluster, folder.path());
  }
}

TEST(CollectiveTraining, ANcclErrorInTheMiddle_EndsTheRunWithItsWords) {
  TestFolder folder;
  RunSpec run = FastRun(folder.path(), "ddp,reduction=fast", 2, 2);
  run.train.steps = 100'000;
  Cluster cluster({});
  const uint64_t id = cluster.Submit(run, "");
  cluster.AwaitRun(id, [](const RunInfo& r) { return r.steps_done > 2; });
  testing::SetFakeNcclError(ncclSystemError);
  const RunInfo info = cluster.AwaitEnd(id);
  testing::SetFakeNcclError(ncclSuccess);
  EXPECT_EQ(info.state, RunState::kFailed);
  EXPECT_THAT(info.reason,
              AllOf(HasSubstr("reduce (step "), HasSubstr("NCCL: "), HasSubstr("group of ranks 0, 1")));
}

}  // namespace
}  // namespace weft::collective_training_test
