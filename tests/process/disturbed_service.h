// A disturbed training that daemons carry out: the fixture of tests that disturb a coordinator or workers
// that were started before.
#ifndef WEFT_TESTS_PROCESS_DISTURBED_SERVICE_H_
#define WEFT_TESTS_PROCESS_DISTURBED_SERVICE_H_

#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/disturbed_run.h"

namespace weft {

class DisturbedService : public DisturbedRun {
 protected:
  // Starts workers w0, w1, .., one after the other. `coordinator` logs that each has joined.
  void StartWorkers(Command& coordinator, int count) {
    for (int i = 0; i < count; ++i) {
      workers_.push_back(StartWorker(i));
      ASSERT_TRUE(coordinator.WaitFor(absl::StrCat("w", i, ", pid"), kSeconds));
    }
  }
  std::unique_ptr<Command> StartWorker(int number) const {
    std::vector<std::string> arguments = {"weft-worker", "--coordinator", address_, "--name",
                                          absl::StrCat("w", number)};
    arguments.insert(arguments.end(), worker_flags_.begin(), worker_flags_.end());
    return std::make_unique<Command>(arguments);
  }
  // Runs a command of weft that talks to the coordinator.
  CommandResult Weft(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "weft");
    arguments.insert(arguments.end(), {"--coordinator", address_});
    arguments.insert(arguments.end(), client_flags_.begin(), client_flags_.end());
    return Command::Run(arguments, kSeconds);
  }
  // Submits the run file, on two processes.
  void Submit(const std::string& file) const {
    const CommandResult r = Weft({"submit", file, "--processes", "2", "--out", out_, "--detach"});
    ASSERT_EQ(r.code, 0) << r.err;
  }
  nlohmann::json Describe(int run = 1) const {
    return nlohmann::json::parse(Weft({"describe", absl::StrCat(run), "-o", "json"}).out, nullptr, false);
  }

  // Waits for the end of run 1, and expects that it finishes; else says what it waits for, and what each
  // worker has logged. Meanwhile it is the workers' supervisor: a worker whose neighbour was killed in the
  // middle of a message hears nobody any more (receive_watch.h), and ends.
  void ExpectFinished() {
    std::vector<std::string> arguments = {"weft", "wait", "1", "--coordinator", address_};
    arguments.insert(arguments.end(), client_flags_.begin(), client_flags_.end());
    Command waiting(arguments);
    for (int i = 0; i < 20 * kSeconds && !HasEnded(waiting.pid()); ++i) {
      ReplaceUnreachable();
      usleep(50'000);
    }
    const CommandResult waited = waiting.Wait(1);
    if (waited.code == 0) return;
    ADD_FAILURE() << waited.err << Describe().dump(1);
    for (const auto& worker : workers_) {
      if (worker->pid() < 0) continue;
      worker->Signal(SIGKILL);
      ADD_FAILURE() << worker->Wait(kSeconds).err;
    }
  }
  // Starts a worker in the place of each that has ended because it could not be reached.
  void ReplaceUnreachable() {
    constexpr int kUnreachable = 69;
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i]->pid() < 0 || !HasEnded(workers_[i]->pid())) continue;
      if (workers_[i]->Wait(1).code == kUnreachable) workers_[i] = StartWorker(static_cast<int>(i));
    }
  }

  // Expects that the run has had one attempt, whatever became of coordinators: each worker was assigned it
  // once, and came back to it at least so often. Ends the workers.
  void ExpectOneAttempt(int returns) {
    const nlohmann::json run = Describe();
    EXPECT_FALSE(run.contains("restarts")) << run;
    EXPECT_FALSE(run.contains("restart_reason")) << run;
    const auto times = [](const std::string& log, const std::string& line) {
      int count = 0;
      for (size_t at = log.find(line); at != log.npos; at = log.find(line, at + 1)) ++count;
      return count;
    };
    for (const auto& worker : workers_) {
      worker->Signal(SIGTERM);
      const std::string log = worker->Wait(kSeconds).err;
      EXPECT_EQ(times(log, "run 1 begins: "), 1) << log;
      EXPECT_GE(times(log, "run 1 goes on here: "), returns) << log;
    }
  }

  // Address of the coordinator, or of several; of a socket in the test's folder, unless a test says another.
  std::string address_ = "unix:" + (folder_ / "coordinator.sock");
  std::vector<std::string> worker_flags_, client_flags_;  // further ones, of each worker and each client
  std::vector<std::unique_ptr<Command>> workers_;
};

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_DISTURBED_SERVICE_H_
