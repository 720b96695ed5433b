#include "coordinator/record/output_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_folder.h"

namespace weft::output_folder_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Files = std::map<std::string, std::string>;  // content by name

class OutputFolderTest : public ::testing::Test {
 protected:
  static void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  // Writes the results of a run of so many steps; `mark` tells one run's files from another's.
  static void WriteRun(const std::string& folder, const std::string& mark, int steps,
                       const std::vector<std::string>& checkpoints) {
    for (const std::string& name : checkpoints) {
      const std::string at = folder + "/" + name + "/";
      Write(at + "stage00.safetensors", mark);
      Write(at + "state/stage00.safetensors", mark);
      Write(at + "model.safetensors.index.json",
            "{\"metadata\": {\"version\": \"" + std::to_string(steps) + "\"}}");
    }
    std::string lines;
    for (int t = 0; t < steps; ++t)
      lines += "{\"step\": " + std::to_string(t) + ", \"of\": \"" + mark + "\"}\n";
    Write(folder + "/steps.jsonl", lines);
    Write(folder + "/summary.json", "{\"name\": \"" + mark + "\"}");
  }
  static Files Read(const std::string& folder) {
    Files files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const std::string name = fs::relative(entry.path(), folder).string();
      if (!entry.is_regular_file() || name == "run.json" || name == ".weft.lock") continue;
      std::stringstream text;
      text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      files[name] = text.str();
    }
    return files;
  }
  absl::StatusOr<std::unique_ptr<OutputFolder>> Open(FormerWork former) const {
    return OutputFolder::Open(out_, "OUT", former);
  }
  static RunRecord Record(const std::string& state) {
    RunRecord record;
    record.name = "second";
    record.state = state;
    record.end_step = 9;
    return record;
  }

  const TestFolder parent_;
  const std::string out_ = parent_ / "out";
};

// The swap is a row of moves; a crash may come between any two.
TEST_F(OutputFolderTest, SwapInterruptedAnywhere_CompletedByWhoOpensTheFolder) {
  WriteRun(parent_ / "former", "first", 5, {"checkpoint", "checkpoint-0", "checkpoint-3"});
  WriteRun(parent_ / "made", "second", 9, {"checkpoint", "checkpoint-0"});
  const Files made = Read(parent_ / "made");
  std::vector<std::string> olds, news;
  for (const auto& entry : fs::directory_iterator(parent_ / "former"))
    olds.push_back(entry.path().filename());
  for (const auto& entry : fs::directory_iterator(parent_ / "made")) news.push_back(entry.path().filename());
  const auto prepare = [&](const std::string& made_as) {
    fs::remove_all(out_);
    fs::copy(parent_ / "former", out_, fs::copy_options::recursive);
    fs::copy(parent_ / "made", out_ + "/" + made_as, fs::copy_options::recursive);
    Write(out_ + "/notes.txt", "mine");
  };
  const auto expect_completed = [&](const std::string& moment) {
    SCOPED_TRACE(moment);
    const auto refused = Open(FormerWork::kRefuse);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("OUT holds the run second"));
    Files files = Read(out_);
    EXPECT_EQ(files["notes.txt"], "mine");
    files.erase("notes.txt");
    EXPECT_EQ(files, made);
    EXPECT_FALSE(fs::exists(out_ + "/former") || fs::exists(out_ + "/replacement.whole") ||
                 fs::exists(out_ + "/replacement.placing"));
  };
  for (size_t moved = 0; moved <= olds.size(); ++moved) {
    prepare("replacement.whole");
    fs::create_directory(out_ + "/former");
    for (size_t i = 0; i < moved; ++i) fs::rename(out_ + "/" + olds[i], out_ + "/former/" + olds[i]);
    expect_completed("former moved: " + std::to_string(moved));
  }
  for (size_t moved = 0; moved <= news.size(); ++moved) {
    prepare("replacement.placing");
    fs::create_directory(out_ + "/former");
    for (const std::string& old : olds) fs::rename(out_ + "/" + old, out_ + "/former/" + old);
    for (size_t i = 0; i < moved; ++i)
      fs::rename(out_ + "/replacement.placing/" + news[i], out_ + "/" + news[i]);
    expect_completed("new moved: " + std::to_string(moved));
  }
}

TEST_F(OutputFolderTest, WithinWhatAnotherRunRemoves_IsRefused) {
  {
    const auto folder = Open(FormerWork::kRefuse);
    ASSERT_TRUE(folder.ok()) << folder.status();
    ASSERT_TRUE((*folder)->Begin(Record("running")).ok());
    WriteRun(out_, "second", 9, {"checkpoint"});
    EXPECT_TRUE((*folder)->End(Record("finished")).ok());
  }
  for (const std::string inner :
       {"/checkpoint-4", "/checkpoint/inner", "/replacement/", "/../out/former/a/b"}) {
    for (const FormerWork former : {FormerWork::kRefuse, FormerWork::kReplace}) {
      const auto within = OutputFolder::Open(out_ + inner, "INNER", former);
      EXPECT_THAT(std::string(within.status().message()), HasSubstr("INNER is within")) << inner;
    }
  }
  EXPECT_FALSE(fs::exists(out_ + "/checkpoint-4") || fs::exists(out_ + "/checkpoint/inner"));
  EXPECT_TRUE(OutputFolder::Open(out_ + "/second", "SECOND", FormerWork::kRefuse).ok())
      << "the run leaves it";
  EXPECT_TRUE(OutputFolder::Open(parent_ / "checkpoint-4", "BESIDE", FormerWork::kRefuse).ok()) << "no run's";
}

TEST_F(OutputFolderTest, ReplacementWithoutACheckpoint_FormerRunStays) {
  WriteRun(out_, "first", 5, {"checkpoint"});
  const Files before = Read(out_);
  for (const std::string state : {"failed", "stopped"}) {
    auto folder = Open(FormerWork::kReplace);
    ASSERT_TRUE(folder.ok()) << folder.status();
    ASSERT_TRUE((*folder)->Begin(Record("running")).ok());
    EXPECT_EQ((*folder)->live(), out_ + "/replacement");
    WriteRun((*folder)->live(), "second", 4, {"checkpoint-0", "checkpoint-4.a1b2.partial"});
    const auto message = (*folder)->End(Record(state));
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_THAT(*message, HasSubstr("OUT still holds the run first"));
    EXPECT_EQ(Read(out_), before);
  }
}

TEST_F(OutputFolderTest, ReplacementStoppedWithACheckpoint_TakesThePlace) {
  WriteRun(out_, "first", 5, {"checkpoint", "checkpoint-3"});
  auto folder = Open(FormerWork::kReplace);
  ASSERT_TRUE(folder.ok() && (*folder)->Begin(Record("running")).ok());
  WriteRun((*folder)->live(), "second", 4, {"checkpoint-4"});
  const Files made = Read((*folder)->live());
  ASSERT_TRUE((*folder)->End(Record("stopped")).ok());
  EXPECT_EQ(Read(out_), made);
}

TEST_F(OutputFolderTest, KilledReplacement_ResumeKeepsItAndOverwriteDoesNot) {
  for (const bool resumed : {true, false}) {
    fs::remove_all(out_);
    WriteRun(out_, "first", 5, {"checkpoint"});
    WriteRun(out_ + "/replacement", "second", 4, {"checkpoint-4"});
    const Files former = Read(out_), second = Read(out_ + "/replacement");
    const auto refused = Open(FormerWork::kRefuse);
    EXPECT_THAT(std::string(refused.status().message()),
                AllOf(HasSubstr("the run first"), HasSubstr("in replacement the run second")));
    EXPECT_EQ(Read(out_), former);
    auto folder = Open(resumed ? FormerWork::kContinue : FormerWork::kReplace);
    ASSERT_TRUE(folder.ok()) << folder.status();
    if (resumed) {
      EXPECT_EQ(Read(out_), former) << "nobody has said yet that the run can go on from it";
      EXPECT_EQ((*folder)->KilledReplacement(), out_ + "/replacement");
      std::string checkpoint = out_ + "/replacement/checkpoint-4";
      ASSERT_TRUE((*folder)->PlaceReplacement(&checkpoint).ok());
      EXPECT_EQ(fs::canonical(checkpoint), fs::canonical(out_ + "/checkpoint-4"));
      EXPECT_EQ(Read(out_), second);
      ASSERT_TRUE((*folder)->Begin(Record("running")).ok());
      EXPECT_EQ(Read(out_), second);
    } else {
      ASSERT_TRUE((*folder)->Begin(Record("running")).ok());
      EXPECT_TRUE(Read(out_ + "/replacement").empty());
    }
  }
}

// The checkpoint that is named would be removed with its run.
TEST_F(OutputFolderTest, KilledReplacement_CheckpointOfTheFormerRunNamed_RefusedAndUntouched) {
  WriteRun(out_, "first", 5, {"checkpoint-3"});
  WriteRun(out_ + "/replacement", "second", 4, {"checkpoint-4"});
  const Files before = Read(out_);
  EXPECT_EQ(FormerWorkFor(out_, out_, false), FormerWork::kContinue);
  EXPECT_EQ(FormerWorkFor(out_ + "/replacement/checkpoint-4", out_, false), FormerWork::kContinue);
  EXPECT_EQ(FormerWorkFor(parent_ / "other", out_, false), FormerWork::kRefuse);
  const FormerWork named = FormerWorkFor(out_ + "/checkpoint-3", out_, /*overwrite=*/true);
  EXPECT_EQ(named, FormerWork::kContinueNamed);
  for (const absl::Status& refused : {OutputFolder::CheckFree(out_, "OUT", named), Open(named).status()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("the run first"), HasSubstr("in replacement the run second"),
                      HasSubstr("move OUT/replacement")));
  }
  EXPECT_EQ(Read(out_), before);
  // Without a checkpoint it is nothing to go on from, then or later.
  fs::remove_all(out_ + "/replacement/checkpoint-4");
  auto folder = Open(named);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)->Begin(Record("running")).ok());
  EXPECT_FALSE(fs::exists(out_ + "/replacement"));
  EXPECT_TRUE(fs::exists(out_ + "/checkpoint-3/stage00.safetensors"));
}

// A run was killed before its first line of steps.jsonl was on the disk; its checkpoint was.
TEST_F(OutputFolderTest, ContinuedWithoutSteps_CheckpointStays) {
  fs::create_directories(out_);
  auto folder = Open(FormerWork::kContinue);
  ASSERT_TRUE(folder.ok()) << folder.status();
  WriteRun(out_, "first", 3, {"checkpoint-3"});  // it gets its name only now
  const Files before = Read(out_);
  ASSERT_TRUE((*folder)->Begin(Record("running")).ok());
  EXPECT_EQ(Read(out_), before);
}

TEST_F(OutputFolderTest, TakenBack_LeavesTheFolderAsItWas) {
  for (const FormerWork former : {FormerWork::kContinue, FormerWork::kReplace}) {
    WriteRun(out_, "first", 5, {"checkpoint"});
    Write(out_ + "/run.json", "{\"name\": \"first\", \"state\": \"finished\"}\n");
    const Files before = Read(out_);
    auto folder = Open(former);
    ASSERT_TRUE(folder.ok() && (*folder)->Begin(Record("running")).ok());
    ASSERT_TRUE((*folder)->TakeBack(Record("failed")).ok());
    EXPECT_EQ(Read(out_), before);
    EXPECT_EQ(ReadRecord(out_).name, "first");
    EXPECT_EQ(ReadRecord(out_).state, "finished");
  }
  fs::remove_all(out_);
  auto folder = Open(FormerWork::kRefuse);
  ASSERT_TRUE(folder.ok() && (*folder)->Begin(Record("running")).ok());
  ASSERT_TRUE((*folder)->TakeBack(Record("failed")).ok());
  folder->reset();
  EXPECT_FALSE(fs::exists(out_));
}

// The runs of a long queue are taken up without a write to the disk for each.
TEST_F(OutputFolderTest, ReopenedAtTheSameStep_RunJsonIsNotWrittenAnew) {
  RunRecord record = Record("running");
  record.run_id = "abc";
  { ASSERT_TRUE((*Open(FormerWork::kRefuse))->Begin(record).ok()); }
  const auto file = [&] {
    struct stat info {};
    EXPECT_EQ(stat((out_ + "/run.json").c_str(), &info), 0);
    return info.st_ino;
  };
  const ino_t before = file();
  { ASSERT_TRUE(OutputFolder::Reopen(out_, out_, record).ok()); }
  EXPECT_EQ(file(), before);
  ++record.steps_done;
  { ASSERT_TRUE(OutputFolder::Reopen(out_, out_, record).ok()); }
  EXPECT_NE(file(), before);
}

TEST_F(OutputFolderTest, ReopenedOnAFullDisk_GoesOnWithoutTheNoteInRunJson) {
  RunRecord record = Record("running");
  record.run_id = "abc";
  { ASSERT_TRUE((*Open(FormerWork::kRefuse))->Begin(record).ok()); }
  // Nothing can be written under the name that a file has before its own.
  ASSERT_TRUE(fs::create_directory(absl::StrCat(out_, "/run.json.", getpid(), "-", gettid(), ".partial")));
  const int before = record.steps_done++;
  const auto folder = OutputFolder::Reopen(out_, out_, record);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(ReadRecord(out_).steps_done, before);
}

TEST_F(OutputFolderTest, RunThatHasBegun_KeepsRoomOnlyWhenItIsToldTo) {
  auto folder = Open(FormerWork::kRefuse);
  ASSERT_TRUE(folder.ok() && (*folder)->Begin(Record("running")).ok());
  const auto kept = [&] { return fs::file_size(out_ + "/.weft.lock"); };
  EXPECT_LE(kept(), 4096u);
  (*folder)->KeepReserve();
  EXPECT_GT(kept(), 100'000u);
  (*folder)->ReleaseReserve();
  EXPECT_LE(kept(), 4096u);
}

TEST_F(OutputFolderTest, Opened_NoOtherOpensItUntilItEnds) {
  {
    auto folder = Open(FormerWork::kRefuse);
    ASSERT_TRUE(folder.ok() && (*folder)->Begin(Record("running")).ok());
    const auto second = Open(FormerWork::kReplace);
    EXPECT_TRUE(absl::IsResourceExhausted(second.status()));
    EXPECT_EQ(second.status().message().find('\0'), absl::string_view::npos);
    EXPECT_TRUE(OutputInUse(out_));
    ASSERT_TRUE((*folder)->End(Record("failed")).ok());
    EXPECT_THAT(std::string(second.status().message()), AllOf(HasSubstr("another run is writing in OUT"),
                                                              HasSubstr("pid " + std::to_string(getpid()))));
  }
  EXPECT_FALSE(fs::exists(out_)) << "it made the folder and no step";
  EXPECT_FALSE(OutputInUse(out_));
  EXPECT_TRUE(Open(FormerWork::kRefuse).ok());
}

// A living run's files look like a killed one's, so its lock has the first word.
TEST_F(OutputFolderTest, CheckedWhileARunWritesInIt_OwnedWhateverIsToBecomeOfItsWork) {
  auto folder = Open(FormerWork::kRefuse);
  ASSERT_TRUE(folder.ok() && (*folder)->Begin(Record("running")).ok());
  WriteRun(out_, "second", 4, {"checkpoint-0"});
  for (const FormerWork former : {FormerWork::kRefuse, FormerWork::kReplace, FormerWork::kContinue}) {
    const absl::Status checked = OutputFolder::CheckFree(out_, "OUT", former);
    EXPECT_TRUE(absl::IsResourceExhausted(checked)) << checked;
    EXPECT_THAT(std::string(checked.message()), HasSubstr("pid " + std::to_string(getpid())));
  }
  folder->reset();
  EXPECT_TRUE(absl::IsInvalidArgument(OutputFolder::CheckFree(out_, "OUT", FormerWork::kRefuse)));
  EXPECT_TRUE(OutputFolder::CheckFree(out_, "OUT", FormerWork::kReplace).ok());
}

TEST_F(OutputFolderTest, StepsAndInitialWeightsOnly_ToldAsWithoutACheckpoint) {
  WriteRun(out_, "first", 0, {"checkpoint-0"});
  Write(out_ + "/steps.jsonl", "{\"step\": 3}\n{\"step\": 4, \"validation_loss\": 0.5}\n");
  EXPECT_THAT(DescribeWork(out_), AllOf(HasSubstr("after 4 steps"), HasSubstr("without a checkpoint")));
}

TEST_F(OutputFolderTest, OnlyInitialWeightsAndNoStep_IsNoWork) {
  WriteRun(out_, "first", 0, {"checkpoint-0", "checkpoint-2.a1b2.partial"});
  fs::remove(out_ + "/summary.json");
  Write(out_ + "/run.json", "{\"name\": \"first\", \"state\": \"running\"}");
  // So a submission that a coordinator lost before it was acknowledged does not refuse the next try.
  Write(out_ + "/log.jsonl", "{\"text\": \"submitted\"}\n");
  Write(out_ + "/log.1.jsonl", "{\"text\": \"before\"}\n");
  EXPECT_EQ(DescribeWork(out_), "");
  auto folder = Open(FormerWork::kRefuse);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)->Begin(Record("running")).ok());
  EXPECT_TRUE(Read(out_).empty());
}

TEST_F(OutputFolderTest, CheckpointThatIsALink_NeverFollowed) {
  WriteRun(parent_ / "elsewhere", "other", 3, {"checkpoint"});
  const Files elsewhere = Read(parent_ / "elsewhere");
  WriteRun(out_, "first", 5, {});
  fs::create_directory_symlink(parent_ / "elsewhere/checkpoint", out_ + "/checkpoint");
  auto folder = Open(FormerWork::kReplace);
  ASSERT_TRUE(folder.ok() && (*folder)->Begin(Record("running")).ok());
  WriteRun((*folder)->live(), "second", 4, {"checkpoint"});
  ASSERT_TRUE((*folder)->End(Record("finished")).ok());
  EXPECT_FALSE(fs::is_symlink(out_ + "/checkpoint"));
  EXPECT_EQ(Read(parent_ / "elsewhere"), elsewhere);
}

TEST_F(OutputFolderTest, RemovedOrTakenByAnother_Told) {
  auto folder = Open(FormerWork::kRefuse);
  ASSERT_TRUE(folder.ok() && (*folder)->Begin(Record("running")).ok());
  EXPECT_TRUE((*folder)->StillThere().ok());
  fs::remove_all(out_);
  EXPECT_TRUE(absl::IsUnavailable((*folder)->StillThere()));
  const auto other = Open(FormerWork::kRefuse);
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(absl::IsAborted((*folder)->StillThere()));
  EXPECT_FALSE((*folder)->End(Record("finished")).ok());
}

}  // namespace
}  // namespace weft::output_folder_test
