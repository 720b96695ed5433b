// Trainings that lose worker processes, with the real programs: a run begins again by itself from its newest
// checkpoint, on the processes that are there, and ends with the bits of an undisturbed one.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/child_processes.h"
#include "tests/process/command.h"
#include "tests/process/disturbed_run.h"
#include "tests/process/disturbed_service.h"
#include "tests/process/free_ports.h"

namespace weft::recovery_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Steps of a run that still goes on a disturbance or two later, and of one that waits for new processes
// meanwhile. They are two numbers, so that the plain loop makes them twice.
constexpr int kMiddle = 150, kLong = 400;

class Recovery : public DisturbedRun {
 protected:
  std::unique_ptr<Command> Begin(const std::string& file, int processes) const {
    return std::make_unique<Command>(std::vector<std::string>{"weft", "train", file, "--out", out_,
                                                              "--processes", absl::StrCat(processes)});
  }

  // Trains on two processes, of which the second is killed behind the twelfth step. Returns the end of the
  // training; `killed` gets the process.
  CommandResult TrainAndKillOne(const std::string& file, pid_t* killed) const {
    const auto train = Begin(file, 2);
    EXPECT_TRUE(AwaitSteps(12));
    const std::vector<pid_t> workers = Children(train->pid());
    EXPECT_EQ(workers.size(), 2u);
    if (workers.size() == 2) kill(*killed = workers[1], SIGKILL);
    return train->Wait(kSeconds);
  }
};

class RecoveryOf : public Recovery, public ::testing::WithParamInterface<const char*> {};

TEST_P(RecoveryOf, WorkerKilledInMidRun_EndsWithTheBitsOfAnUndisturbedRun) {
  constexpr int kSteps = 40;
  const std::string file = WriteRun(GetParam(), kSteps);
  TrainReference(file);
  pid_t killed = 0;
  const CommandResult result = TrainAndKillOne(file, &killed);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("killed by SIGKILL"), HasSubstr(absl::StrCat("pid ", killed)),
                                HasSubstr("the run goes on from its checkpoint of step ")));
  ExpectTheReference();
  EXPECT_GE(Summary()["restarts"], 1) << "and it may have taken in the process that was started anew";
}

INSTANTIATE_TEST_SUITE_P(Schedules, RecoveryOf,
                         ::testing::Values("{1f1b: {}}", "{lpp: {groups: 2, ranks: 2}}", "{zb_h1: {}}",
                                           "{fsdp: {}}", "{fsdp: {shard: width}}", "{dualpipe_v: {}}",
                                           "{ddp: {}, rule: cdp_v2}", "{fsdp: {}, rule: cdp_v2}"));

// Copies in memory: no checkpoint is near, and little more is made again than the step under way.
class RedundantRecovery : public Recovery {
 protected:
  std::string WriteRedundantRun(const std::string& schedule, int steps) const {
    std::map<std::string, std::string> changes = {{"checkpoint", "{every: 1000}"},
                                                  {"redundancy", "{peers: 1}"}};
    // Clipping is not combined with states that migrate.
    if (schedule.find("migrating") != std::string::npos) {
      changes["train"] = absl::StrCat(
          "{steps: ", steps, ", batch: 16, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}");
    }
    return WriteRun(schedule, steps, changes);
  }
  // Returns the step of the copies with which the run went on, as its messages say; -1 for none.
  static int StepOfCopies(const std::string& messages) {
    const std::string words = "the run goes on from the copies of step ";
    const size_t found = messages.find(words);
    return found == std::string::npos ? -1 : std::atoi(messages.c_str() + found + words.size());
  }
};

class RedundantRecoveryOf : public RedundantRecovery, public ::testing::WithParamInterface<const char*> {};

TEST_P(RedundantRecoveryOf, WorkerKilledFarFromACheckpoint_GoesOnFromCopiesWithTheSameBits) {
  const std::string file = WriteRedundantRun(GetParam(), 40);
  TrainReference(file);
  pid_t killed = 0;
  const CommandResult result = TrainAndKillOne(file, &killed);
  ASSERT_EQ(result.code, 0) << result.err;
  // At most the steps that may be under way: two, and as many as lag behind.
  EXPECT_GE(StepOfCopies(result.err), 12 - 4) << result.err;
  ExpectTheReference();
}

INSTANTIATE_TEST_SUITE_P(Schedules, RedundantRecoveryOf,
                         ::testing::Values("{1f1b: {}}", "{lpp: {groups: 2, ranks: 2}}", "{zb_h1: {}}",
                                           "{fsdp: {}}", "{fsdp: {shard: width}}", "{dualpipe_v: {}}",
                                           "{ddp: {}, rule: cdp_v2}", "{fsdp: {}, rule: cdp_v2}",
                                           "{fsdp: {residency: migrating}, rule: cdp_v2}"));

// Each of three processes is killed in turn, and a spare takes its place: its peer has the copies each time.
TEST_F(RedundantRecovery, ProcessesKilledOneAfterTheOther_GoOnFromCopiesEachTime) {
  const std::string file = WriteRedundantRun("{1f1b: {}}", kLong);
  TrainReference(file);
  Command train({"weft", "train", file, "--out", out_, "--processes", "3", "--spares", "1"});
  size_t steps = 10;
  for (int victim = 0; victim < 3; ++victim, steps += 60) {
    ASSERT_TRUE(AwaitSteps(steps));
    std::vector<pid_t> workers;
    ASSERT_TRUE(Eventually([&] { return (workers = Children(train.pid())).size() == 4; }));
    ASSERT_FALSE(HasSummary()) << "the run has ended before this process is killed";
    kill(workers[victim], SIGKILL);
  }
  const CommandResult result = train.Wait(kSeconds);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_GT(StepOfCopies(result.err), 0);
  EXPECT_THAT(result.err, Not(HasSubstr("begins again with step 0")));
  ExpectTheReference();
}

// Nobody is left who keeps the copies: the run goes on from its checkpoint, whatever its messages expected
// when the first of the two was lost.
TEST_F(RedundantRecovery, AProcessAndItsPeerKilledTogether_EndWithTheBitsOfAnUndisturbedRun) {
  const std::string file = WriteRun("{1f1b: {}}", 40, {{"redundancy", "{peers: 1}"}});
  TrainReference(file);
  const auto train = Begin(file, 2);
  ASSERT_TRUE(AwaitSteps(12));
  const std::vector<pid_t> workers = Children(train->pid());
  ASSERT_EQ(workers.size(), 2u);
  for (const pid_t worker : workers) kill(worker, SIGSTOP);  // so that none sees the end of the other
  for (const pid_t worker : workers) kill(worker, SIGKILL);
  const CommandResult result = train->Wait(kSeconds);
  ASSERT_EQ(result.code, 0) << result.err;
  ExpectTheReference();
}

TEST_F(RedundantRecovery, OneProcess_IsRefused) {
  const CommandResult result = Begin(WriteRedundantRun("{1f1b: {}}", 40), 1)->Wait(kSeconds);
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.err, AllOf(HasSubstr("redundancy"), HasSubstr("one process"), HasSubstr("at least 2")));
}

// Without a checkpoint the run begins at its first step.
TEST_F(Recovery, OnlyProcessKilledBeforeACheckpoint_BeginsAtTheFirstStep) {
  const std::string file = WriteRun("{1f1b: {}}", 30, {{"checkpoint", "{every: 1000}"}});
  TrainReference(file);
  const auto train = Begin(file, 1);
  ASSERT_TRUE(AwaitSteps(5));
  for (const pid_t worker : Children(train->pid())) kill(worker, SIGKILL);
  const CommandResult result = train->Wait(kSeconds);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the run begins again with step 0"));
  ExpectTheReference();
  // Time in which there was no process is nobody's idle time but that of the recovery.
  const Json summary = Summary();
  for (const Json& idle : summary["idle_seconds"]) EXPECT_GT(idle.value("recovery", 0.0), 0.0);
}

// The next attempt would go on with other samples.
TEST_F(Recovery, DataReplacedInMidRun_FailsAtTheNextLossAndNamesTheFile) {
  const auto train = Begin(WriteRun("{1f1b: {}}", 100000), 2);
  ASSERT_TRUE(AwaitSteps(7));
  const std::string data = folder_ / "text.txt";
  fs::rename(folder_.Write("other.txt", RandomLetters(30000)), data);
  const size_t steps = LossesIn(out_).size();
  EXPECT_TRUE(AwaitSteps(steps + 2)) << "this attempt has opened the former file";
  const std::vector<pid_t> workers = Children(train->pid());
  ASSERT_EQ(workers.size(), 2u);
  kill(workers[1], SIGKILL);
  const CommandResult result = train->Wait(kSeconds);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr(data + " is not the file with which the run began: its 30000 bytes"));
}

TEST_F(Recovery, AProcessKilledAgainAndAgain_EndsWithTheBitsOfAnUndisturbedRun) {
  constexpr int kSteps = 60;
  const std::string file = WriteRun("{lpp: {groups: 2, ranks: 2}}", kSteps);
  TrainReference(file);
  const auto train = Begin(file, 2);
  size_t victim = 0;
  for (const size_t steps : {6, 20, 33, 47}) {
    ASSERT_TRUE(AwaitSteps(steps));
    const std::vector<pid_t> workers = Children(train->pid());
    if (workers.empty() || HasSummary()) break;
    kill(workers[victim++ % workers.size()], SIGKILL);
  }
  const CommandResult result = train->Wait(kSeconds);
  ASSERT_EQ(result.code, 0) << result.err;
  ExpectTheReference();
  EXPECT_GE(Summary()["restarts"], 1);
}

// Returns one of the training's worker processes that holds ranks, as its coordinator tells it; 0 if none
// does.
pid_t WorkerWithRanks(const std::vector<pid_t>& workers) {
  const std::string arguments = ReadWholeFile(absl::StrCat("/proc/", workers[0], "/cmdline"));
  const std::vector<std::string> words = absl::StrSplit(arguments, '\0');
  const auto option = std::find(words.begin(), words.end(), "--coordinator");
  if (option == words.end() || option + 1 == words.end()) return 0;
  const Json run =
      Json::parse(Command::Run({"weft", "describe", "1", "-o", "json", "--coordinator", *(option + 1)}).out,
                  nullptr, false);
  const std::string members = run.is_object() ? run.value("members", Json()).dump() : "";
  const auto member = std::find_if(workers.begin(), workers.end(), [&](pid_t worker) {
    return members.find(absl::StrCat("pid ", worker, " on host")) != std::string::npos;
  });
  return member == workers.end() ? 0 : *member;
}

// A spare takes the place of the lost process: the ranks do not move together.
TEST_F(Recovery, WorkerKilledBesideASpare_RunKeepsItsNumberOfProcesses) {
  const std::string file = WriteRun("{1f1b: {}}", kLong);
  TrainReference(file);
  const std::string metrics = absl::StrCat("127.0.0.1:", FreePorts(4));
  Command train(
      {"weft", "train", file, "--out", out_, "--processes", "2", "--spares", "1", "--metrics", metrics});
  ASSERT_TRUE(AwaitSteps(7));
  const std::vector<pid_t> workers = Children(train.pid());
  ASSERT_EQ(workers.size(), 3u);
  const pid_t victim = WorkerWithRanks(workers);
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  std::string scraped;
  EXPECT_TRUE(Eventually([&] {
    scraped = Command::Run({"/usr/bin/curl", "-s", absl::StrCat("http://", metrics, "/metrics")}).out;
    return scraped.find("weft_run_restarts_total{cause=\"process_lost\"} 1") != std::string::npos &&
           scraped.find("weft_workers{state=\"busy\"} 2") != std::string::npos;
  })) << scraped;
  const CommandResult result = train.Wait(kSeconds);
  ASSERT_EQ(result.code, 0) << result.err;
  ExpectTheReference();
}

// A job that kills each process that runs it ends the run, with the cause.
TEST_F(Recovery, EachProcessKilledBeforeANewStep_FailsAndNamesTheLast) {
  const auto train = Begin(WriteRun("{1f1b: {}}", 100000, {{"restarts", "2"}}), 1);
  ASSERT_TRUE(AwaitSteps(1));
  std::vector<pid_t> killed;
  const bool ended = Eventually([&] {
    for (const pid_t worker : Children(train->pid())) {
      if (killed.empty() || worker != killed.back()) killed.push_back(worker);
      kill(worker, SIGKILL);
    }
    return killed.size() > 20 || ReadWholeFile(out_ + "/run.json").find("failed") != std::string::npos;
  });
  EXPECT_TRUE(ended);
  const CommandResult result = train->Wait(kSeconds);
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("the run failed after"), HasSubstr("killed by SIGKILL")));
  EXPECT_GE(killed.size(), 3u);
  EXPECT_LE(killed.size(), 4u) << "it is not tried without end";
}

TEST_F(Recovery, NoRestarts_FailsAtTheFirstLoss) {
  const auto train = Begin(WriteRun("{1f1b: {}}", 100000, {{"restarts", "0"}}), 2);
  ASSERT_TRUE(AwaitSteps(1));
  const std::vector<pid_t> workers = Children(train->pid());
  ASSERT_EQ(workers.size(), 2u);
  kill(workers[0], SIGKILL);
  const CommandResult result = train->Wait(kSeconds);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("the run failed after"), HasSubstr("killed by SIGKILL")));
}

// The newest checkpoint is damaged on the disk when the run needs it.
class DamagedRecovery : public Recovery, public ::testing::WithParamInterface<const char*> {
 protected:
  static constexpr int kEvery = 20;
  // Stops the workers behind a checkpoint that the coordinator knows of, with another before it. Returns its
  // step.
  int StopBehindACheckpoint(const std::vector<pid_t>& workers) const {
    int newest = 0;
    EXPECT_TRUE(Eventually([&] {
      for (const pid_t worker : workers) kill(worker, SIGSTOP);
      const int steps = static_cast<int>(LossesIn(out_).size());
      newest = 0;
      for (int step = kEvery; fs::exists(Checkpoint(step + kEvery)) || step < steps; step += kEvery) {
        if (fs::exists(Checkpoint(step))) newest = step;
      }
      if (newest >= 2 * kEvery && steps > newest + 5 && fs::exists(Checkpoint(newest - kEvery))) return true;
      for (const pid_t worker : workers) kill(worker, SIGCONT);
      return HasSummary();
    }));
    return newest;
  }
  std::string Checkpoint(int step) const { return absl::StrCat(out_, "/checkpoint-", step); }
  void Damage(int step) const {
    const std::string path = absl::StrCat(Checkpoint(step), "/", GetParam());
    std::string bytes = ReadWholeFile(path);
    ASSERT_GT(bytes.size(), 200u);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
};

TEST_P(DamagedRecovery, NewestCheckpointDamaged_GoesOnFromTheOneBeforeWithTheSameBits) {
  const std::string file =
      WriteRun("{1f1b: {}}", kMiddle, {{"checkpoint", absl::StrCat("{every: ", kEvery, "}")}});
  TrainReference(file);
  const auto train = Begin(file, 2);
  ASSERT_TRUE(AwaitSteps(1));
  const std::vector<pid_t> workers = Children(train->pid());
  ASSERT_EQ(workers.size(), 2u);
  const int newest = StopBehindACheckpoint(workers);
  ASSERT_GE(newest, 2 * kEvery);
  Damage(newest);
  kill(workers[1], SIGKILL);
  kill(workers[0], SIGCONT);
  const CommandResult result = train->Wait(kSeconds);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr(absl::StrCat("checkpoint-", newest, "/", GetParam())),
                    HasSubstr(absl::StrCat("goes on from its checkpoint of step ", newest - kEvery))));
  ExpectTheReference();
  // It may have taken in the process that was started in the place of the killed one.
  const bool expanded = absl::StrContains(result.err, "is free to take part");
  EXPECT_EQ(Summary()["restarts"], expanded ? 3 : 2) << result.err;
}

INSTANTIATE_TEST_SUITE_P(Files, DamagedRecovery,
                         ::testing::Values("model.safetensors.index.json", "stage02.safetensors",
                                           "state/stage01.safetensors"));

// With daemons: a worker that is free takes the ranks of one that is lost; one that was only stopped is
// fenced when it comes back, and ends.
class DaemonRecovery : public DisturbedService {
 protected:
  void SetUp() override {
    coordinator_ = std::make_unique<Command>(
        std::vector<std::string>{"weft-coordinator", "--listen", address_, "--output-root", folder_.path(),
                                 "--lease", absl::StrCat(lease_)});
    ASSERT_TRUE(coordinator_->WaitFor("listening on", kSeconds));
    StartWorkers(*coordinator_, 3);
  }

  int lease_ = 15;  // seconds
  std::unique_ptr<Command> coordinator_;
};

class ShortLease : public DaemonRecovery {
 protected:
  ShortLease() { lease_ = 8; }
};

TEST_F(DaemonRecovery, WorkerKilled_AFreeOneTakesItsPlace) {
  const std::string file = WriteRun("{1f1b: {}}", 60);
  TrainReference(file);
  Submit(file);
  ASSERT_TRUE(AwaitSteps(7));
  workers_[0]->Signal(SIGKILL);
  ExpectFinished();
  const Json run = Describe();
  EXPECT_EQ(run["state"], "finished");
  const std::string reason = run["restart_reason"];
  // About one kill in a hundred falls into the writing of a message, and w1 hears nobody behind that. It
  // notices and leaves too, within seconds (receive_watch.h).
  if (run["restarts"] == 2) {
    EXPECT_THAT(reason, HasSubstr("messages do not arrive here any more"));
  } else {
    EXPECT_EQ(run["restarts"], 1);
    EXPECT_THAT(reason, AllOf(HasSubstr("(w0, pid"), HasSubstr("was lost")));
    EXPECT_THAT(run["members"].dump(), HasSubstr("w1"));
  }
  EXPECT_THAT(run["members"].dump(), HasSubstr("w2"));
  EXPECT_THAT(Weft({"describe", "1"}).out,
              HasSubstr(absl::StrCat("restarts   ", run["restarts"].dump(), "; the last: ")));
  ExpectTheReference();
}

// A rolling restart of all workers: none of the steps is made twice, and nothing counts as lost.
TEST_F(DaemonRecovery, WorkersGetSigtermOneAfterTheOther_NoStepIsLost) {
  const std::string file = WriteRun("{1f1b: {}}", kMiddle, {{"restarts", "0"}});
  TrainReference(file);
  Submit(file);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(AwaitSteps(7 + 20 * i));
    workers_[i]->Signal(SIGTERM);
    const CommandResult end = workers_[i]->Wait(kSeconds);
    EXPECT_EQ(end.code, 0) << end.err;
    const Json run = Describe();
    EXPECT_EQ(run["restarts"], i + 1);
    EXPECT_THAT(run["restart_reason"].get<std::string>(),
                AllOf(HasSubstr("leaves: SIGTERM"), HasSubstr("goes on from its checkpoint of step")));
  }
  ExpectFinished();
  ExpectTheReference();
  EXPECT_EQ(Summary()["restarts"], 2);
}

TEST_F(ShortLease, WorkerStoppedBeyondItsLease_IsReplacedAndChangesNothingLater) {
  const std::string file = WriteRun("{1f1b: {}}", kMiddle);
  TrainReference(file);
  Submit(file);
  ASSERT_TRUE(AwaitSteps(7));
  workers_[0]->Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return Describe().contains("restarts"); }));
  workers_[0]->Signal(SIGCONT);
  ExpectFinished();
  EXPECT_THAT(Describe()["restart_reason"].get<std::string>(), HasSubstr("(w0, pid"));
  ExpectTheReference();
}

}  // namespace
}  // namespace weft::recovery_test
