// The flight recorder of the real daemons: what they leave at SIGUSR1, in a stall and at a fatal signal.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process/child_processes.h"
#include "tests/process/command.h"
#include "tests/process/disturbed_service.h"

namespace weft::flight_recorder_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FlightRecorderOfDaemons : public DisturbedService {
 protected:
  void SetUp() override {
    fs::create_directory(dumps_);
    worker_flags_ = {"--flight-recorder", dumps_, "--log-level", "error"};
    coordinator_ = std::make_unique<Command>(
        std::vector<std::string>{"weft-coordinator", "--listen", address_, "--output-root", folder_.path(),
                                 "--lease", "30", "--flight-recorder", dumps_});
    ASSERT_TRUE(coordinator_->WaitFor("listening on", kSeconds));
    StartWorkers(*coordinator_, 2);
  }

  // Waits for the dump of a process for a cause. Returns it once it is whole; "" if it does not come.
  std::string AwaitDump(const std::string& program, pid_t pid, const std::string& cause) const {
    std::string dump;
    const std::string end = absl::StrCat("-", pid, "-", cause, ".log");
    const bool found = Eventually([&] {
      for (const auto& entry : fs::directory_iterator(dumps_)) {
        const std::string name = entry.path().filename();
        if (!absl::StartsWith(name, "flight-" + program) || !absl::EndsWith(name, end)) continue;
        dump = ReadWholeFile(entry.path());
        return absl::StrContains(dump, " event=dump_ends ");
      }
      return false;
    });
    return found ? dump : "";
  }
  std::string WorkerDump(int number, const std::string& cause) const {
    return AwaitDump("weft-worker", workers_[number]->pid(), cause);
  }

  const std::string dumps_ = folder_ / "dumps";
  std::unique_ptr<Command> coordinator_;
};

TEST_F(FlightRecorderOfDaemons, User1_IsADumpAndTheRunGoesOn) {
  const std::string file = WriteRun("{1f1b: {}}", 30);  // whose events all have room
  TrainReference(file);
  Submit(file);
  ASSERT_TRUE(AwaitSteps(7));
  workers_[0]->Signal(SIGUSR1);
  coordinator_->Signal(SIGUSR1);
  const std::string worker = WorkerDump(0, "SIGUSR1");
  EXPECT_THAT(worker, AllOf(HasSubstr(" event=dump cause=SIGUSR1 program=weft-worker version="),
                            HasSubstr(absl::StrCat(" pid=", workers_[0]->pid(), "\n"))));
  for (const char* event : {" event=job_begins rank=", " event=job_ends rank=", " kind=forward step=",
                            " event=granted run=1 rank=", " event=wants process=", " event=arrived process=",
                            " event=offers process=", " event=task_ends rank="}) {
    EXPECT_THAT(worker, HasSubstr(event));
  }
  EXPECT_THAT(worker, HasSubstr("event=log level=info msg=\"joined as process"))
      << "though --log-level error";
  const std::string coordinator = AwaitDump("weft-coordinator", coordinator_->pid(), "SIGUSR1");
  EXPECT_THAT(coordinator,
              AllOf(HasSubstr(" event=grants run=1 rank="), HasSubstr(" event=jobs_ended run=1 rank="),
                    HasSubstr(" event=step_done run=1 step=")));
  EXPECT_TRUE(
      coordinator_->WaitFor("info weft-coordinator: SIGUSR1: the last events are in " + dumps_, kSeconds));
  ExpectFinished();
  ExpectTheReference();
}

// A worker that does not answer: the other one waits for its tensors, and says so, as the coordinator does.
TEST_F(FlightRecorderOfDaemons, SilentPeer_IsADumpOfThoseThatWait) {
  Submit(WriteRun("{1f1b: {}}", 400));
  ASSERT_TRUE(AwaitSteps(7));
  workers_[0]->Signal(SIGSTOP);
  const std::string waits = WorkerDump(1, "stall");
  const std::string coordinator = AwaitDump("weft-coordinator", coordinator_->pid(), "stall");
  workers_[0]->Signal(SIGCONT);
  EXPECT_THAT(waits, AllOf(HasSubstr(" event=dump cause=stall why=\""), HasSubstr("w0"),
                           HasSubstr(" event=wants process=")));
  EXPECT_THAT(coordinator, AllOf(HasSubstr(" event=dump cause=stall why=\"run 1: "), HasSubstr("(w1, pid"),
                                 HasSubstr(" event=jobs_ended run=1 rank=")));
  EXPECT_TRUE(coordinator_->WaitFor("warning weft-coordinator: stall: run 1: ", kSeconds));
}

TEST_F(FlightRecorderOfDaemons, FolderThatIsNotThere_IsAWarningAndHarmsNothing) {
  const std::string none = folder_ / "none";
  Command worker({"weft-worker", "--coordinator", address_, "--name", "w2", "--flight-recorder", none});
  ASSERT_TRUE(coordinator_->WaitFor("w2, pid", kSeconds));
  EXPECT_TRUE(worker.WaitFor("warning weft-worker: the flight recorder cannot write into " + none, kSeconds));
  worker.Signal(SIGUSR1);
  EXPECT_TRUE(worker.WaitFor("SIGUSR1: the last events cannot be written into " + none, kSeconds));
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait(kSeconds).code, 0);
  EXPECT_FALSE(fs::exists(none));
}

TEST_F(FlightRecorderOfDaemons, ManyOldDumps_TheNewestStay) {
  const auto name = [&](int i) { return absl::StrCat(dumps_, "/flight-weft-worker-host-", i, "-stall.log"); };
  const auto now = fs::file_time_type::clock::now();
  for (int i = 1; i <= 70; ++i) {
    folder_.Write(absl::StrCat("dumps/", fs::path(name(i)).filename().string()), "");
    fs::last_write_time(name(i), now - std::chrono::minutes(i));
  }
  folder_.Write("dumps/notes.log", "");
  workers_[0]->Signal(SIGUSR1);
  EXPECT_THAT(WorkerDump(0, "SIGUSR1"), HasSubstr("cause=SIGUSR1"));
  EXPECT_TRUE(Eventually([&] { return !fs::exists(name(64)); }));
  EXPECT_TRUE(fs::exists(name(63))) << "64 with the new one";
  EXPECT_TRUE(fs::exists(dumps_ + "/notes.log"));
}

#ifdef WEFT_TAKES_FATAL_SIGNALS

TEST_F(FlightRecorderOfDaemons, WorkerThatCrashesInARun_LeavesTheJobsThatItWasIn) {
  const std::string file = WriteRun("{1f1b: {}}", 60);
  TrainReference(file);
  Submit(file);
  ASSERT_TRUE(AwaitSteps(7));
  const pid_t pid = workers_[0]->pid();
  workers_[0]->Signal(SIGSEGV);
  EXPECT_EQ(workers_[0]->Wait(kSeconds).signal, SIGSEGV);
  const std::string dump = AwaitDump("weft-worker", pid, "SIGSEGV");
  const std::vector<std::string> lines = absl::StrSplit(dump, '\n', absl::SkipEmpty());
  std::string last;
  for (const std::string& line : lines) last = absl::StrContains(line, " event=job_") ? line : last;
  EXPECT_THAT(last, HasSubstr(" step=")) << dump;
  const int step = std::stoi(last.substr(last.find(" step=") + 6));
  EXPECT_GE(step, 6) << "all of the steps before it is done";
  workers_[0] = StartWorker(0);
  ExpectFinished();
  ExpectTheReference();
}

TEST_F(FlightRecorderOfDaemons, FatalSignal_IsADumpAndTheProcessEndsByIt) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE}) {
    const std::string cause = absl::StrCat("SIG", sigabbrev_np(signal));
    Command worker({"weft-worker", "--coordinator", address_, "--name", "w2", "--flight-recorder", dumps_});
    ASSERT_TRUE(worker.WaitFor("joined as process", kSeconds));
    const pid_t pid = worker.pid();
    worker.Signal(signal);
    const CommandResult end = worker.Wait(kSeconds);
    EXPECT_EQ(end.signal, signal) << end.err;
    EXPECT_THAT(end.err, HasSubstr("weft-worker: note: " + cause + ": the last events are in " + dumps_));
    EXPECT_THAT(AwaitDump("weft-worker", pid, cause),
                AllOf(HasSubstr(absl::StrCat(" cause=", cause, " code=0 sender=", getpid(), " ")),
                      HasSubstr("msg=\"joined as process")));
  }
  const pid_t pid = coordinator_->pid();
  coordinator_->Signal(SIGABRT);
  EXPECT_EQ(coordinator_->Wait(kSeconds).signal, SIGABRT);
  EXPECT_THAT(AwaitDump("weft-coordinator", pid, "SIGABRT"), HasSubstr("msg=\"listening on"));
}

TEST_F(FlightRecorderOfDaemons, FatalSignalWithoutAFolder_EndsTheProcessAllTheSame) {
  const std::string none = folder_ / "none";
  Command worker({"weft-worker", "--coordinator", address_, "--name", "w2", "--flight-recorder", none});
  ASSERT_TRUE(worker.WaitFor("joined as process", kSeconds));
  worker.Signal(SIGBUS);
  const CommandResult end = worker.Wait(kSeconds);
  EXPECT_EQ(end.signal, SIGBUS);
  EXPECT_THAT(end.err, HasSubstr("SIGBUS: the last events cannot be written into " + none));
}

// The handler that UCX puts in before this one still prints where it was.
TEST_F(FlightRecorderOfDaemons, FatalSignalWithUcxsHandler_IsBothsAndEndsTheProcess) {
  Command worker({"/usr/bin/env", "UCX_HANDLE_ERRORS=bt", "UCX_LOG_LEVEL=info",
                  absl::StrCat(std::getenv("WEFT_BIN"), "/weft-worker"), "--coordinator", address_, "--name",
                  "w2", "--flight-recorder", dumps_});
  ASSERT_TRUE(worker.WaitFor("joined as process", kSeconds));
  const pid_t pid = worker.pid();
  worker.Signal(SIGSEGV);
  const CommandResult end = worker.Wait(kSeconds);
  EXPECT_EQ(end.signal, SIGSEGV);
  EXPECT_THAT(end.out + end.err, HasSubstr("Caught signal 11"));
  EXPECT_THAT(AwaitDump("weft-worker", pid, "SIGSEGV"), HasSubstr(" event=dump_ends "));
}

// weft train names the dump of a worker that crashed, which is in the run's own folder.
TEST_F(FlightRecorderOfDaemons, WorkerOfATrainingCrashes_TheTrainingSaysWhereItsEventsAre) {
  const std::string file = WriteRun("{1f1b: {}}", 4000, {{"restarts", "0"}});
  Command train({"weft", "train", file, "--out", out_, "--processes", "2"});
  ASSERT_TRUE(AwaitSteps(3));
  kill(WorkerProcess(train.pid(), 1), SIGABRT);
  const CommandResult end = train.Wait(kSeconds);
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err,
              HasSubstr("was killed by SIGABRT (its last events are in " + out_ + "/flight-weft-worker-"));
}

#endif

}  // namespace
}  // namespace weft::flight_recorder_test
