#include "coordinator/record/run_records.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/record/kept_checkpoint.h"
#include "coordinator/record/output_folder.h"
#include "coordinator/shell/spec_planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/run_spec.h"
#include "tests/process/eventually.h"
#include "tests/test_folder.h"

namespace weft::run_records_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunRecordsTest : public ::testing::Test {
 protected:
  RunRecordsTest() {
    request_.output = parent_ / "out";
    absl::StatusOr<UnplannedRun> run = ReadRun(R"({
      "name": "tiny", "model": {"mlp": {"layers": 4, "width": 8, "inputs": 4, "classes": 3}},
      "data": {"idx": {"images": "images", "labels": "labels"}},
      "train": {"steps": 7, "batch": 8, "microbatches": 4, "seed": 1, "optimizer": {"sgd": {"lr": 0.1}}},
      "stages": 4, "schedule": "gpipe"})");
    EXPECT_TRUE(run.ok()) << run.status();
    plan_ = *run->plan();
  }

  // Leaves a run of three steps with that checkpoint. Returns its record.
  std::string WriteFormer(const std::string& checkpoint) const {
    const std::string out = request_.output + "/";
    fs::create_directories(out + checkpoint);
    std::ofstream(out + checkpoint + "/model.safetensors.index.json") << R"({"metadata": {"version": "3"}})";
    std::ofstream(out + "steps.jsonl") << "{\"step\": 0}\n{\"step\": 1}\n{\"step\": 2}\n";
    const std::string record = R"({"name": "former", "state": "finished", "run_id": "abc", "steps_done": 3})";
    std::ofstream(out + "run.json") << record;
    return record;
  }
  RunPlan PlanFrom(const std::string& checkpoint) const {
    RunPlan plan = *plan_;
    RunSpec spec = *plan.spec;
    spec.resume = {request_.output + "/" + checkpoint, 3};
    plan.spec = std::make_shared<RunSpec>(spec);
    return plan;
  }

  const TestFolder parent_;
  SubmitRequest request_;
  std::shared_ptr<const RunPlan> plan_;
};

TEST_F(RunRecordsTest, FolderOfARunThatWasRemoved_IsNotTakenByAnother) {
  RunRecords records(parent_ / "root", [](uint64_t, const std::string&) {});
  ASSERT_TRUE(records.Claim(1, request_, *plan_).ok());
  fs::remove_all(request_.output);
  const auto second = records.Claim(2, request_, *plan_);
  EXPECT_TRUE(absl::IsResourceExhausted(second.status())) << second.status();
  EXPECT_THAT(second.status().message(), AllOf(HasSubstr("run 1 is writing in"), HasSubstr(request_.output)));
  EXPECT_FALSE(fs::exists(request_.output));
  request_.output = parent_ / "other";
  EXPECT_TRUE(records.Claim(3, request_, *plan_).ok());
}

// The lock went with the folder, so that only the path tells.
TEST_F(RunRecordsTest, OtherPathToTheRemovedFolderOfARun_IsNotTakenByAnother) {
  RunRecords records(parent_ / "root", [](uint64_t, const std::string&) {});
  ASSERT_TRUE(records.Claim(1, request_, *plan_).ok());
  fs::remove_all(request_.output);
  fs::create_directory(parent_ / "inner");
  fs::create_directory_symlink(fs::path(request_.output).parent_path(), parent_ / "link");
  for (const char* other : {"out/", "inner/../out", "link/out", "link/out/"}) {
    request_.output = parent_ / other;
    const auto second = records.Claim(2, request_, *plan_);
    EXPECT_TRUE(absl::IsResourceExhausted(second.status())) << other << ": " << second.status();
  }
}

// A link to the folder may lead nowhere, or elsewhere, once the folder is gone.
TEST_F(RunRecordsTest, RemovedFolderThatARunHasByALink_IsNotTakenByAnother) {
  RunRecords records(parent_ / "root", [](uint64_t, const std::string&) {});
  fs::create_directory(parent_ / "real");
  fs::create_directory_symlink(parent_ / "real", parent_ / "link");
  request_.output = parent_ / "link";
  ASSERT_TRUE(records.Claim(1, request_, *plan_).ok());
  fs::remove_all(parent_ / "real");
  request_.output = parent_ / "real";
  EXPECT_TRUE(absl::IsResourceExhausted(records.Claim(2, request_, *plan_).status()));
  fs::remove(parent_ / "link");
  request_.output = parent_ / "link";
  EXPECT_TRUE(absl::IsResourceExhausted(records.Claim(3, request_, *plan_).status()));
}

// The run has finished before its results are written, so this is told when they are, or are not.
TEST_F(RunRecordsTest, ResultsThatAreMissing_AreToldAtTheEndOfTheRun) {
  for (const bool removed : {false, true}) {
    RunRecords records(parent_ / "root", [](uint64_t, const std::string&) {});
    request_.output = parent_ / (removed ? "removed" : "out");
    ASSERT_TRUE(records.Claim(1, request_, *plan_).ok());
    EXPECT_FALSE(records.EndOf(1).has_value());
    RunInfo run;
    run.id = 1;
    run.state = RunState::kRunning;
    records.OnRun(run);
    if (removed) fs::remove_all(request_.output);
    run.state = RunState::kFinished;
    records.OnRun(run);
    std::optional<std::string> end;
    EXPECT_TRUE(Eventually([&] { return (end = records.EndOf(1)).has_value(); }));
    EXPECT_THAT(end.value_or("nothing"), HasSubstr(removed ? "was removed while the run went on" : ""));
    EXPECT_EQ(end.value_or("nothing").empty(), !removed);
    EXPECT_EQ(records.EndOf(2), "") << "it is none of these";
  }
}

// The limits of the coordinator are looked at when the folder is claimed already.
TEST_F(RunRecordsTest, RunThatIsNotTakenIn_LeavesTheRecordOfTheRunThatItWasToContinue) {
  const std::string former = WriteFormer("checkpoint-3");
  {
    RunRecords records(parent_ / "root", [](uint64_t, const std::string&) {});
    ASSERT_TRUE(records.Claim(1, request_, PlanFrom("checkpoint-3")).ok());
    EXPECT_EQ(ReadRecord(request_.output).name, "tiny");
    records.Release(1);
  }
  std::stringstream left;
  left << std::ifstream(request_.output + "/run.json").rdbuf();
  EXPECT_EQ(left.str(), former);
  EXPECT_FALSE(OutputInUse(request_.output));
}

// The run may begin again from it when its last checkpoint has the name.
TEST_F(RunRecordsTest, RunThatGoesOnFromCheckpoint_HasItUnderItsStep) {
  WriteFormer("checkpoint");
  const std::string kept = request_.output + "/checkpoint-3";
  const RunPlan plan = PlanFrom("checkpoint");
  // A submission that is repeated gets the same name.
  for (const bool claimed : {false, true}) {
    const PlannedSpec run =
        WithKeptCheckpoint(request_.output, {std::make_shared<RunPlan>(plan), "as submitted"});
    EXPECT_EQ(run.plan->spec->resume.checkpoint, kept);
    EXPECT_EQ(run.spec, ToJson(*run.plan->spec).dump());
    if (claimed) break;
    RunRecords records(parent_ / "root", [](uint64_t, const std::string&) {});
    ASSERT_TRUE(records.Claim(1, request_, plan).ok());
    EXPECT_TRUE(fs::exists(kept) && !fs::exists(request_.output + "/checkpoint"));
    EXPECT_THAT(ReadRecord(request_.output).spec, HasSubstr(kept));
    records.Release(1);
  }
  EXPECT_TRUE(fs::exists(request_.output + "/checkpoint") && !fs::exists(kept)) << "it was not taken in";
  const PlannedSpec other =
      WithKeptCheckpoint(parent_ / "other", {std::make_shared<RunPlan>(plan), "as submitted"});
  EXPECT_EQ(other.spec, "as submitted");
}

// Several runs share the coordinator's log, so each warning names its run, from the first one on.
TEST_F(RunRecordsTest, StepsThatCannotBeWritten_AreReportedWithTheNumberOfTheRun) {
  std::vector<uint64_t> warned;
  {
    RunRecords records(parent_ / "root", [&](uint64_t run, const std::string&) { warned.push_back(run); });
    ASSERT_TRUE(records.Claim(5, request_, *plan_).ok());
    fs::remove_all(request_.output);
    RunInfo run;
    run.id = 5;
    run.state = RunState::kRunning;
    records.OnRun(run);
    StepDone step;
    step.run = 5;
    records.OnStep(step);
    run.state = RunState::kFailed;
    records.OnRun(run);
    records.OnSpansComplete(5);
  }
  ASSERT_FALSE(warned.empty());
  for (const uint64_t run : warned) EXPECT_EQ(run, 5u);
}

// Another run gets the number, which may run by the time the folder is released.
TEST_F(RunRecordsTest, RunThatWasNotTakenIn_IsNotReportedAsWritten) {
  std::vector<uint64_t> written;
  {
    RunRecords records(
        parent_ / "root", [](uint64_t, const std::string&) {}, [&](uint64_t run) { written.push_back(run); });
    ASSERT_TRUE(records.Claim(7, request_, *plan_).ok());
    records.Release(7);
    EXPECT_FALSE(records.LookAt(7).has_value());
  }
  EXPECT_THAT(written, IsEmpty());
  EXPECT_FALSE(fs::exists(request_.output));
}

// The store alone has the steps that could not be written, and drops them when it hears that they are.
TEST_F(RunRecordsTest, FolderWithoutItsSteps_IsNotReportedAsWritten) {
  for (const RunState end : {RunState::kFinished, RunState::kFailed}) {
    for (const bool writable : {true, false}) {
      request_.output = parent_ / absl::StrCat("out-", static_cast<int>(end), writable ? "" : "-full");
      std::vector<uint64_t> written;
      {
        RunRecords records(
            parent_ / "root", [](uint64_t, const std::string&) {},
            [&](uint64_t run) { written.push_back(run); });
        ASSERT_TRUE(records.Claim(5, request_, *plan_).ok());
        const std::string steps = request_.output + "/steps.jsonl";
        ASSERT_TRUE(writable || (fs::remove(steps) && fs::create_directory(steps)));
        RunInfo run;
        run.id = 5;
        run.state = RunState::kRunning;
        records.OnRun(run);
        StepDone step;
        step.run = 5;
        records.OnStep(step);
        run.state = end;
        records.OnRun(run);
        records.OnSpansComplete(5);
      }
      EXPECT_EQ(written.empty(), !writable) << request_.output;
    }
  }
}

}  // namespace
}  // namespace weft::run_records_test
