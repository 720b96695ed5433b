// Worker processes that serve several runs at a time (weft-worker --runs), with the real daemons: each run
// ends with the bits of its own plain loop, whatever befalls the others and the processes that they share.
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/disturbed_service.h"

namespace weft::shared_workers_test {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class SharedWorkers : public DisturbedService {
 protected:
  static constexpr int kRuns = 2;
  static constexpr int kSteps = 250;

  void SetUp() override {
    worker_flags_ = {"--runs", "2"};
    coordinator_ = std::make_unique<Command>(
        std::vector<std::string>{"weft-coordinator", "--listen", address_, "--output-root", folder_.path()});
    ASSERT_TRUE(coordinator_->WaitFor("listening on", kSeconds));
    StartWorkers(*coordinator_, 2);
    ASSERT_TRUE(Eventually([&] { return Workers().size() == 4; }));
  }

  Json Workers() const { return Json::parse(Weft({"workers", "-o", "json"}).out, nullptr, false); }
  std::string Out(int run) const { return folder_ / absl::StrCat("out", run); }

  // A training with a seed, and so weights, of its own.
  struct Training {
    std::string schedule;
    int steps = 0;
    std::string kernels = "deterministic";
  };
  // Submits the trainings, on two processes each, as the runs 1, 2, ..
  void SubmitAll(const std::vector<Training>& trainings) {
    std::vector<std::string> files;
    for (size_t i = 0; i < trainings.size(); ++i) {
      const int run = static_cast<int>(i) + 1;
      const Training& t = trainings[i];
      const std::string train = absl::StrCat("{steps: ", t.steps, ", batch: 16, microbatches: 4, seed: ", run,
                                             ", optimizer: {adamw: {lr: 1.0e-3}}}");
      const std::string file = WriteRun(t.schedule, t.steps, {{"train", train}, {"kernels", t.kernels}});
      files.push_back(folder_.Write(absl::StrCat("run", run, ".yaml"), ReadWholeFile(file)));
      references_.push_back(PlainResults(files.back()));
      ASSERT_FALSE(references_.back().tensors.empty());
    }
    for (size_t i = 0; i < files.size(); ++i) {
      const std::string out = Out(static_cast<int>(i) + 1);
      const CommandResult r = Weft({"submit", files[i], "--processes", "2", "--out", out, "--detach"});
      ASSERT_EQ(r.code, 0) << r.err;
    }
  }
  bool AwaitStepsOf(int run, size_t steps) const {
    return Eventually([&] { return LossesIn(Out(run)).size() >= steps; });
  }
  // Returns the processes whose workers serve the run, by the name that each was given.
  std::vector<std::string> ProcessesOf(int run) const {
    std::vector<std::string> names;
    for (const Json& w : Workers()) {
      const std::string name = w["name"];
      if (w["run"] == run) names.push_back(name.substr(0, name.find('-')));
    }
    return names;
  }
  void ExpectItsOwnBits(int run) const {
    const CommandResult waited = Weft({"wait", absl::StrCat(run)});
    ASSERT_EQ(waited.code, 0) << waited.err << Describe(run).dump(1);
    EXPECT_TRUE(ReadTensors(Out(run) + "/checkpoint") == references_[run - 1].tensors) << run;
    EXPECT_EQ(LossesIn(Out(run)), references_[run - 1].losses) << run;
  }

  std::vector<Trained> references_;  // of run 1, 2, ..
  std::unique_ptr<Command> coordinator_;
};

TEST_F(SharedWorkers, TwoRunsAtATime_EachHasOneOfEachProcessItsBitsAndItsLog) {
  SubmitAll({{"{1f1b: {}}", kSteps}, {"{fsdp: {}}", kSteps}});
  ASSERT_TRUE(AwaitStepsOf(1, 3) && AwaitStepsOf(2, 3));
  for (int run = 1; run <= kRuns; ++run) EXPECT_THAT(ProcessesOf(run), UnorderedElementsAre("w0", "w1"));
  for (int run = 1; run <= kRuns; ++run) ExpectItsOwnBits(run);
  for (int run = 1; run <= kRuns; ++run) {
    const std::string log = Weft({"logs", absl::StrCat(run)}).out;
    EXPECT_THAT(log, AllOf(HasSubstr(absl::StrCat("run ", run, " begins")),
                           Not(HasSubstr(absl::StrCat("run ", 3 - run, " begins")))));
  }
}

TEST_F(SharedWorkers, OneRunIsCancelled_TheOtherGoesOnAndTheRoomIsFree) {
  SubmitAll({{"{1f1b: {}}", kSteps}, {"{1f1b: {}}", kSteps}});
  ASSERT_TRUE(AwaitStepsOf(1, 3) && AwaitStepsOf(2, 3));
  EXPECT_EQ(Weft({"cancel", "2"}).code, 0);
  EXPECT_TRUE(Eventually([&] { return ProcessesOf(2).empty(); }));
  EXPECT_THAT(ProcessesOf(1), UnorderedElementsAre("w0", "w1"));
  ExpectItsOwnBits(1);
  EXPECT_FALSE(Describe(1).contains("restarts"));
}

TEST_F(SharedWorkers, ProcessIsKilled_BothRunsGoOn) {
  SubmitAll({{"{1f1b: {}}", kSteps}, {"{lpp: {groups: 2, ranks: 2}}", kSteps}});
  ASSERT_TRUE(AwaitStepsOf(1, 10) && AwaitStepsOf(2, 10));
  workers_[1]->Signal(SIGKILL);
  workers_[1]->Wait(kSeconds);
  workers_[1] = StartWorker(1);
  for (int run = 1; run <= kRuns; ++run) {
    ExpectItsOwnBits(run);
    EXPECT_GE(Describe(run)["restarts"], 1) << run;
  }
}

TEST_F(SharedWorkers, ProcessIsToldToEnd_BothRunsLeaveItWithoutALoss) {
  workers_.push_back(StartWorker(2));
  ASSERT_TRUE(coordinator_->WaitFor("w2, pid", kSeconds));
  SubmitAll({{"{1f1b: {}}", kSteps}, {"{1f1b: {}}", kSteps}});
  ASSERT_TRUE(AwaitStepsOf(1, 10) && AwaitStepsOf(2, 10));
  for (int run = 1; run <= kRuns; ++run) ASSERT_THAT(ProcessesOf(run), Contains("w0"));
  workers_[0]->Signal(SIGTERM);
  const CommandResult end = workers_[0]->Wait(kSeconds);
  EXPECT_EQ(end.code, 0) << end.err;
  for (int run = 1; run <= kRuns; ++run) {
    ExpectItsOwnBits(run);
    EXPECT_THAT(Describe(run)["restart_reason"].get<std::string>(), HasSubstr("SIGTERM")) << run;
  }
}

TEST_F(SharedWorkers, RunThatWantsOtherKernels_WaitsForTheProcesses) {
  SubmitAll({{"{1f1b: {}}", kSteps}, {"{1f1b: {}}", 20, "any"}});
  ASSERT_TRUE(AwaitStepsOf(1, 10));
  EXPECT_EQ(Describe(2)["state"], "waiting");
  EXPECT_THAT(Describe(2)["reason"].get<std::string>(), HasSubstr("0 are free (4 connected)"));
  for (int run = 1; run <= kRuns; ++run) ExpectItsOwnBits(run);
}

}  // namespace
}  // namespace weft::shared_workers_test
