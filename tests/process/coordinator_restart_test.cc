// A coordinator with a store that is killed, or stopped, and started again, with the real programs: no run is
// lost, each step is reported once, and the weights are those of an undisturbed run. The workers come back by
// themselves.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/disturbed_service.h"

namespace weft::coordinator_restart_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class CoordinatorRestart : public DisturbedService {
 protected:
  void StartCoordinator() {
    coordinator_ = std::make_unique<Command>(
        std::vector<std::string>{"weft-coordinator", "--listen", address_, "--output-root", folder_.path(),
                                 "--store", folder_ / "store"});
    ASSERT_TRUE(coordinator_->WaitFor("listening on", kSeconds));
  }
  void StartWorkers(int count) { DisturbedService::StartWorkers(*coordinator_, count); }
  void KillCoordinator() {
    coordinator_->Signal(SIGKILL);
    coordinator_->Wait(kSeconds);
  }

  std::unique_ptr<Command> coordinator_;
};

// A schedule, and sections of the run file for it.
struct Restarted {
  const char* schedule;
  std::map<std::string, std::string> changes = {};
};

class CoordinatorRestartOf : public CoordinatorRestart, public ::testing::WithParamInterface<Restarted> {};

TEST_P(CoordinatorRestartOf, KilledTwiceInMidRun_GoesOnWithItsAttemptAndMakesNoJobAgain) {
  const std::string file = WriteRun(GetParam().schedule, 90, GetParam().changes);
  TrainReference(file);
  StartCoordinator();
  StartWorkers(2);
  Submit(file);
  const auto watcher =
      std::make_unique<Command>(std::vector<std::string>{"weft", "wait", "1", "--coordinator", address_});
  size_t steps = 12;
  for (int kills = 0; kills < 2; ++kills) {
    ASSERT_TRUE(AwaitSteps(steps));
    ASSERT_FALSE(HasSummary()) << "it was too quick to be killed";
    KillCoordinator();
    const size_t made = LossesIn(out_).size();
    StartCoordinator();
    // More than it had: the run goes on, and steps.jsonl with it.
    steps = made + 15;
  }
  const CommandResult waited = watcher->Wait(kSeconds);
  EXPECT_EQ(waited.code, 0) << waited.err;
  EXPECT_EQ(Describe()["state"], "finished");
  ExpectTheReference();
  EXPECT_EQ(Summary()["steps"], 90);
  ExpectOneAttempt(2);
}

INSTANTIATE_TEST_SUITE_P(Schedules, CoordinatorRestartOf,
                         ::testing::Values(Restarted{"{1f1b: {}}"}, Restarted{"{lpp: {groups: 2, ranks: 2}}"},
                                           Restarted{"{zb_h1: {}}"}, Restarted{"{fsdp: {}}"},
                                           Restarted{"{ddp: {}, rule: cdp_v2}"},
                                           Restarted{"{1f1b: {}}", {{"redundancy", "{peers: 1}"}}}));

// All that was acknowledged is there: a run that waits, one that has ended, and their order.
TEST_F(CoordinatorRestart, KilledBehindAcknowledgedSubmissions_KnowsThemAndEndsThem) {
  const std::string file = WriteRun("{1f1b: {}}", 3);
  StartCoordinator();
  {
    StartWorkers(1);
    ASSERT_EQ(Weft({"submit", file, "--processes", "1", "--out", folder_ / "first"}).code, 0);
    workers_.clear();
  }
  // The events of a run begin anew with the coordinator; log.jsonl has all of them.
  const auto describe_first = [this] {
    Json run = Describe(1);
    run.erase("events");
    return run;
  };
  const Json first = describe_first();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(
        Weft({"submit", file, "--processes", "1", "--out", folder_ / absl::StrCat("out", i), "--detach"}).out,
        absl::StrCat(2 + i, "\n"));
    KillCoordinator();
    StartCoordinator();
  }
  EXPECT_EQ(describe_first(), first) << "a run that has ended stays as it was";
  const CommandResult list = Weft({"ls", "-o", "json"});
  EXPECT_EQ(Json::parse(list.out).size(), 4u) << list.out;
  StartWorkers(1);
  for (int run = 2; run <= 4; ++run) EXPECT_EQ(Weft({"wait", absl::StrCat(run)}).code, 0);
  const Json last = Describe(4);
  EXPECT_EQ(last["state"], "finished");
  EXPECT_FALSE(last.contains("restart_reason")) << "it had not begun";
  ASSERT_EQ(Weft({"submit", file, "--processes", "1", "--out", folder_ / "next", "--detach"}).out, "5\n");
}

// SIGTERM leaves the runs too, as for an upgrade of the program.
TEST_F(CoordinatorRestart, StoppedAndStarted_GoesOn) {
  const std::string file = WriteRun("{1f1b: {}}", 60);
  TrainReference(file);
  StartCoordinator();
  StartWorkers(2);
  Submit(file);
  ASSERT_TRUE(AwaitSteps(8));
  coordinator_->Signal(SIGTERM);
  EXPECT_EQ(coordinator_->Wait(kSeconds).code, 0);
  EXPECT_THAT(ReadWholeFile(out_ + "/run.json"), HasSubstr("\"running\""));
  StartCoordinator();
  ExpectFinished();
  ExpectTheReference();
  ExpectOneAttempt(1);
}

// A rolling upgrade of everything: each process gets SIGTERM in its turn, and its supervisor starts another
// in its place. The run may not begin again for a loss, and makes no step twice.
TEST_F(CoordinatorRestart, EveryProcessGetsSigtermInTurn_NoStepIsLostAndNoAttemptIsSpent) {
  const std::string file = WriteRun("{1f1b: {}}", 150, {{"restarts", "0"}});
  TrainReference(file);
  StartCoordinator();
  StartWorkers(2);
  Submit(file);
  int least = 8;
  const auto stop = [&](const Command& process, const char* name) {
    ASSERT_TRUE(AwaitSteps(least)) << name;
    process.Signal(SIGTERM);
  };
  std::string logs;
  for (int round = 0; round < 2; ++round) {
    stop(*coordinator_, "coordinator");
    const CommandResult ended = coordinator_->Wait(kSeconds);
    EXPECT_EQ(ended.code, 0) << ended.err;
    logs += ended.err;
    StartCoordinator();
    least += 15;
    stop(*workers_[round], "worker");
    workers_.push_back(StartWorker(2 + round));
    const CommandResult left = workers_[round]->Wait(kSeconds);
    EXPECT_EQ(left.code, 0) << left.err;
    least += 15;
  }
  ExpectFinished();
  ExpectTheReference();
  coordinator_->Signal(SIGTERM);
  logs += coordinator_->Wait(kSeconds).err;
  EXPECT_THAT(logs, ::testing::Not(HasSubstr(" was lost"))) << "whoever leaves is no loss";
  std::vector<int> made;
  std::istringstream steps(ReadWholeFile(out_ + "/steps.jsonl"));
  for (std::string line; std::getline(steps, line);) made.push_back(Json::parse(line)["step"]);
  std::vector<int> all(150);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(made, all);
}

// The workers that come back may be fewer. Then the attempt is over, and the next one begins at a checkpoint.
TEST_F(CoordinatorRestart, KilledTogetherWithAWorker_GoesOnWithTheOther) {
  const std::string file = WriteRun("{1f1b: {}}", 60);
  TrainReference(file);
  StartCoordinator();
  StartWorkers(2);
  Submit(file);
  ASSERT_TRUE(AwaitSteps(8));
  ASSERT_TRUE(AwaitCheckpoint());
  KillCoordinator();
  workers_[0]->Signal(SIGKILL);
  StartCoordinator();
  ExpectFinished();
  EXPECT_THAT(
      Describe()["restart_reason"].get<std::string>(),
      AllOf(HasSubstr("process 0 (w0"), HasSubstr("did not come back"), HasSubstr("checkpoint of step ")));
  ExpectTheReference();
}

// Copies in memory outlive the coordinator: with one of the processes lost too, the run goes on from those
// that the other one keeps.
TEST_F(CoordinatorRestart, KilledTogetherWithAWorkerOfARunWithRedundancy_GoesOnFromCopies) {
  const std::string file =
      WriteRun("{1f1b: {}}", 60, {{"redundancy", "{peers: 1}"}, {"checkpoint", "{every: 1000}"}});
  TrainReference(file);
  StartCoordinator();
  StartWorkers(2);
  Submit(file);
  ASSERT_TRUE(AwaitSteps(12));
  KillCoordinator();
  workers_[0]->Signal(SIGKILL);
  workers_[0]->Wait(kSeconds);
  StartCoordinator();
  // Its supervisor starts it again.
  workers_[0] = std::make_unique<Command>(
      std::vector<std::string>{"weft-worker", "--coordinator", address_, "--name", "w0"});
  ExpectFinished();
  EXPECT_THAT(Describe()["restart_reason"].get<std::string>(),
              AllOf(HasSubstr("came back without it"), HasSubstr("from the copies of step ")));
  ExpectTheReference();
}

TEST_F(CoordinatorRestart, CancelledAndKilled_StaysCancelled) {
  StartCoordinator();
  StartWorkers(2);
  Submit(WriteRun("{1f1b: {}}", 100000));
  ASSERT_TRUE(AwaitSteps(3));
  ASSERT_EQ(Weft({"cancel", "1"}).code, 0);
  KillCoordinator();
  StartCoordinator();
  EXPECT_EQ(Describe()["state"], "cancelled");
  EXPECT_TRUE(Eventually([&] {
    return ReadWholeFile(out_ + "/run.json").find("\"stopped\"") != std::string::npos;
  })) << "its folder says so, though the coordinator was killed at once";
}

TEST_F(CoordinatorRestart, ItsStore_IsTheOnlyOnesAndSaysWhereRunsAre) {
  StartCoordinator();
  const std::vector<std::string> second = {"weft-coordinator", "--listen",
                                           "unix:" + (folder_ / "second.sock"), "--store", folder_ / "store"};
  const CommandResult refused = Command::Run(second, kSeconds);
  EXPECT_EQ(refused.code, 75) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("another coordinator uses the store"));
  Command memory({"weft-coordinator", "--listen", "unix:" + (folder_ / "memory.sock")});
  EXPECT_TRUE(memory.WaitFor("runs are kept in memory", kSeconds));
}

TEST_F(CoordinatorRestart, ADamagedStore_IsRefusedAndItsBackupIsNot) {
  StartCoordinator();
  Submit(WriteRun("{1f1b: {}}", 3));
  const CommandResult copied = Command::Run(
      {"weft-coordinator", "--store", folder_ / "store", "--backup", folder_ / "backup.db"}, kSeconds);
  ASSERT_EQ(copied.code, 0) << copied.err;
  KillCoordinator();
  {
    // A store that was closed has everything in its file.
    StartCoordinator();
    coordinator_->Signal(SIGTERM);
    coordinator_->Wait(kSeconds);
    std::fstream file(folder_ / "store/store.db", std::ios::in | std::ios::out | std::ios::binary);
    const std::string bytes = ReadWholeFile(folder_ / "store/store.db");
    const size_t at = bytes.find("microbatches");
    ASSERT_NE(at, std::string::npos);
    file.seekp(static_cast<std::streamoff>(at)).put('M');
  }
  const std::vector<std::string> start = {"weft-coordinator", "--listen", address_,         "--output-root",
                                          folder_.path(),     "--store",  folder_ / "store"};
  const CommandResult refused = Command::Run(start, kSeconds);
  EXPECT_EQ(refused.code, 78) << refused.err;
  EXPECT_THAT(refused.err, AllOf(HasSubstr("run 1"), HasSubstr("is damaged"), HasSubstr("To restore")));
  fs::remove_all(folder_ / "store");
  fs::create_directories(folder_ / "store");
  fs::copy_file(folder_ / "backup.db", folder_ / "store/store.db");
  StartCoordinator();
  StartWorkers(2);
  ExpectFinished();
}

}  // namespace
}  // namespace weft::coordinator_restart_test
