#include "worker/shell/checkpoint/checkpoint_folders.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "run/run_schedule.h"
#include "tests/test_folder.h"
#include "tests/unit/disk_faults.h"
#include "worker/shell/checkpoint/checkpoint.h"
#include "worker/shell/checkpoint/checkpoint_reader.h"
#include "worker/shell/compute/compute.h"

namespace weft::checkpoint_folders_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class CheckpointFolder : public ::testing::Test {
 protected:
  CheckpointFolder() {
    MlpSpec model;
    model.layers = 2;
    model.inputs = 3;
    model.width = 4;
    model.classes = 2;
    run_.name = "r";
    run_.schedule.name = "gpipe";
    run_.model = model;
    run_.layers_of_stage = {1, 1};
    run_.train.steps = 100;
  }

  // All parameters of the stage have this value.
  void WriteStage(const std::string& folder, int stage, int version, float value) {
    const std::vector<float> values(100, value);
    const StageLayout layout = LayOutStage(run_, stage);
    const StateRule rule = StateRulesOf(*ScheduledRun::Make(run_)).at(stage);
    ASSERT_TRUE(
        WriteTrainingState(folder, layout, rule, version, version, {values.data(), values.data()}, {}).ok());
  }
  CheckpointFolders Folders(const std::string& id, uint64_t attempt = 1) const {
    return CheckpointFolders(out_, *ScheduledRun::Make(run_), id, attempt);
  }
  void Save(const CheckpointFolders& folders, int step, float value, int keep = 2) {
    for (int stage = 0; stage < 2; ++stage) WriteStage(folders.Partial(step), stage, step, value);
    const absl::Status sealed = folders.Seal(step, keep);
    ASSERT_TRUE(sealed.ok()) << sealed;
  }
  int64_t SealedMs(const std::string& name) const {
    return CheckpointIndex::Read(out_ + "/" + name)->sealed_ms;
  }
  void SetSealedMs(const std::string& name, int64_t sealed_ms) const {
    auto index = CheckpointIndex::Read(out_ + "/" + name);
    ASSERT_TRUE(index.ok()) << index.status();
    index->sealed_ms = sealed_ms;
    ASSERT_TRUE(index->Write(out_ + "/" + name).ok());
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(out_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  // The value of its parameters, or the refusal.
  absl::StatusOr<float> Read(const std::string& folder) const {
    const auto checkpoint = ReadCheckpoint(folder, run_.model);
    if (!checkpoint.ok()) return checkpoint.status();
    return checkpoint->parameters.begin()->second.front();
  }

  const TestFolder temporary_;
  const std::string out_ = temporary_.path();
  RunSpec run_;
};

TEST_F(CheckpointFolder, BeforeItIsSealed_IsNoCheckpoint) {
  const CheckpointFolders folders = Folders("aaaaaaaabbbb");
  ASSERT_TRUE(folders.Prepare().ok());
  WriteStage(folders.Partial(10), 0, 10, 1);
  WriteStage(folders.Partial(10), 1, 10, 1);
  EXPECT_FALSE(fs::exists(folders.Final(10)));
  EXPECT_EQ(FindCheckpoint(out_).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(folders.Seal(10, 2).ok());
  EXPECT_EQ(Names(), std::vector<std::string>{"checkpoint-10"});
  EXPECT_EQ(*Read(out_ + "/checkpoint-10"), 1);
  const auto index = CheckpointIndex::Read(folders.Final(10));
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->identity.run_id, "aaaaaaaabbbb");
  EXPECT_TRUE(index->identity.periodic);
  EXPECT_EQ(index->version, 10);
  EXPECT_FALSE(index->training.empty());
}

// Weights that are to be validated: in the place of a checkpoint, or beside one, and no checkpoint
// themselves.
TEST_F(CheckpointFolder, KeptAside_AreWeightsThatNobodyTakesForACheckpoint) {
  const CheckpointFolders folders = Folders("aaaaaaaabbbb");
  for (int stage = 0; stage < 2; ++stage) WriteStage(folders.Partial(10), stage, 10, 1);
  ASSERT_TRUE(folders.KeepAside(10).ok());
  EXPECT_EQ(*Read(folders.KeptAside(10)), 1);
  EXPECT_FALSE(fs::exists(folders.KeptAside(10) + "/state"));
  EXPECT_EQ(FindCheckpoint(out_).status().code(), absl::StatusCode::kNotFound);
  for (int stage = 0; stage < 2; ++stage) WriteStage(folders.Partial(20), stage, 20, 2);
  ASSERT_TRUE(folders.Seal(20, 1, /*validate=*/true).ok());
  Save(folders, 30, 3, /*keep=*/1);
  EXPECT_EQ(*Read(folders.KeptAside(20)), 2) << "the checkpoint is gone";
  // The second time the name is taken, and the file is copied.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(folders.KeepAside(30, folders.Final(30)).ok());
    EXPECT_EQ(*Read(folders.KeptAside(30)), 3);
    EXPECT_EQ(*Read(folders.Final(30)), 3);
  }
  folders.DropKeptAside(20);
  ASSERT_TRUE(folders.Prepare().ok());
  EXPECT_TRUE(fs::exists(folders.KeptAside(10))) << "another process of the attempt";
  folders.DropKeptAside();
  EXPECT_EQ(Names(), std::vector<std::string>{"checkpoint-30"});
  EXPECT_EQ(*Read(folders.Final(30)), 3);
  ASSERT_TRUE(folders.KeepAside(40, folders.Final(30)).ok());
  SweepPartialCheckpoints(out_);
  EXPECT_EQ(Names(), std::vector<std::string>{"checkpoint-30"}) << "what a killed attempt has left goes";
}

// A stage is missing: the save was killed, or its process's disk is full.
TEST_F(CheckpointFolder, WithoutAStage_IsDroppedAndTheOldOneStays) {
  Save(Folders("one"), 100, 1);
  const CheckpointFolders folders = Folders("two");
  WriteStage(folders.Partial(100), 0, 100, 2);
  EXPECT_THAT(std::string(folders.Seal(100, 2).message()), HasSubstr("stage01.safetensors"));
  EXPECT_EQ(Names(), std::vector<std::string>{"checkpoint"});
  EXPECT_EQ(*Read(out_ + "/checkpoint"), 1);
}

TEST_F(CheckpointFolder, WhereOneIs_TheNewOneTakesItsNameWhole) {
  Save(Folders("one"), 100, 1);
  std::ofstream(out_ + "/checkpoint/notes.txt") << "mine";
  Save(Folders("two"), 100, 2);
  EXPECT_EQ(*Read(out_ + "/checkpoint"), 2);
  // A file that is not of a checkpoint is nobody's to remove.
  ASSERT_EQ(Names().size(), 2u);
  EXPECT_TRUE(fs::exists(fs::path(out_) / Names()[1] / "notes.txt"));
  EXPECT_FALSE(fs::exists(fs::path(out_) / Names()[1] / "stage00.safetensors"));
}

// Two runs of the same name, steps and sizes, whose files have the same names and versions.
TEST_F(CheckpointFolder, FilesOfTwoRuns_AreRefused) {
  Save(Folders("one"), 100, 1);
  fs::rename(out_ + "/checkpoint", out_ + "/former");
  Save(Folders("two"), 100, 2);
  for (const std::string file : {"stage00.safetensors", "stage01.safetensors"}) {
    const fs::path mixed = fs::path(out_) / "mixed";
    fs::remove_all(mixed);
    fs::copy(out_ + "/checkpoint", mixed, fs::copy_options::recursive);
    fs::copy_file(fs::path(out_) / "former" / file, mixed / file, fs::copy_options::overwrite_existing);
    const absl::Status refused = Read(mixed).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("is a mix"), HasSubstr(file)));
  }
  // Nor is a state of another run one to go on from.
  const fs::path mixed = fs::path(out_) / "mixed";
  fs::remove_all(mixed);
  fs::copy(out_ + "/checkpoint", mixed, fs::copy_options::recursive);
  run_.train.seed = 9;
  WriteStage(mixed, 0, 100, 2);
  run_.resume = {mixed, 100};
  run_.train.steps = 200;
  EXPECT_EQ(CheckResume(*ScheduledRun::Make(run_)).code(), absl::StatusCode::kDataLoss)
      << CheckResume(*ScheduledRun::Make(run_));
}

// The same numbers made by one run with another seed: the index is not written.
TEST_F(CheckpointFolder, FilesOfTwoTrainings_GetNoIndex) {
  const CheckpointFolders folders = Folders("one");
  WriteStage(folders.Partial(100), 0, 100, 1);
  run_.train.seed = 9;
  WriteStage(folders.Partial(100), 1, 100, 1);
  EXPECT_EQ(WriteCheckpointIndex(folders.Partial(100), run_).code(), absl::StatusCode::kFailedPrecondition);
}

// A process that was given up goes on writing, into the folder of its own attempt.
TEST_F(CheckpointFolder, AttemptThatIsOver_ChangesNothingOfTheNext) {
  const CheckpointFolders over = Folders("run", 1), next = Folders("run", 2);
  for (int stage = 0; stage < 2; ++stage) WriteStage(next.Partial(20), stage, 20, 2);
  WriteStage(over.Partial(20), 0, 20, 7);
  ASSERT_TRUE(next.Seal(20, 2).ok());
  EXPECT_EQ(*Read(out_ + "/checkpoint-20"), 2);
}

TEST_F(CheckpointFolder, WhatKilledSavesLeft_IsSweptByTheNextRun) {
  WriteStage(Folders("dead").Partial(20), 0, 20, 1);
  std::ofstream(Folders("dead").Partial(20) + "/stage01.safetensors.12-34.partial") << "half";
  // Sealed but for its name.
  const CheckpointFolders late = Folders("late");
  for (int stage = 0; stage < 2; ++stage) WriteStage(late.Partial(30), stage, 30, 3);
  ASSERT_TRUE(WriteCheckpointIndex(late.Partial(30), run_, {"late", 1, true}).ok());
  const CheckpointFolders next = Folders("next");
  WriteStage(next.Partial(40), 0, 40, 4);
  std::ofstream(out_ + "/mine.partial") << "not a checkpoint's";
  ASSERT_TRUE(next.Prepare().ok());
  EXPECT_THAT(Names(), ::testing::UnorderedElementsAre(
                           "checkpoint-30", fs::path(next.Partial(40)).filename().string(), "mine.partial"));
  EXPECT_EQ(*Read(out_ + "/checkpoint-30"), 3);
  SweepPartialCheckpoints(out_);
  EXPECT_THAT(Names(), ::testing::UnorderedElementsAre("checkpoint-30", "mine.partial"));
}

// A process of an attempt that is over has read all files and is about to write the index.
TEST_F(CheckpointFolder, SweptWhileItIsSealed_GetsNoName) {
  const CheckpointFolders over = Folders("run", 1);
  for (int stage = 0; stage < 2; ++stage) WriteStage(over.Partial(20), stage, 20, 2);
  std::ofstream(over.Partial(20) + "/notes.txt") << "keeps the folder";
  ASSERT_TRUE(WriteCheckpointIndex(over.Partial(20), run_, {"run", 1, true}).ok());
  const auto index = CheckpointIndex::Read(over.Partial(20));
  fs::remove(over.Partial(20) + "/" + std::string(kCheckpointIndex));
  ASSERT_TRUE(Folders("run", 2).Prepare().ok());
  EXPECT_FALSE(index->Write(over.Partial(20)).ok());
  EXPECT_FALSE(over.Seal(20, 2).ok());
  SweepPartialCheckpoints(out_);
  EXPECT_FALSE(fs::exists(out_ + "/checkpoint-20"));
}

// NFS has no exchange of names.
TEST_F(CheckpointFolder, WithoutExchangeOfNames_TheNewOneTakesTheNameAndTheOldOneGoes) {
  Save(Folders("one"), 100, 1);
  const WithDiskFaults faults({/*no_exchange=*/true, "", 0, ""});
  Save(Folders("two"), 100, 2);
  EXPECT_EQ(Names(), std::vector<std::string>{"checkpoint"});
  EXPECT_EQ(*Read(out_ + "/checkpoint"), 2);
}

TEST_F(CheckpointFolder, RenameThatFails_LosesNeitherTheOldOneNorTheNew) {
  for (const int renames : {1, 2}) {
    SCOPED_TRACE(renames);
    fs::remove_all(out_ + "/checkpoint");
    Save(Folders("one"), 100, 1);
    {
      const WithDiskFaults faults({/*no_exchange=*/true, out_ + "/checkpoint", renames, ""});
      for (int stage = 0; stage < 2; ++stage) WriteStage(Folders("two").Partial(100), stage, 100, 2);
      EXPECT_THAT(std::string(Folders("two").Seal(100, 2).message()), HasSubstr("cannot rename to"));
    }
    if (renames == 1) {
      EXPECT_EQ(*Read(out_ + "/checkpoint"), 1) << "it has its name back";
    }
    ASSERT_TRUE(Folders("three").Prepare().ok());
    EXPECT_EQ(Names(), std::vector<std::string>{"checkpoint"});
    EXPECT_EQ(*Read(out_ + "/checkpoint"), renames);
  }
}

TEST_F(CheckpointFolder, NamesThatCannotBeSynced_TheOldOneStaysUntilTheyAre) {
  Save(Folders("one"), 100, 1);
  const CheckpointFolders folders = Folders("two");
  for (int stage = 0; stage < 2; ++stage) WriteStage(folders.Partial(100), stage, 100, 2);
  {
    const WithDiskFaults faults({false, "", 0, out_});
    EXPECT_FALSE(folders.Seal(100, 2).ok());
    EXPECT_EQ(*Read(folders.Partial(100)), 1);
    SweepPartialCheckpoints(out_);
  }
  EXPECT_EQ(*Read(out_ + "/checkpoint"), 2);
  ASSERT_EQ(Names().size(), 2u);
  EXPECT_EQ(*Read(out_ + "/" + Names()[1]), 1);
  SweepPartialCheckpoints(out_);
  EXPECT_EQ(Names(), std::vector<std::string>{"checkpoint"});
}

TEST_F(CheckpointFolder, LacksOnlyItsNameAndCannotGetIt_Stays) {
  const CheckpointFolders folders = Folders("one");
  for (int stage = 0; stage < 2; ++stage) WriteStage(folders.Partial(30), stage, 30, 3);
  {
    const WithDiskFaults faults({false, out_ + "/checkpoint-30", 2, ""});
    EXPECT_FALSE(folders.Seal(30, 2).ok());
    SweepPartialCheckpoints(out_);
  }
  EXPECT_EQ(*Read(folders.Partial(30)), 3);
  SweepPartialCheckpoints(out_);
  EXPECT_EQ(*Read(out_ + "/checkpoint-30"), 3);
}

TEST_F(CheckpointFolder, SymbolicLink_IsRefusedAndNotFollowed) {
  const std::string elsewhere = out_ + "/elsewhere";
  Save(Folders("one"), 100, 1);
  fs::rename(out_ + "/checkpoint", elsewhere);
  fs::create_directory_symlink(elsewhere, out_ + "/checkpoint");
  const CheckpointFolders folders = Folders("two");
  const absl::Status refused = folders.Prepare();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("symbolic link"), HasSubstr("remove it")));
  // It came while the run went on.
  for (int stage = 0; stage < 2; ++stage) WriteStage(folders.Partial(100), stage, 100, 2);
  EXPECT_FALSE(folders.Seal(100, 2).ok());
  EXPECT_EQ(*Read(elsewhere), 1) << "what it points to was touched";
}

TEST_F(CheckpointFolder, PeriodicOnes_TheNewestStay) {
  const CheckpointFolders folders = Folders("one");
  Save(folders, 10, 1, 2);
  std::ofstream(out_ + "/checkpoint-10/notes.txt") << "mine";
  for (const int step : {20, 30, 40}) Save(folders, step, static_cast<float>(step), 2);
  Save(folders, 100, 100, 2);
  std::vector<std::string> checkpoints;
  for (const std::string& name : Names()) {
    if (CheckpointIndex::Read(out_ + "/" + name).ok()) checkpoints.push_back(name);
  }
  EXPECT_EQ(checkpoints, (std::vector<std::string>{"checkpoint", "checkpoint-30", "checkpoint-40"}));
}

// If the resumed run goes wrong, that one is where to begin again.
TEST_F(CheckpointFolder, PeriodicOnes_TheOneFromWhichTheRunResumedStaysToo) {
  for (const int step : {10, 20}) Save(Folders("one"), step, 1);
  run_.resume = {out_ + "/checkpoint-10", 10};
  const CheckpointFolders resumed = Folders("two", 2);
  for (const int step : {20, 30, 40}) Save(resumed, step, 2);
  EXPECT_EQ(Names(), (std::vector<std::string>{"checkpoint-10", "checkpoint-30", "checkpoint-40"}));
  run_.resume = {out_ + "/checkpoint-40", 40};
  Save(Folders("three", 3), 50, 3, /*keep=*/1);
  EXPECT_EQ(Names(), (std::vector<std::string>{"checkpoint-40", "checkpoint-50"}));
}

// A clock that was an hour fast and was put right: what is sealed then is the newest all the same.
TEST_F(CheckpointFolder, ClockPutBack_WhatIsSealedThenIsTheNewest) {
  for (const int step : {40, 60}) Save(Folders("one"), step, 1);
  for (const std::string& name : Names()) SetSealedMs(name, SealedMs(name) + 3'600'000);
  const int64_t before = SealedMs("checkpoint-60");
  for (const int step : {70, 80}) Save(Folders("one"), step, 1);
  EXPECT_EQ(Names(), (std::vector<std::string>{"checkpoint-70", "checkpoint-80"}));
  EXPECT_GT(SealedMs("checkpoint-70"), before);
  EXPECT_EQ(*FindCheckpoint(out_), out_ + "/checkpoint-80");
  // No time is later than this one.
  for (const std::string& name : Names()) SetSealedMs(name, std::numeric_limits<int64_t>::max());
  Save(Folders("one"), 90, 1);
  EXPECT_EQ(Names(), (std::vector<std::string>{"checkpoint-80", "checkpoint-90"}));
}

TEST_F(CheckpointFolder, Find_TakesTheNewestThatIsWhole) {
  EXPECT_THAT(std::string(FindCheckpoint(out_).status().message()), HasSubstr("holds none"));
  const CheckpointFolders folders = Folders("one");
  Save(folders, 50, 5);
  usleep(2000);
  Save(folders, 20, 2);  // later, though of an earlier step: the run went on from there
  EXPECT_EQ(*FindCheckpoint(out_), out_ + "/checkpoint-20");
  EXPECT_EQ(*FindCheckpoint(out_, 21), out_ + "/checkpoint-50");
  EXPECT_EQ(*FindCheckpoint(out_ + "/checkpoint-50"), out_ + "/checkpoint-50");
  fs::remove(out_ + "/checkpoint-20/model.safetensors.index.json");
  EXPECT_EQ(*FindCheckpoint(out_), out_ + "/checkpoint-50");
}

}  // namespace
}  // namespace weft::checkpoint_folders_test
