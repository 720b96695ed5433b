// Why a run stands still, asked of real daemons: one worker process is stopped, and weft says who waits for
// it.
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/disturbed_service.h"

namespace weft::waits_test {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Waits : public DisturbedService {
 protected:
  void SetUp() override {
    coordinator_ = std::make_unique<Command>(
        std::vector<std::string>{"weft-coordinator", "--listen", address_, "--output-root", folder_.path(),
                                 "--lease", absl::StrCat(kSeconds)});
    ASSERT_TRUE(coordinator_->WaitFor("listening on", kSeconds));
  }
  void TearDown() override {
    for (const auto& worker : workers_) worker->Signal(SIGCONT);
  }
  Json Asked(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"-o", "json"});
    const CommandResult r = Weft(std::move(arguments));
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(r.out, nullptr, false);
  }

  std::unique_ptr<Command> coordinator_;
};

TEST_F(Waits, StoppedWorker_IsNamedOnceAsTheRootOfEachRankThatWaits) {
  StartWorkers(*coordinator_, 2);
  // Without clipping, each rank waits for the next one in the pipeline, whenever its process is stopped.
  // (With it, updates also wait for the first rank, which adds up the norms of all.)
  Submit(WriteRun(
      "{1f1b: {}}", 40,
      {{"train", "{steps: 40, batch: 16, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}"}}));
  ASSERT_TRUE(AwaitSteps(3));
  workers_[1]->Signal(SIGSTOP);
  // Without --now, as soon as the run has not got on for a while.
  Json waits;
  ASSERT_TRUE(Eventually([&] {
    waits = Asked({"explain", "1"});
    return waits.contains("roots");
  }));
  ASSERT_EQ(waits["roots"].size(), 1u) << waits.dump(1);
  EXPECT_EQ(waits["state"], "running");
  EXPECT_GE(waits["still_seconds"], 5.0);
  EXPECT_EQ(waits["roots"][0]["kind"], "silent");
  EXPECT_EQ(waits["roots"][0]["process"], 1);
  EXPECT_THAT(waits["roots"][0]["sentence"].get<std::string>(), HasSubstr("process 1 (w1, pid "));
  EXPECT_EQ(waits["roots"][0]["waiting_ranks"].dump(), "[0,1]");
  for (const int rank : {0, 1, 2, 3}) {
    const Json& wait = waits["ranks"][rank];
    EXPECT_EQ(wait["does"], rank < 2 ? "waits" : "silent") << wait;
    EXPECT_EQ(wait["root"], 0) << wait;
    EXPECT_EQ(wait["process"], rank / 2) << wait;
  }
  EXPECT_EQ(waits["ranks"][1]["missing"]["rank"], 2)
      << "the next rank in the pipeline, of the stopped process";
  const CommandResult chain = Weft({"explain", "1", "--rank", "0"});
  EXPECT_EQ(chain.code, 0) << chain.err;
  EXPECT_THAT(chain.out, AllOf(HasSubstr("root 0: process 1 (w1, pid "), HasSubstr("ranks 0, 1 wait for it"),
                               HasSubstr("silent")));
  EXPECT_EQ(Weft({"explain", "1", "--rank", "9"}).code, 2);
  EXPECT_EQ(Weft({"explain", out_, "--now"}).code, 2);
  // The same is seen where the workers are listed.
  for (const char* command : {"workers", "top"}) {
    const Json workers = Asked({command});
    EXPECT_EQ(workers[1]["state"], "silent") << command;
    EXPECT_GE(workers[1]["silent_seconds"], 3.0) << command;
    EXPECT_EQ(workers[0]["state"], "busy") << command;
    EXPECT_THAT(Weft({command}).out, HasSubstr("silent ")) << command;
  }
  workers_[1]->Signal(SIGCONT);
  ExpectFinished();
}

TEST_F(Waits, EventsOfARun_AreInItsDescriptionFromSubmissionToEnd) {
  Submit(WriteRun("{1f1b: {}}", 200));
  ASSERT_THAT(Weft({"explain", "1"}).out, HasSubstr("run 1 (small) is waiting: needs 2 worker processes"));
  StartWorkers(*coordinator_, 2);
  ASSERT_TRUE(AwaitCheckpoint());
  workers_[1]->Signal(SIGKILL);
  workers_[1]->Wait(kSeconds);
  workers_[1] = StartWorker(1);
  ExpectFinished();
  std::string all;
  const Json described = Asked({"describe", "1"});
  for (const Json& event : described["events"]) {
    EXPECT_GT(event["time"], 1e9);
    absl::StrAppend(&all, event["text"].get<std::string>(), "\n");
  }
  size_t after = 0;
  for (const std::string text :
       {"is waiting: needs 2 worker processes, 0 are free", "is preparing on process 0 (w0, pid ",
        "is running\n", "has the checkpoint of step ", "process 1 (w1, pid ",
        " was lost: ", "begins again with step ", "is running\n", "has finished\n"}) {
    const size_t at = all.find(text, after);
    ASSERT_NE(at, std::string::npos) << text << "\nin\n" << all;
    after = at;
  }
  EXPECT_LE(described["events"].size(), 64u);
  EXPECT_THAT(Weft({"describe", "1"}).out,
              AllOf(HasSubstr("\nevents\n"), HasSubstr("run 1 (small) has finished\n")));
}

}  // namespace
}  // namespace weft::waits_test
