// The run API's commands against a real coordinator and real workers, as an operator would start them by
// hand.
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

const char* const kLong =
    "{steps: 1000000, batch: 16, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}";

class Runs : public ::testing::Test {
 protected:
  Runs() : address_("unix:" + (folder_ / "coordinator.sock")) {
    coordinator_ =
        std::make_unique<Command>(std::vector<std::string>{"weft-coordinator", "--listen", address_});
    EXPECT_TRUE(coordinator_->WaitFor("listening on", 60));
  }

  void StartWorkers(int count) {
    for (int i = 0; i < count; ++i) {
      workers_.push_back(
          std::make_unique<Command>(std::vector<std::string>{"weft-worker", "--coordinator", address_}));
    }
  }

  CommandResult Weft(std::vector<std::string> arguments, int seconds = 120) const {
    arguments.insert(arguments.begin(), "weft");
    arguments.insert(arguments.end(), {"--coordinator", address_});
    return Command::Run(arguments, seconds);
  }

  const TestFolder folder_;
  const std::string address_;
  std::unique_ptr<Command> coordinator_;
  std::vector<std::unique_ptr<Command>> workers_;
};

TEST_F(Runs, SubmittedAndWaitedFor_FinishesWithCheckpoint) {
  StartWorkers(2);
  const std::string file = WriteSmallRun(folder_);
  const CommandResult submit =
      Weft({"submit", file, "--processes", "2", "--out", folder_ / "out", "--detach"});
  ASSERT_EQ(submit.code, 0) << submit.err;
  EXPECT_EQ(submit.out, "1\n");
  const CommandResult wait = Weft({"wait", "1"});
  EXPECT_EQ(wait.code, 0) << wait.err;
  EXPECT_THAT(wait.out,
              AllOf(HasSubstr("state      finished"), HasSubstr("steps      3/3"), HasSubstr("dependency")));
  EXPECT_FALSE(ReadWholeFile(folder_ / "out/checkpoint/stage03.safetensors").empty());
  const Json described = Json::parse(Weft({"describe", "1", "-o", "json"}).out);
  EXPECT_EQ(described["state"], "finished");
  EXPECT_EQ(described["ranks"], 4);
  EXPECT_EQ(described["rank_reports"].size(), 4u);
  EXPECT_GT(described["loss"], 0);
  EXPECT_GT(described["ended"], described["started"]);
  // Attached: the same workers serve the next run, and the exit code is the run's.
  const CommandResult attached = Weft({"submit", file, "--processes", "1"});
  EXPECT_EQ(attached.code, 0) << attached.err;
  EXPECT_THAT(attached.err, HasSubstr("submitted as run 2"));
  EXPECT_THAT(Weft({"ls"}).out, AllOf(HasSubstr("run  name   state"), HasSubstr("  1  small  finished")));
  EXPECT_EQ(Json::parse(Weft({"ls", "-o", "json"}).out).size(), 2u);
}

TEST_F(Runs, Cancelled_WaitReturnsOneWithTheReason) {
  const std::string file = WriteSmallRun(folder_, {{"train", kLong}});
  ASSERT_EQ(Weft({"submit", file, "--detach"}).code, 0);
  const CommandResult early = Weft({"wait", "1", "--timeout", "0.5"});
  EXPECT_EQ(early.code, 124);
  EXPECT_THAT(early.err, AllOf(HasSubstr("has not ended after 0.5 s"), HasSubstr("waiting")));
  const CommandResult cancel = Weft({"cancel", "1", "--reason", "wrong learning rate"});
  EXPECT_EQ(cancel.code, 0) << cancel.err;
  const CommandResult wait = Weft({"wait", "1"});
  EXPECT_EQ(wait.code, 1);
  EXPECT_THAT(wait.out, AllOf(HasSubstr("cancelled"), HasSubstr("wrong learning rate")));
}

TEST_F(Runs, InterruptedWhileWatching_TheRunGoesOn) {
  Command watch({"weft", "submit", WriteSmallRun(folder_, {{"train", kLong}}), "--coordinator", address_});
  ASSERT_TRUE(watch.WaitFor("submitted as run 1", 60));
  watch.Signal(SIGINT);
  EXPECT_EQ(watch.Wait(30).code, 130);
  EXPECT_EQ(Json::parse(Weft({"describe", "1", "-o", "json"}).out)["state"], "waiting");
}

TEST_F(Runs, MistakesAndUnknownRuns_ExitCodesOfTheContract) {
  const CommandResult unknown = Weft({"describe", "77"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("77"));
  EXPECT_EQ(Weft({"describe", "first"}).code, 2);
  EXPECT_EQ(Weft({"submit", WriteSmallRun(folder_, {{"stages", "99"}})}).code, 78);
  coordinator_.reset();
  const CommandResult gone = Weft({"ls"});
  EXPECT_EQ(gone.code, 69);
  EXPECT_THAT(gone.err, HasSubstr("unreachable"));
  const CommandResult address = Command::Run({"weft", "ls", "--coordinator", "nowhere"});
  EXPECT_EQ(address.code, 2);
  EXPECT_THAT(address.err, HasSubstr("HOST:PORT"));
}

}  // namespace
}  // namespace weft
