// The checkpoints of real trainings: listed, verified, and damaged. A flipped byte of one is never believed:
// a run goes on with the right bits, or refuses the file by its name.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/files/run_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/checkpoint_tensors.h"
#include "tests/process/command.h"
#include "tests/process/run_files.h"
#include "worker/shell/checkpoint/packed_snapshot.h"
#include "worker/shell/compute/training_state.h"

namespace weft::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr int kSeconds = 120;

class Checkpoints : public ::testing::Test {
 protected:
  void SetUp() override {
    file_ = WriteSmallRun(
        folder_,
        {{"model", "{gpt: {layers: 1, width: 16, heads: 2, context: 16, vocabulary: 256}}"},
         {"train", "{steps: 8, batch: 8, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}"},
         {"stages", "2"},
         {"schedule", "{1f1b: {}}"},
         {"checkpoint", "{every: 2, keep: 2}"}});
    const CommandResult trained = Weft({"train", file_, "--out", out_, "--processes", "2"});
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  static CommandResult Weft(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "weft");
    return Command::Run(arguments, kSeconds);
  }
  static void Flip(const std::string& path, size_t at, int mask = 0xff) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get() ^ mask);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
    ASSERT_TRUE(file.good()) << path;
  }
  static void FlipLast(const std::string& path) { Flip(path, fs::file_size(path) - 1, 4); }
  std::string In(const std::string& name) const { return absl::StrCat(out_, "/", name); }

  const TestFolder folder_;
  const std::string out_ = folder_ / "out";
  std::string file_;
};

TEST_F(Checkpoints, List_SaysWhatThereIs) {
  const CommandResult table = Weft({"checkpoint", "ls", out_});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("checkpoint"), HasSubstr("sealed"), HasSubstr("initial"),
                               HasSubstr("periodic"), HasSubstr("last"), Not(HasSubstr("damaged"))));
  fs::create_directories(In("checkpoint-6.abcd-9.partial"));
  const CommandResult result = Weft({"checkpoint", "ls", out_, "-o", "json"});
  EXPECT_EQ(result.code, 0) << result.err;
  const Json list = Json::parse(result.out);
  std::vector<std::string> rows;
  for (const Json& one : list) {
    rows.push_back(absl::StrCat(one["name"].get<std::string>(), " ", one["step"].get<int>(), " ",
                                one["state"].get<std::string>(), " ", one.value("kind", "-"),
                                one["resumable"] == true ? " resumable" : ""));
  }
  EXPECT_THAT(rows, ElementsAre("checkpoint-6.abcd-9.partial 6 partial -", "checkpoint-0 0 complete initial",
                                "checkpoint-4 4 complete periodic resumable",
                                "checkpoint-6 6 complete periodic resumable",
                                "checkpoint 8 complete last resumable"));
  const Json& last = list.back();
  EXPECT_EQ(last["run_id"].get<std::string>().size(), 32u);
  EXPECT_EQ(last["training"].get<std::string>().size(), 16u);
  EXPECT_EQ(last["name_of_run"], "small");
  EXPECT_EQ(last["files"], 4);
  EXPECT_THAT(last["sealed"].get<std::string>(), HasSubstr("+00:00"));
  EXPECT_GT(last["bytes"], fs::file_size(In("checkpoint/stage00.safetensors")));
}

TEST_F(Checkpoints, ListByTheRunFile_LooksIntoOutName) {
  const std::string work = folder_ / "work";
  fs::create_directories(work + "/out");
  fs::copy(out_, work + "/out/small", fs::copy_options::recursive);
  const CommandResult ls = Command::Run(
      {"/bin/sh", "-c", absl::StrCat("cd ", work, " && \"$WEFT_BIN/weft\" checkpoint ls ", file_)}, kSeconds);
  EXPECT_EQ(ls.code, 0) << ls.err;
  EXPECT_THAT(ls.out, HasSubstr("checkpoint-4"));
}

// The memory of a copy is that of the next one, and the one that was kept for the first: a process has its
// state once more, and not twice.
TEST_F(Checkpoints, MemoryOfTheirCopies_IsThatOfOneState) {
  const absl::StatusOr<ScheduledRun> run = ReadScheduledRun(file_);
  ASSERT_TRUE(run.ok()) << run.status();
  const Json summary = Json::parse(ReadWholeFile(In("summary.json")));
  for (const int stage : {0, 1}) {  // each is in the process, and of the rank, of its number
    const int64_t flat = LayOutStage(run->spec, stage).elements * static_cast<int64_t>(sizeof(float));
    EXPECT_EQ(summary["peak_bytes"][stage]["snapshots"], 3 * flat + static_cast<int64_t>(kSnapshotHeadBytes));
  }
}

TEST_F(Checkpoints, Verify_OfWholeOnes_Succeeds) {
  for (const std::string& what : {out_, In("checkpoint"), In("checkpoint-4/")}) {
    const CommandResult result = Weft({"checkpoint", "verify", what});
    EXPECT_EQ(result.code, 0) << what << result.err;
    EXPECT_THAT(result.out, Not(HasSubstr("damaged")));
  }
}

TEST_F(Checkpoints, Verify_OfDamagedOnes_NamesEachFileAndTheOneToGoOnFrom) {
  FlipLast(In("checkpoint/state/stage01.safetensors"));
  fs::remove(In("checkpoint-6/stage00.safetensors"));
  CommandResult result = Weft({"checkpoint", "verify", out_});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.out, AllOf(HasSubstr("checkpoint/state/stage01.safetensors is damaged"),
                                HasSubstr("checkpoint-6/stage00.safetensors is missing")));
  EXPECT_THAT(result.err, AllOf(HasSubstr("2 of 4 checkpoints are damaged"),
                                HasSubstr(absl::StrCat("--resume ", In("checkpoint-4")))));
  // A script verifies one checkpoint alone.
  result = Weft({"checkpoint", "verify", In("checkpoint"), "-o", "json"});
  EXPECT_EQ(result.code, 78);
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["damaged"], true);
  EXPECT_EQ(json["go_on_from"], In("checkpoint-4"));
  EXPECT_EQ(json["checkpoints"][0]["damages"][0]["file"], "state/stage01.safetensors");
  FlipLast(In("checkpoint-4/stage00.safetensors"));
  result = Weft({"checkpoint", "verify", out_});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.err, HasSubstr("there is none to go on from"));
}

TEST_F(Checkpoints, WrongArguments_AreUsageErrorsAndWhatIsNotThereIsNamed) {
  EXPECT_EQ(Weft({"checkpoint"}).code, 2);
  EXPECT_EQ(Weft({"checkpoint", "ls"}).code, 2);
  EXPECT_EQ(Weft({"checkpoint", "remove", out_}).code, 2);
  EXPECT_EQ(Weft({"checkpoint", "ls", out_, "-o", "xml"}).code, 2);
  const CommandResult missing = Weft({"checkpoint", "verify", folder_ / "nothing"});
  EXPECT_EQ(missing.code, 78);
  EXPECT_THAT(missing.err, HasSubstr("no folder"));
  const CommandResult empty = Weft({"checkpoint", "verify", folder_.path()});
  EXPECT_EQ(empty.code, 78);
  EXPECT_THAT(empty.err, HasSubstr("holds no complete checkpoint"));
  EXPECT_EQ(Weft({"checkpoint", "ls", folder_.path()}).code, 0);
}

TEST_F(Checkpoints, ExportedWeights_ReplaceRegularFilesAlone) {
  const std::string pipe = folder_ / "pipe", link = folder_ / "link", file = folder_.Write("file", "former");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink("file", link);
  for (const std::string& other : {pipe, out_}) {
    const CommandResult refused = Weft({"export-weights", out_, other});
    EXPECT_EQ(refused.code, 78) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(other + " is a "));
  }
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_EQ(Weft({"export-weights", out_, link}).code, 0);
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_GT(fs::file_size(file), 100u);
}

// Commands of a user who may not read every file, as root may.
class Unreadable : public Checkpoints {
 protected:
  void SetUp() override {
    if (Limited({"--version"}).code != 0) GTEST_SKIP() << "NOT TESTED: setpriv is not here";
    Checkpoints::SetUp();
  }
  void TearDown() override {
    std::error_code none;
    fs::permissions(out_, fs::perms::owner_all, none);
  }
  static CommandResult Limited(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "weft");
    return Command::Run(HeldToPermissions(arguments), kSeconds);
  }
};

TEST_F(Unreadable, OutputFolder_IsNotTakenForAnEmptyOne) {
  fs::permissions(out_, fs::perms::none);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"generate", out_},
        {"explain", out_},
        {"plan", "--from", out_},
        {"train", file_, "--resume", out_, "--out", folder_ / "rest"},
        {"logs", out_},
        {"export-weights", out_, folder_ / "file"},
        {"diff", out_, folder_.path()},
        {"checkpoint", "ls", out_},
        {"checkpoint", "verify", out_},
        {"generate", out_ + "/in"},
        {"logs", out_ + "/in"},
        {"explain", out_ + "/in"}}) {
    const CommandResult result = Limited(command);
    EXPECT_EQ(result.code, 78) << command[0] << result.out << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("cannot read " + out_), HasSubstr("Permission denied")))
        << command[0];
  }
}

TEST_F(Unreadable, FileOfACheckpoint_IsNotCalledDamaged) {
  fs::permissions(In("checkpoint/stage00.safetensors"), fs::perms::none);
  const CommandResult table = Limited({"checkpoint", "verify", out_});
  EXPECT_EQ(table.code, 78);
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("unreadable"), HasSubstr("Permission denied"), Not(HasSubstr("damaged"))));
  EXPECT_THAT(table.err, AllOf(HasSubstr("1 of 4 checkpoints cannot be read; "),
                               HasSubstr(In("checkpoint-6") + " is whole")));
  const CommandResult alone = Limited({"checkpoint", "verify", In("checkpoint"), "-o", "json"});
  EXPECT_EQ(Json::parse(alone.out)["checkpoints"][0]["state"], "unreadable");
  for (const char* const name : {"checkpoint-4", "checkpoint-6"})
    fs::permissions(In(absl::StrCat(name, "/stage00.safetensors")), fs::perms::none);
  EXPECT_THAT(Limited({"checkpoint", "verify", out_}).err,
              AllOf(HasSubstr("this user may read the files"), Not(HasSubstr("train anew"))));
}

// Says whether a run reads the checkpoint, and to which values.
class Flipped : public Checkpoints {
 protected:
  absl::StatusOr<std::vector<std::vector<float>>> Load(const std::string& folder) const {
    absl::StatusOr<ScheduledRun> run = ReadScheduledRun(file_);
    if (!run.ok()) return run.status();
    const absl::StatusOr<int> step = ResumeStep(folder);
    if (!step.ok()) return step.status();
    run->spec.resume = {folder, *step};
    const std::vector<StateRule> rules = StateRulesOf(*run);
    std::vector<std::vector<float>> all;
    for (int stage = 0; stage < run->spec.stages(); ++stage) {
      const absl::StatusOr<SavedStage> saved = SavedStage::Read(run->spec, rules[stage], stage);
      if (!saved.ok()) return saved.status();
      all.push_back({static_cast<float>(*step), static_cast<float>(saved->optimizer_steps())});
      const int64_t elements = LayOutStage(run->spec, stage).elements;
      all.emplace_back(elements);
      saved->CopyNewest({0, elements}, all.back().data());
      for (const std::string& buffer : StateBuffers(rules[stage], *step)) {
        all.emplace_back(elements);
        saved->CopyBuffer(buffer, {0, elements}, all.back().data());
      }
    }
    return all;
  }
};

TEST_F(Flipped, Every64thByteOfAllFiles_IsRefusedByTheFilesNameOrChangesNothing) {
  const std::string folder = In("checkpoint-6");
  const auto whole = Load(folder);
  ASSERT_TRUE(whole.ok()) << whole.status();
  int refused = 0;
  for (const std::string& file :
       {std::string(kIndexFile), std::string("stage00.safetensors"), std::string("stage01.safetensors"),
        std::string("state/stage00.safetensors"), std::string("state/stage01.safetensors")}) {
    const std::string path = absl::StrCat(folder, "/", file);
    const size_t bytes = fs::file_size(path);
    for (size_t at = 0; at < bytes; at += 64) {
      const int mask = at % 128 == 0 ? 0xff : 1;
      Flip(path, at, mask);
      const auto loaded = Load(folder);
      Flip(path, at, mask);
      if (loaded.ok()) {
        ASSERT_EQ(file, kIndexFile) << "only spaces between words are no damage; byte " << at;
        ASSERT_EQ(*loaded, *whole) << "byte " << at;
        continue;
      }
      ++refused;
      ASSERT_EQ(loaded.status().code(), absl::StatusCode::kDataLoss) << loaded.status();
      ASSERT_THAT(std::string(loaded.status().message()), HasSubstr(file)) << "byte " << at;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_TRUE(Load(folder).ok());
}

// The same through the programs, at some places of each file.
TEST_F(Flipped, CheckpointThatIsNamed_IsRefusedBeforeAnythingIsTouched) {
  const std::string folder = In("checkpoint-6");
  for (const char* file : {kIndexFile, "stage01.safetensors", "state/stage00.safetensors"}) {
    const std::string path = absl::StrCat(folder, "/", file);
    for (const size_t at : {size_t{100}, static_cast<size_t>(fs::file_size(path)) - 3}) {
      Flip(path, at);
      const CommandResult result =
          Weft({"train", file_, "--out", folder_ / "other", "--resume", folder, "--processes", "1"});
      EXPECT_EQ(result.code, 78) << file << " at " << at << result.err;
      EXPECT_THAT(result.err, AllOf(HasSubstr("--resume: "), HasSubstr(path)));
      EXPECT_FALSE(fs::exists(folder_ / "other/steps.jsonl"));
      Flip(path, at);
    }
  }
}

TEST_F(Flipped, OutputFolderThatIsNamed_GoesOnFromTheNewestThatIsWhole) {
  FlipLast(In("checkpoint/stage00.safetensors"));
  FlipLast(In("checkpoint-6/state/stage01.safetensors"));
  const CommandResult result =
      Weft({"train", file_, "--out", folder_ / "rest", "--resume", out_, "--processes", "1"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("--resume leaves out: "), HasSubstr(In("checkpoint/stage00.safetensors")),
                    HasSubstr(In("checkpoint-6/state/stage01.safetensors")),
                    HasSubstr(absl::StrCat("going on from ", In("checkpoint-4")))));
  FlipLast(In("checkpoint/stage00.safetensors"));  // as it was
  EXPECT_TRUE(ReadTensors(folder_ / "rest/checkpoint") == ReadTensors(In("checkpoint"))) << "other bits";
}

TEST_F(Flipped, OutputFolderWhoseNewestIsDamaged_IsEvaluatedAndWritesFromTheOneBefore) {
  FlipLast(In("checkpoint/stage00.safetensors"));
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"eval", file_, "--checkpoint", out_, "-o", "json"},
        std::vector<std::string>{"generate", out_, "--tokens", "2", "-o", "json"}}) {
    const CommandResult result = Weft(command);
    ASSERT_EQ(result.code, 0) << command[0] << result.err;
    EXPECT_EQ(Json::parse(result.out)["checkpoint"], In("checkpoint-6"));
    EXPECT_THAT(result.err, AllOf(HasSubstr("left out: "), HasSubstr(In("checkpoint/stage00.safetensors")),
                                  HasSubstr(absl::StrCat("reading ", In("checkpoint-6")))));
  }
}

TEST_F(Flipped, OutputFolderWithoutAWholeCheckpoint_IsRefusedWithAllCauses) {
  for (const std::string name : {"checkpoint", "checkpoint-4", "checkpoint-6"})
    FlipLast(In(absl::StrCat(name, "/stage00.safetensors")));
  const CommandResult result = Weft({"train", file_, "--out", folder_ / "rest", "--resume", out_});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("is whole"), HasSubstr(In("checkpoint-4")), HasSubstr(In("checkpoint-6"))));
  const CommandResult generated = Weft({"generate", out_});
  EXPECT_EQ(generated.code, 78);
  EXPECT_THAT(generated.err, AllOf(HasSubstr("is whole"), HasSubstr(In("checkpoint-4"))));
}

}  // namespace
}  // namespace weft::checkpoint_test
