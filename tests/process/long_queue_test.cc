// A queue of more than a thousand runs in the real coordinator: it is listed whole, and survives a restart.
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/runs/runs_client.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"

namespace weft::long_queue_test {
namespace {

constexpr int kRuns = 1100;
constexpr int kSeconds = 60;
constexpr char kRun[] =
    R"({"name":"queued","model":{"gpt":{"layers":2,"width":32,"heads":2,"context":32}},)"
    R"("data":{"text":{"path":"/dev/null"}},"train":{"steps":3,"batch":2,"microbatches":2,)"
    R"("optimizer":{"adamw":{"lr":0.001}}},"stages":2,"schedule":{"1f1b":{}}})";

class LongQueue : public ::testing::Test {
 protected:
  void StartCoordinator() {
    coordinator_ = std::make_unique<Command>(
        std::vector<std::string>{"weft-coordinator", "--listen", address_, "--output-root", folder_ / "out",
                                 "--store", folder_ / "store", "--log-level", "warning"});
    client_ = *RunsClient::Create(address_, {}, kSeconds * 1'000'000'000ll);
    client_->AwaitConnection(kSeconds * 1'000'000'000ll);
  }
  void Submit() {
    std::atomic<int> left{kRuns};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        while (left.fetch_sub(1) > 0) {
          const auto run = client_->Submit({"", kRun, 1, ""});
          ASSERT_TRUE(run.ok()) << run.status();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // Returns the numbers of the runs that `weft ls` says are waiting.
  std::set<int> Waiting() const {
    const CommandResult listed =
        Command::Run({"weft", "ls", "--coordinator", address_, "-o", "json"}, kSeconds);
    EXPECT_EQ(listed.code, 0) << listed.err;
    std::set<int> waiting;
    for (const auto& run : nlohmann::json::parse(listed.out, nullptr, false)) {
      if (run["state"] == "waiting") waiting.insert(run["run"].get<int>());
    }
    return waiting;
  }
  size_t Descriptors() const {
    const std::filesystem::directory_iterator all(absl::StrCat("/proc/", coordinator_->pid(), "/fd"));
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }

  const TestFolder folder_;
  const std::string address_ = "unix:" + (folder_ / "c.sock");
  std::unique_ptr<Command> coordinator_;
  std::unique_ptr<RunsClient> client_;
};

TEST_F(LongQueue, OfMoreThanAThousandRuns_IsListedWholeAndSurvivesARestart) {
  StartCoordinator();
  const size_t idle = Descriptors();
  Submit();
  std::set<int> all;
  for (int run = 1; run <= kRuns; ++run) all.insert(run);
  EXPECT_EQ(Waiting(), all);
  EXPECT_LE(Descriptors(), idle + kRuns + 30)
      << "a run that waits holds the lock of its folder, and no other file";
  coordinator_->Signal(SIGTERM);
  EXPECT_EQ(coordinator_->Wait(kSeconds).code, 0);
  StartCoordinator();
  EXPECT_EQ(Waiting(), all);
  ASSERT_TRUE(client_->Cancel(500, "", /*save=*/false).ok());
  all.erase(500);
  EXPECT_EQ(Waiting(), all);
}

}  // namespace
}  // namespace weft::long_queue_test
