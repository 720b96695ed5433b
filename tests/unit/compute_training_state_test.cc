// Tests the files that a run needs to go on: written, read back, and refused where they do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "run/graphs_text.h"
#include "run/run_schedule.h"
#include "run/run_spec.h"
#include "tests/test_folder.h"
#include "tests/unit/exported_run.h"
#include "worker/shell/checkpoint/checkpoint.h"
#include "worker/shell/compute/training_state.h"

namespace weft::compute_training_state_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kStep = 5;

std::string Content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class TrainingState : public ::testing::Test {
 protected:
  TrainingState() {
    MlpSpec model;
    model.layers = 3;
    model.inputs = 5;
    model.width = 7;
    model.classes = 2;
    run_.name = "r";
    run_.model = model;
    run_.layers_of_stage = {1, 2};
    run_.train.steps = 20;
    run_.train.optimizer = AdamWSpec();
    run_.schedule = *ParseScheduleText("pipedream");
    run_.resume = {folder_, kStep};
  }

  static StateRule RuleOf(const RunSpec& run, int stage) {
    return StateRulesOf(*ScheduledRun::Make(run)).at(stage);
  }
  // The stage's flat buffers: the newest weights, then those of StateBuffers. Other numbers in each.
  std::vector<std::vector<float>> Flats(int stage, int version) {
    const StageLayout layout = LayOutStage(run_, stage);
    const size_t buffers = 1 + StateBuffers(RuleOf(run_, stage), version).size();
    std::vector<std::vector<float>> flats(buffers, std::vector<float>(layout.elements));
    for (size_t i = 0; i < buffers; ++i) {
      for (const ParameterSlot& slot : layout.slots) {
        for (int64_t e = 0; e < slot.parameter.elements(); ++e)
          flats[i][slot.offset + e] = static_cast<float>(1000 * i + 100 * stage + e) + 0.25f;
      }
    }
    return flats;
  }
  void SaveStage(const std::string& folder, int stage, int version) {
    const StageLayout layout = LayOutStage(run_, stage);
    const auto flats = Flats(stage, version);
    std::vector<SlotPointers> buffers;
    for (size_t i = 1; i < flats.size(); ++i) buffers.push_back(SlotsOf(layout, flats[i].data()));
    const absl::Status saved = WriteTrainingState(folder, layout, RuleOf(run_, stage), version, version,
                                                  SlotsOf(layout, flats[0].data()), buffers);
    ASSERT_TRUE(saved.ok()) << saved;
  }
  void Save() {
    for (int stage = 0; stage < run_.stages(); ++stage) SaveStage(folder_, stage, kStep);
    ASSERT_TRUE(WriteCheckpointIndex(folder_, run_).ok());
  }
  std::string Refusal(const RunSpec& run) {
    const absl::Status status = CheckResume(*ScheduledRun::Make(run));
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  }
  std::string Refusal() { return Refusal(run_); }

  const TestFolder temporary_;
  const std::string root_ = temporary_.path(), folder_ = root_ + "/checkpoint";
  RunSpec run_;
};

TEST(TrainingId, GraphsOfAModel_CountAsTheyAreAndNotAsTheyWerePacked) {
  const absl::StatusOr<RunSpec> plain = ParseRunSpec(RunOf(LargeGraphs()));
  const absl::StatusOr<RunSpec> packed = ParseRunSpec(RunOf(PackGraphs(LargeGraphs())));
  const absl::StatusOr<RunSpec> other = ParseRunSpec(RunOf(TwoLayers()));
  ASSERT_TRUE(plain.ok() && packed.ok() && other.ok()) << plain.status() << packed.status() << other.status();
  EXPECT_EQ(TrainingId(*plain, {}), TrainingId(*packed, {}));
  EXPECT_NE(TrainingId(*plain, {}), TrainingId(*other, {}));
}

TEST_F(TrainingState, Buffers_AreThoseThatTheNextStepsAndTheOptimizerNeed) {
  const StateRule oldest = RuleOf(run_, 0), newest = RuleOf(run_, 1);
  EXPECT_THAT(StateBuffers(oldest, kStep), ElementsAre("version4", "exp_avg", "exp_avg_sq"));
  EXPECT_THAT(StateBuffers(newest, kStep), ElementsAre("exp_avg", "exp_avg_sq"));
  StateRule sgd{{3, 0, 1}, SgdSpec{0.1, 0.9, 0}};
  EXPECT_THAT(StateBuffers(sgd, 2), ElementsAre("version0", "version1", "momentum_buffer"))
      << "there are no versions before the first";
  sgd.optimizer = SgdSpec();
  EXPECT_THAT(StateBuffers(sgd, 9), ElementsAre("version6", "version7", "version8"));
}

TEST_F(TrainingState, WrittenState_IsReadBackWholeAndInSlices) {
  Save();
  EXPECT_EQ(*ResumeStep(folder_), kStep);
  ASSERT_TRUE(CheckResume(*ScheduledRun::Make(run_)).ok()) << CheckResume(*ScheduledRun::Make(run_));
  for (int stage = 0; stage < run_.stages(); ++stage) {
    const StateRule rule = RuleOf(run_, stage);
    const auto saved = SavedStage::Read(run_, rule, stage);
    ASSERT_TRUE(saved.ok()) << saved.status();
    const auto flats = Flats(stage, kStep);
    const std::vector<std::string> names = StateBuffers(rule, kStep);
    for (const int parts : {1, 3}) {
      for (size_t i = 0; i < flats.size(); ++i) {
        std::vector<float> read(flats[i].size(), -1);
        for (int part = 0; part < parts; ++part) {
          const SliceBounds slice = SliceOf(static_cast<int64_t>(read.size()), part, parts);
          if (i == 0) saved->CopyNewest(slice, read.data() + slice.begin);
          if (i > 0) saved->CopyBuffer(names[i - 1], slice, read.data() + slice.begin);
        }
        EXPECT_EQ(read, flats[i]) << "buffer " << i << " of stage " << stage << " in " << parts;
      }
    }
  }
}

TEST_F(TrainingState, JoinedSlices_AreTheWholeHoldersBytes) {
  constexpr int kParts = 3;
  const std::string joined = root_ + "/joined";
  for (int stage = 0; stage < run_.stages(); ++stage) {
    SaveStage(folder_, stage, kStep);
    const StageLayout layout = LayOutStage(run_, stage);
    const StateRule rule = RuleOf(run_, stage);
    const auto flats = Flats(stage, kStep);
    for (int part = 0; part < kParts; ++part) {
      const SliceBounds slice = SliceOf(layout.elements, part, kParts);
      std::vector<const float*> buffers;
      for (size_t i = 1; i < flats.size(); ++i) buffers.push_back(flats[i].data() + slice.begin);
      ASSERT_TRUE(WriteSliceFile(joined, layout, rule, kStep, kStep, part, kParts,
                                 flats[0].data() + slice.begin, buffers)
                      .ok());
      ASSERT_TRUE(JoinSliceFiles(joined, layout, rule, kStep, kParts).ok());
    }
    for (const std::string& file : {StageFileName(stage), StateFileName(stage)}) {
      EXPECT_FALSE(Content(joined + "/" + file).empty());
      EXPECT_EQ(Content(joined + "/" + file), Content(folder_ + "/" + file)) << file;
    }
  }
}

TEST_F(TrainingState, OtherRun_IsRefusedWithTheReason) {
  Save();
  RunSpec other = run_;
  std::get<MlpSpec>(other.model).width = 8;
  EXPECT_THAT(Refusal(other), AllOf(HasSubstr("another model"), HasSubstr("stage00.linear0.weight"),
                                    HasSubstr("[8, 5]"), HasSubstr("[7, 5]")));
  other = run_;
  other.layers_of_stage = {2, 1};
  EXPECT_THAT(Refusal(other), HasSubstr("other stages"));
  other.layers_of_stage = {1, 1, 1};
  EXPECT_THAT(Refusal(other), AllOf(HasSubstr("cut into 2 stages"), HasSubstr("has 3")));
  other = run_;
  other.train.optimizer = SgdSpec();
  EXPECT_THAT(Refusal(other), AllOf(HasSubstr("optimizer adamw"), HasSubstr("run's is sgd")));
  other.train.optimizer = SgdSpec{0.1, 0.9, 0};
  EXPECT_THAT(Refusal(other), HasSubstr("run's is sgd with momentum"));
  other = run_;
  other.schedule = *ParseScheduleText("gpipe");
  EXPECT_THAT(Refusal(other), AllOf(HasSubstr("another rule"), HasSubstr("1 updates old, the run 0")));
  other = run_;
  other.resume.step = 4;
  EXPECT_THAT(Refusal(other), AllOf(HasSubstr("of step 5"), HasSubstr("goes on at 4")));
  // Another placement of the same rule.
  other = run_;
  other.schedule = *ParseScheduleText("custom,workers=1,compute=0,staleness=S-1-s");
  EXPECT_TRUE(CheckResume(*ScheduledRun::Make(other)).ok()) << CheckResume(*ScheduledRun::Make(other));
}

TEST_F(TrainingState, FolderThatIsNoWholeCheckpoint_IsRefusedWithTheReason) {
  EXPECT_THAT(std::string(ResumeStep(folder_).status().message()), HasSubstr("no whole checkpoint"));
  SaveStage(folder_, 0, kStep);
  SaveStage(folder_, 1, kStep);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("no whole checkpoint"), HasSubstr("writes last")));
  ASSERT_TRUE(WriteCheckpointIndex(folder_, run_).ok());
  ASSERT_TRUE(CheckResume(*ScheduledRun::Make(run_)).ok());

  const std::string index = folder_ + "/" + std::string(kCheckpointIndex), good = Content(index);
  for (const std::string bad : {"", "[]", "{\"metadata\": {}}", "{\"metadata\": {\"version\": \"x\"}}"}) {
    std::ofstream(index, std::ios::binary) << bad;
    EXPECT_EQ(ResumeStep(folder_).status().code(), absl::StatusCode::kDataLoss) << bad;
  }
  std::ofstream(index, std::ios::binary) << good;

  const std::string state = folder_ + "/" + StateFileName(1), kept = root_ + "/kept";
  fs::rename(state, kept);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr(state), HasSubstr("which the checkpoint's index names")));
  fs::rename(kept, state);
  SaveStage(folder_, 1, kStep + 1);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("mixes versions"), HasSubstr("version 6"), HasSubstr("index of 5")));
  EXPECT_EQ(WriteCheckpointIndex(folder_, run_).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TrainingState, WeightsAlone_AreACheckpointButNotToGoOnFrom) {
  Save();
  for (int stage = 0; stage < 2; ++stage) fs::remove(folder_ + "/" + StateFileName(stage));
  ASSERT_TRUE(WriteCheckpointIndex(folder_, run_).ok());
  EXPECT_THAT(Refusal(), HasSubstr("weights alone"));
}

TEST_F(TrainingState, FlippedBit_IsFoundWhenTheDataIsRead) {
  Save();
  for (const std::string& file : {StageFileName(0), StateFileName(0)}) {
    const std::string path = folder_ + "/" + file, good = Content(path);
    std::string bad = good;
    bad[bad.size() - 7] = static_cast<char>(bad[bad.size() - 7] ^ 4);
    std::ofstream(path, std::ios::binary) << bad;
    const absl::Status status = SavedStage::Read(run_, RuleOf(run_, 0), 0).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path), HasSubstr("checksum")));
    std::ofstream(path, std::ios::binary | std::ios::trunc) << good.substr(0, good.size() - 4);
    EXPECT_THAT(Refusal(), AllOf(HasSubstr(path), HasSubstr("damaged")));
    std::ofstream(path, std::ios::binary) << good;
  }
  EXPECT_TRUE(SavedStage::Read(run_, RuleOf(run_, 0), 0).ok());
}

}  // namespace
}  // namespace weft::compute_training_state_test
