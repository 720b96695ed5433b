// The life of a run without threads: the test does the tasks of the ranks itself.
#include "worker/shell/loop/run_life.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/hand_job.h"
#include "tests/unit/launching_device.h"
#include "worker/core/local_run.h"
#include "worker/shell/loop/loop_events.h"
#include "worker/shell/loop/run_shape.h"
#include "worker/shell/transport/loopback_transport.h"

namespace weft::run_life_test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kRun = 7;
constexpr int64_t kGrace = 1'000;

class NoLibrary final : public CommunicationLibrary {
 public:
  const std::string& name() const override { return name_; }
  absl::StatusOr<std::string> NewGroupId() override { return absl::UnavailableError("no network"); }
  absl::StatusOr<std::unique_ptr<Communicator>> Join(const std::string&, const std::vector<Rank>&, int,
                                                     int64_t, int64_t) override {
    return absl::UnavailableError("no network");
  }

 private:
  const std::string name_ = "none";
};

class HandDevice final : public Device {
 public:
  absl::string_view name() const override { return ranks_.name(); }
  int launch_ahead() const override { return ranks_.launch_ahead(); }
  CommunicationLibrary* communication() override { return &library_; }
  absl::StatusOr<std::unique_ptr<RankCompute>> CreateRank(const ScheduledRun& run, Rank rank,
                                                          MemorySource& memory) override {
    return ranks_.CreateRank(run, rank, memory);
  }
  int ranks() { return ranks_.ranks(); }

 private:
  LaunchingDevice ranks_{/*launch_ahead=*/2};
  NoLibrary library_;
};

class NoHost final : public WorkThreads::Host {
 public:
  void PrepareThread() override {}
  WorkThreads::Doing TaskAt(int /*seat*/) override { return {}; }
  void DoTask(int64_t /*now*/, int /*seat*/) override { ADD_FAILURE() << "the threads have been stopped"; }
  bool Poll() override { return false; }
  bool SendGathered() override { return false; }
  bool SendDue() override { return false; }
  std::optional<WorkThreads::Wait> PrepareToBlock() override { return std::nullopt; }
};

// A process that has both ranks of a pipeline.
class RunLifeTest : public ::testing::Test {
 protected:
  RunLifeTest() {
    options_.device_grace_ns = kGrace;
    assign_.run = kRun;
    assign_.epoch = 1;
    assign_.spec = R"({"name": "two", "model": {"gpt": {"layers": 2, "width": 32, "heads": 2, "context": 16}},
      "data": {"text": {"path": "/none"}, "order": "sequential"},
      "train": {"steps": 1, "batch": 4, "microbatches": 2, "seed": 1, "optimizer": {"adamw": {"lr": 0.001}}},
      "stages": 2, "schedule": {"1f1b": {}}})";
    assign_.process_of_rank = {0, 0};
    assign_.leases = {{0, {1, 1}}, {1, {1, 2}}};
    assign_.peers = {{0, transport_->address(), "process 0"}};
    MutexLock lock(mu_);
    threads_.Stop();
  }
  ~RunLifeTest() override {
    MutexLock lock(mu_);
    EXPECT_TRUE(threads_.Join(INT64_MAX));
  }

  absl::Status Begin(std::vector<PrepareEffect::Group> groups = {}) {
    run_ = std::make_unique<LocalRun>(assign_, *ParseRunShape(assign_.spec));
    PrepareEffect effect{assign_, {}, std::move(groups), run_->run()};
    MutexLock lock(mu_);
    return life_.Begin(/*now=*/0, run_->graph(), effect).status();
  }
  // Does the tasks of all seats. Returns the round that is over then.
  std::optional<RankRounds::Over> DoTasks() {
    MutexLock lock(mu_);
    std::optional<RankRounds::Over> over;
    for (int i = 0; i < static_cast<int>(seats_.size()); ++i) {
      EXPECT_FALSE(over.has_value()) << "before the last rank was done";
      Seat& seat = seats_.At(i);
      const absl::Status status =
          DoRankTask(std::exchange(seat.task, std::monostate{}), device_, memory_, &seat.compute);
      over = life_.Done(seat, status);
    }
    return over;
  }
  bool End(int64_t now) {
    MutexLock lock(mu_);
    return life_.End(now);
  }
  void Work() {
    ASSERT_TRUE(Begin().ok());
    ASSERT_EQ(DoTasks()->round, RankRounds::Round::kPrepare);
    std::optional<PeerId> at_fault;
    ASSERT_TRUE(life_.Connect({0, 1}, &at_fault).ok());
    ASSERT_TRUE(*life_.Join(0));
  }

  WorkerLoopOptions options_;
  Assign assign_;
  LoopbackNetwork network_;
  const std::unique_ptr<Transport> transport_ = network_.CreateTransport();
  HandDevice device_;
  PlainMemory memory_;
  std::unique_ptr<LocalRun> run_;
  Mutex mu_;
  NoHost host_;
  WorkThreads threads_{mu_, host_, /*own_threads=*/false};
  const LoopEvents events_{nullptr};
  RankSeats seats_;
  DeviceWork device_work_{{kGrace, kGrace}};
  Communicators communicators_;
  TakenTensors taken_;
  TensorExchange exchange_{*transport_, seats_, device_work_, events_, taken_};
  StartedJobs started_{seats_, exchange_, communicators_, device_work_, events_};
  StateSaver saver_{device_, memory_, {[](const auto&) {}, [](const auto&) {}, [](const auto&) {}}};
  RunLife life_{
      options_,
      {device_, *transport_, threads_, seats_, device_work_, exchange_, communicators_, started_, saver_}};
};

TEST_F(RunLifeTest, Run_IsPreparedThenJoinsThenWorks) {
  ASSERT_TRUE(Begin().ok());
  EXPECT_FALSE(life_.prepared());
  EXPECT_FALSE(life_.joins());
  const auto over = DoTasks();
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->round, RankRounds::Round::kPrepare);
  EXPECT_TRUE(over->status.ok()) << over->status;
  EXPECT_EQ(device_.ranks(), 2);
  std::optional<PeerId> at_fault;
  ASSERT_TRUE(life_.Connect({0, 1}, &at_fault).ok());
  EXPECT_TRUE(life_.prepared());
  EXPECT_TRUE(life_.joins());
  EXPECT_TRUE(*life_.Join(0)) << "it has no groups";
  EXPECT_FALSE(life_.joins());
  EXPECT_FALSE(life_.ends());
}

TEST_F(RunLifeTest, ProcessThatCannotBeReached_IsNamed) {
  assign_.peers.push_back({1, "nobody", "process 1"});
  ASSERT_TRUE(Begin().ok());
  DoTasks();
  std::optional<PeerId> at_fault;
  EXPECT_TRUE(absl::IsUnavailable(life_.Connect({0, 1}, &at_fault)));
  EXPECT_EQ(at_fault, 1);
  EXPECT_FALSE(life_.prepared());
}

// Reports and metrics ask for the seat of each rank that the core has.
TEST_F(RunLifeTest, RunThatCannotBegin_HasItsRanksSeated) {
  EXPECT_TRUE(absl::IsUnavailable(Begin({{/*number=*/0, /*rank=*/0, {0, 1}, /*self=*/0}})));
  EXPECT_NE(seats_.Of(0), nullptr);
  EXPECT_NE(seats_.Of(1), nullptr);
  EXPECT_TRUE(End(0)) << "no rank has anything to end";
  life_.Clear();
  EXPECT_EQ(seats_.Of(0), nullptr);
}

TEST_F(RunLifeTest, RunWhoseRanksPrepare_EndsBehindThem) {
  ASSERT_TRUE(Begin().ok());
  EXPECT_FALSE(End(0));
  EXPECT_TRUE(life_.ends());
  EXPECT_FALSE(life_.CanEnd());
  DoTasks();
  EXPECT_TRUE(life_.CanEnd());
  EXPECT_FALSE(End(0)) << "the ranks have yet to end";
  EXPECT_EQ(DoTasks()->round, RankRounds::Round::kEnd);
  EXPECT_EQ(device_.ranks(), 0);
  EXPECT_TRUE(End(0));
  EXPECT_FALSE(life_.ends());
}

TEST_F(RunLifeTest, DeviceThatWorks_KeepsTheRanks) {
  Work();
  const auto job = std::make_shared<HandJob>();
  device_work_.Add(LaunchedJobs::Launch{0, Job::Compute(0, 0, 0, JobKind::kForward), true, false, 0, job});
  EXPECT_FALSE(End(0));
  EXPECT_EQ(device_.ranks(), 2);
  EXPECT_TRUE(life_.prepared()) << "its memory is still there to be reported";
  EXPECT_FALSE(life_.CanEnd());
  job->answer = true;
  device_work_.Poll(0);
  EXPECT_TRUE(life_.CanEnd());
  EXPECT_FALSE(End(0));
  EXPECT_FALSE(life_.prepared());
  DoTasks();
  EXPECT_TRUE(End(0));
  life_.Clear();
  ASSERT_TRUE(Begin().ok()) << "the next run";
  DoTasks();
}

TEST_F(RunLifeTest, DeviceThatDoesNotEndARank_IsGivenUp) {
  Work();
  EXPECT_EQ(life_.next_look(), INT64_MAX);
  EXPECT_FALSE(End(/*now=*/10));
  EXPECT_EQ(life_.next_look(), 10 + kGrace);
  EXPECT_TRUE(life_.CheckEnd(10 + kGrace).ok());
  const absl::Status late = life_.CheckEnd(10 + kGrace + 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("rank 0 of run 7"));
  DoTasks();
  EXPECT_TRUE(life_.CheckEnd(10 + kGrace + 1).ok()) << "it ended late";
  EXPECT_TRUE(End(10 + kGrace + 2));
  life_.Clear();
  EXPECT_EQ(life_.next_look(), INT64_MAX);
}

TEST_F(RunLifeTest, CopiesThatAreNotHere_AreADamagedCheckpoint) {
  Work();
  ResumeEffect effect{1, 0, {{0, 0, {{0, 0}}}}};
  EXPECT_FALSE(life_.Resume(effect).ok());
  effect.stages.clear();
  EXPECT_FALSE(*life_.Resume(effect)) << "no rank has to begin with copies";
  EXPECT_FALSE(End(0));
  DoTasks();
}

}  // namespace
}  // namespace weft::run_life_test
