// Worker processes of a coordinator that stay, and train many runs one after the other: a worker starts once,
// where each `weft train` starts workers of its own, and most of a short run's time is that start.
#ifndef WEFT_TESTS_PROCESS_STANDING_WORKERS_H_
#define WEFT_TESTS_PROCESS_STANDING_WORKERS_H_

#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/process/command.h"
#include "tests/process/eventually.h"

namespace weft {

class StandingWorkers {
 public:
  // Starts them, with further flags if they are given. The daemons log errors alone: nobody reads their logs
  // meanwhile.
  explicit StandingWorkers(int count, const std::vector<std::string>& flags = {})
      : coordinator_({"weft-coordinator", "--listen", address_, "--output-root", folder_.path(),
                      "--log-level", "error"}) {
    const auto listens = [this] { return Command::Run({"weft", "ls", "--coordinator", address_}).code == 0; };
    EXPECT_TRUE(Eventually(listens, kSeconds));
    for (int i = 0; i < count; ++i) {
      std::vector<std::string> words = {
          "weft-worker", "--coordinator", address_, "--name", absl::StrCat("worker-", i),
          "--log-level", "error"};
      words.insert(words.end(), flags.begin(), flags.end());
      workers_.push_back(std::make_unique<Command>(words));
    }
  }
  // Expects that all of them are there still, and end well.
  ~StandingWorkers() {
    for (const auto& worker : workers_) ExpectEnd(*worker);
    ExpectEnd(coordinator_);
  }

  // Trains the run as `weft train` would.
  CommandResult Train(const std::string& file, const std::vector<std::string>& flags,
                      const std::string& out) const {
    std::vector<std::string> words = {"weft", "submit", file};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {"--overwrite", "--out", out, "--coordinator", address_});
    return Command::Run(words, kSeconds);
  }

 private:
  static constexpr int kSeconds = 120;

  static void ExpectEnd(Command& daemon) {
    EXPECT_FALSE(HasEnded(daemon.pid()));
    daemon.Signal(SIGTERM);
    const CommandResult ended = daemon.Wait(kSeconds);
    EXPECT_EQ(ended.code, 0) << ended.err;
  }

  TestFolder folder_;
  const std::string address_ = "unix:" + (folder_ / "coordinator.sock");
  Command coordinator_;
  std::vector<std::unique_ptr<Command>> workers_;
};

// A fixture whose tests share four of them. They start with the first run, and end behind the last test.
class OnStandingWorkers : public ::testing::Test {
 protected:
  static void TearDownTestSuite() { workers_.reset(); }
  static const StandingWorkers& Workers() {
    if (workers_ == nullptr) workers_ = std::make_unique<StandingWorkers>(4);
    return *workers_;
  }

 private:
  inline static std::unique_ptr<StandingWorkers> workers_;
};

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_STANDING_WORKERS_H_
