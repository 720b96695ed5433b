#include "coordinator/shell/restored_runs.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "coordinator/record/output_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_folder.h"

namespace weft::restored_runs_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A run whose folder has begun, and a coordinator that starts again and can plan none.
class RestoredRunsTest : public ::testing::Test {
 protected:
  RestoredRunsTest() {
    RunRecord record{"text", "text.yaml", "abc"};
    record.end_step = 100;
    record.spec = R"({"name": "text"})";
    auto folder = OutputFolder::Open(out_, out_, FormerWork::kRefuse);
    EXPECT_TRUE(folder.ok() && (*folder)->Begin(record).ok());
    stored_.submission.run = 3;
    stored_.submission.folder = {out_, out_, "abc"};
    stored_.steps.resize(7);
  }

  absl::StatusOr<RestoredRuns> TryToRestore() {
    StoredState state;
    state.runs[3] = stored_;
    RunRecords folders(parent_ / "root", [](uint64_t, const std::string&) {});
    return RestoreRuns(
        std::move(state),
        [](const std::string&) { return absl::NotFoundError("model: cannot read model.pt2"); }, &folders,
        [](size_t, size_t) {});
  }
  RestoredRuns Restore() {
    absl::StatusOr<RestoredRuns> restored = TryToRestore();
    EXPECT_TRUE(restored.ok()) << restored.status();
    return restored.ok() ? *std::move(restored) : RestoredRuns();
  }

  const TestFolder parent_;
  const std::string out_ = parent_ / "out";
  StoredRun stored_;
};

TEST_F(RestoredRunsTest, RunThatCannotBePlanned_ItsFolderSaysThatItFailed) {
  stored_.figures.info.state = RunState::kRunning;
  const RestoredRuns restored = Restore();
  ASSERT_EQ(restored.runs.size(), 1u);
  EXPECT_EQ(restored.live, 0);
  EXPECT_EQ(restored.runs[0].plan, nullptr);
  EXPECT_THAT(restored.runs[0].failure, HasSubstr("cannot read model.pt2"));
  const RunRecord record = ReadRecord(out_);
  EXPECT_EQ(record.state, "failed");
  EXPECT_EQ(record.reason, restored.runs[0].failure);
  EXPECT_EQ(record.steps_done, 7);
  EXPECT_EQ(record.end_step, 100);
  EXPECT_EQ(record.spec, R"({"name":"text"})");
  EXPECT_FALSE(OutputInUse(out_));
}

TEST_F(RestoredRunsTest, EndedRunThatCannotBePlanned_ItsFolderSaysHowItEnded) {
  stored_.figures.info.state = RunState::kCancelled;
  stored_.figures.info.reason = "cancelled by weft cancel";
  const RestoredRuns restored = Restore();
  EXPECT_THAT(restored.records.written, ElementsAre(3));
  const RunRecord record = ReadRecord(out_);
  EXPECT_EQ(record.state, "stopped");
  EXPECT_EQ(record.reason, "cancelled by weft cancel");
}

TEST_F(RestoredRunsTest, FolderOfAnotherRunByNow_IsLeftAlone) {
  stored_.figures.info.state = RunState::kRunning;
  stored_.submission.folder.run_id = "another";
  Restore();
  EXPECT_EQ(ReadRecord(out_).state, "running");
}

// The disk of all outputs is not mounted yet.
TEST_F(RestoredRunsTest, RootOfOutputsMissingOrEmpty_RunsAreNeitherFailedNorTakenAsWritten) {
  const std::string root = parent_ / "root", folder = root + "/text-3";
  stored_.submission.folder = {folder, folder, "abc"};
  for (const bool empty : {false, true}) {
    ASSERT_EQ(empty && std::filesystem::create_directory(root), empty);
    stored_.figures.info.state = RunState::kRunning;
    const absl::Status later = TryToRestore().status();
    EXPECT_TRUE(absl::IsUnavailable(later)) << later;
    EXPECT_THAT(std::string(later.message()),
                AllOf(HasSubstr("run 3 cannot be taken up now"), HasSubstr(empty ? "is empty" : "is missing"),
                      HasSubstr("make an empty folder " + folder)));
    stored_.figures.info.state = RunState::kFinished;
    EXPECT_THAT(Restore().records.written, IsEmpty());
  }
  ASSERT_TRUE(std::filesystem::create_directory(root + "/other-4"));
  EXPECT_THAT(Restore().records.written, ElementsAre(3)) << "the folder was removed, and others are there";
  stored_.figures.info.state = RunState::kRunning;
  EXPECT_EQ(Restore().live, 0u);
}

TEST_F(RestoredRunsTest, EndedRunWhoseFolderCannotBeTakenUp_KeepsItsStepsInTheStore) {
  stored_.figures.info.state = RunState::kFinished;
  const auto owner = OutputFolder::Open(out_, out_, FormerWork::kRefuse);
  ASSERT_TRUE(owner.ok());
  EXPECT_THAT(Restore().records.written, IsEmpty());
}

}  // namespace
}  // namespace weft::restored_runs_test
