// An output folder and the trainings that would use it: what one run has left, no other takes away unasked,
// and none that fails.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/checkpoint_tensors.h"
#include "tests/process/child_processes.h"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft::output_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
using Files = std::map<std::string, std::string>;  // content by name

constexpr int kSeconds = 120;
// A model for runs of many steps, with little to compute in each.
const char* const kQuick = "{gpt: {layers: 2, width: 16, heads: 2, context: 8}}";
const char* const kLong =
    "{steps: 1000000, batch: 16, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}";

Files ReadFiles(const std::string& folder) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), folder).string()] = ReadWholeFile(entry.path());
  }
  return files;
}

std::vector<int> Steps(const std::string& folder) {
  std::ifstream file(folder + "/steps.jsonl");
  std::vector<int> steps;
  // The last line may still be on its way.
  for (std::string line; std::getline(file, line) && !file.eof();) steps.push_back(Json::parse(line)["step"]);
  return steps;
}

bool WaitFor(const std::function<bool()>& condition) {
  for (int i = 0; i < kSeconds * 20; ++i) {
    if (condition()) return true;
    usleep(50'000);
  }
  return false;
}

class Output : public ::testing::Test {
 protected:
  CommandResult Train(const std::vector<std::string>& flags,
                      const std::map<std::string, std::string>& changes = {}) const {
    std::vector<std::string> words = {"weft", "train", WriteSmallRun(folder_, changes), "--out", out_};
    words.insert(words.end(), flags.begin(), flags.end());
    if (std::find(flags.begin(), flags.end(), "--reference") == flags.end())
      words.insert(words.end(), {"--processes", "2"});
    return Command::Run(words, kSeconds);
  }
  // A training that goes on until it is stopped, and has made a step.
  std::unique_ptr<Command> Begin(const std::vector<std::string>& flags, const std::string& live,
                                 const std::string& restarts = "3") const {
    const std::string file = WriteSmallRun(folder_, {{"train", kLong}, {"restarts", restarts}});
    std::vector<std::string> words = {"weft", "train", file, "--out", out_, "--processes", "2"};
    words.insert(words.end(), flags.begin(), flags.end());
    auto train = std::make_unique<Command>(words);
    EXPECT_TRUE(WaitFor([&] { return !ReadWholeFile(live + "/steps.jsonl").empty(); }));
    return train;
  }

  const TestFolder folder_;
  const std::string out_ = folder_ / "out";
};

TEST_F(Output, OfAFinishedRun_RefusedWithWhatIsInItAndUntouched) {
  ASSERT_EQ(Train({}).code, 0);
  EXPECT_FALSE(fs::exists(out_ + "/.weft.lock"));
  const Files before = ReadFiles(out_);
  for (const std::vector<std::string>& flags : {std::vector<std::string>{}, {"--reference"}}) {
    const CommandResult again = Train(flags);
    EXPECT_EQ(again.code, 78);
    EXPECT_THAT(again.err,
                AllOf(HasSubstr(out_ + " holds the run small, finished"), HasSubstr("after 3 of 3 steps"),
                      HasSubstr("with checkpoint (step 3)"),
                      HasSubstr("--resume " + out_ + " goes on from it if its file has more steps, "),
                      HasSubstr("--overwrite"), HasSubstr("--out DIR")));
    EXPECT_EQ(ReadFiles(out_), before);
  }
  // A checkpoint from elsewhere takes the place of nothing either.
  const CommandResult other = Command::Run(
      {"weft", "train", WriteSmallRun(folder_), "--reference", "--until", "1", "--out", folder_ / "other"});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.out, HasSubstr(" --reference --resume "));
  EXPECT_THAT(ReadWholeFile(folder_ / "other/loss.svg"), HasSubstr("small: loss of the plain loop"));
  EXPECT_EQ(Train({"--resume", folder_ / "other/checkpoint"}).code, 78);
  EXPECT_EQ(ReadFiles(out_), before);
}

TEST_F(Output, Overwritten_NewResultsInThePlacesOfAllFormerOnes) {
  const CommandResult part = Train({"--until", "2"});
  ASSERT_EQ(part.code, 0);
  EXPECT_THAT(part.out, HasSubstr(" --out " + out_ + " --resume " + out_ + "` goes on with step 2\n"));
  EXPECT_THAT(Train({}).err, HasSubstr("--resume " + out_ + " goes on from it, "));
  ASSERT_EQ(Train({"--resume", out_ + "/checkpoint"}).code, 0);
  ASSERT_TRUE(fs::exists(out_ + "/checkpoint-2"));
  std::ofstream(out_ + "/notes.txt") << "mine";
  std::ofstream(out_ + "/checkpoint/notes.txt") << "mine too";
  const CommandResult again = Train({"--overwrite"}, {{"stages", "2"}});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, AllOf(HasSubstr(out_ + "/checkpoint "), Not(HasSubstr("replacement"))));
  EXPECT_EQ(Json::parse(ReadWholeFile(out_ + "/summary.json"))["stages"], 2);
  EXPECT_THAT(Steps(out_), ElementsAre(0, 1, 2));
  EXPECT_EQ(ReadWholeFile(out_ + "/notes.txt"), "mine");
  EXPECT_EQ(ReadWholeFile(out_ + "/checkpoint/notes.txt"), "mine too");
  for (const char* gone : {"/checkpoint-2", "/replacement", "/replacement.whole", "/replacement.placing",
                           "/former", "/.weft.lock", "/checkpoint/stage03.safetensors"}) {
    EXPECT_FALSE(fs::exists(out_ + gone)) << gone;
  }
}

TEST_F(Output, OverwritingRunThatFails_FormerRunWhole) {
  ASSERT_EQ(Train({}).code, 0);
  const Files before = ReadFiles(out_);
  {
    const auto train = Begin({"--overwrite"}, out_ + "/replacement", /*restarts=*/"0");
    const std::vector<pid_t> workers = Children(train->pid());
    ASSERT_EQ(workers.size(), 2u);
    kill(workers[0], SIGKILL);
    const CommandResult failed = train->Wait(60);
    EXPECT_EQ(failed.code, 1);
    EXPECT_THAT(failed.err, HasSubstr(out_ + " still holds the run small, finished"));
  }
  EXPECT_EQ(ReadFiles(out_), before);
  { const auto train = Begin({"--overwrite"}, out_ + "/replacement"); }  // SIGKILL
  Files after = ReadFiles(out_);
  for (const auto& [name, content] : before) EXPECT_EQ(after[name], content) << name;
  EXPECT_EQ(Train({}).code, 78);
  EXPECT_EQ(Train({"--overwrite"}).code, 0);
  EXPECT_FALSE(fs::exists(out_ + "/replacement"));
}

TEST_F(Output, KilledReplacement_TakesThePlaceOnlyForARunThatCanGoOnFromIt) {
  ASSERT_EQ(Train({"--until", "2"}).code, 0);
  const CommandResult other = Command::Run(
      {"weft", "train", WriteSmallRun(folder_), "--reference", "--until", "1", "--out", folder_ / "other"});
  ASSERT_EQ(other.code, 0) << other.err;
  fs::rename(folder_ / "other", out_ + "/replacement");
  const Files before = ReadFiles(out_);
  const CommandResult named = Train({"--resume", out_ + "/checkpoint"});
  EXPECT_EQ(named.code, 78);
  EXPECT_THAT(named.err, AllOf(HasSubstr("after 2 of 2 steps"), HasSubstr("in replacement the run small"),
                               HasSubstr("move " + out_ + "/replacement to another place")));
  const CommandResult unfit =
      Train({"--resume", out_},
            {{"train", "{steps: 3, batch: 16, microbatches: 4, seed: 1, optimizer: {sgd: {lr: 1.0e-3}}}"}});
  EXPECT_EQ(unfit.code, 78);
  EXPECT_THAT(unfit.err, AllOf(HasSubstr("--resume: "), HasSubstr("was to replace the run in " + out_)));
  EXPECT_EQ(ReadFiles(out_), before);
  const CommandResult resumed = Train({"--resume", out_});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("it takes its place now"));
  EXPECT_THAT(Steps(out_), ElementsAre(0, 1, 2));
  EXPECT_TRUE(fs::exists(out_ + "/checkpoint-1"));
  EXPECT_FALSE(fs::exists(out_ + "/checkpoint-2") || fs::exists(out_ + "/replacement"));
}

// The run was killed when the checkpoint had its index and not yet its name.
TEST_F(Output, CheckpointThatLacksOnlyItsName_IsGoneOnFrom) {
  ASSERT_EQ(Train({"--until", "2"}).code, 0);
  fs::rename(out_ + "/checkpoint", out_ + "/checkpoint-2.0123abcd-1.partial");
  const CommandResult resumed = Train({"--resume", out_});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(Steps(out_), ElementsAre(0, 1, 2));
  EXPECT_TRUE(fs::exists(out_ + "/checkpoint-2/model.safetensors.index.json"));
}

TEST_F(Output, OfAKilledRun_ToldAsSuchAndKept) {
  { const auto train = Begin({}, out_); }  // SIGKILL
  const CommandResult again = Train({});
  EXPECT_EQ(again.code, 78);
  EXPECT_THAT(again.err, AllOf(HasSubstr("ended without a word"), HasSubstr("of 1000000 steps"),
                               HasSubstr("without a checkpoint")));
  EXPECT_FALSE(Steps(out_).empty());
}

TEST_F(Output, OfALivingRun_SecondTrainingKeptOutWhateverItSays) {
  const auto train = Begin({}, out_);
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--overwrite"}, {"--resume", out_ + "/checkpoint"}, {"--reference"}}) {
    const CommandResult second = Train(flags);
    EXPECT_EQ(second.code, 75) << second.err;
    EXPECT_THAT(second.err, AllOf(HasSubstr("another run is writing in " + out_),
                                  HasSubstr("pid " + std::to_string(train->pid()))));
  }
  EXPECT_EQ(kill(train->pid(), 0), 0);
  EXPECT_FALSE(Steps(out_).empty());
}

TEST_F(Output, DataWrittenToDuringTheRun_TheRunFailsAndNamesTheFile) {
  const auto train = Begin({}, out_);
  const std::string text = ReadWholeFile(folder_ / "text.txt");
  std::fstream(folder_ / "text.txt", std::ios::in | std::ios::out) << std::string(text.size(), 'x');
  const CommandResult r = train->Wait(kSeconds);
  EXPECT_EQ(r.code, 1) << r.err;
  EXPECT_THAT(r.err, AllOf(HasSubstr("text.txt was written to"), HasSubstr("checkpoint")));
}

TEST_F(Output, OfARunThatMadeNoStep_FreeForTheNext) {
  const CommandResult refused =
      Train({}, {{"model", "{gpt: {layers: 4, width: 32, heads: 2, context: 30000}}"}});
  EXPECT_NE(refused.code, 0) << "the text is too short for one sample";
  EXPECT_FALSE(fs::exists(out_)) << "it made the folder";
  EXPECT_EQ(Train({}).code, 0);
}

TEST_F(Output, ResumedInPlace_OneCurveOfAllSteps) {
  ASSERT_EQ(Train({"--until", "2"}).code, 0);
  ASSERT_EQ(Train({"--resume", out_ + "/checkpoint"}).code, 0);
  EXPECT_THAT(Steps(out_), ElementsAre(0, 1, 2));
  const Json summary = Json::parse(ReadWholeFile(out_ + "/summary.json"));
  EXPECT_EQ(summary["first_step"], 2);
  EXPECT_EQ(summary["steps"], 1);
  // Steps after the resumed one are made again; half a line, as a crash leaves it, goes.
  std::ofstream(out_ + "/steps.jsonl", std::ios::app) << "{\"step\": 3, \"lo";
  ASSERT_EQ(Train({"--reference", "--resume", out_ + "/checkpoint-2"}).code, 0);
  EXPECT_THAT(Steps(out_), ElementsAre(0, 1, 2));
}

// Files that whole or killed runs of another width left must not be taken for files of this run, neither
// while its processes save nor after its last step.
TEST_F(Output, StaleFilesOfAnotherWidth_TheRunEndsWellWithItsOwnCheckpoint) {
  const std::map<std::string, std::string> wide = {
      {"model", "{gpt: {layers: 4, width: 64, heads: 2, context: 32}}"}};
  ASSERT_EQ(Train({"--reference"}, wide).code, 0);
  const std::string stale = folder_ / "stale";
  fs::rename(out_, stale);
  ASSERT_EQ(Train({"--reference"}).code, 0);
  const CheckpointTensors own = ReadTensors(out_ + "/checkpoint");
  for (const std::string schedule : {"{1f1b: {}}", "{fsdp: {}}"}) {
    SCOPED_TRACE(schedule);
    fs::remove_all(out_);
    for (const std::string name : {"/checkpoint", "/checkpoint-2", "/checkpoint.0123abcd-7.partial",
                                   "/replacement/checkpoint", "/replacement/checkpoint.0123abcd-7.partial"}) {
      fs::create_directories(fs::path(out_ + name).parent_path());
      fs::copy(stale + "/checkpoint", out_ + name, fs::copy_options::recursive);
    }
    EXPECT_EQ(Train({}, {{"schedule", schedule}}).code, 78) << "it is somebody's work";
    const CommandResult run = Train({"--overwrite"}, {{"schedule", schedule}});
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_TRUE(ReadTensors(out_ + "/checkpoint") == own) << "other bits";
    EXPECT_EQ(Command::Run({"weft", "eval", folder_ / "run.yaml", "--checkpoint", out_ + "/checkpoint"}).code,
              0);
    for (const char* gone : {"/checkpoint-2", "/checkpoint.0123abcd-7.partial", "/replacement"})
      EXPECT_FALSE(fs::exists(out_ + gone)) << gone;
  }
}

// The run cannot end before the folder is gone: one of its workers waits until then.
TEST_F(Output, RemovedDuringTheRun_EndsWithASentenceAndExitOne) {
  const std::string file = WriteSmallRun(
      folder_,
      {{"model", kQuick},
       {"train", "{steps: 2000, batch: 4, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}"}});
  Command train({"weft", "train", file, "--out", out_, "--processes", "1"});
  ASSERT_TRUE(WaitFor([&] { return !ReadWholeFile(out_ + "/steps.jsonl").empty(); }));
  const std::vector<pid_t> workers = Children(train.pid());
  ASSERT_EQ(workers.size(), 1u);
  kill(workers[0], SIGSTOP);
  ASSERT_LT(Steps(out_).size(), 2000u);
  fs::remove_all(out_);
  kill(workers[0], SIGCONT);
  const CommandResult result = train.Wait(kSeconds);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("the folder " + out_ + " was removed while the run went on"));
  EXPECT_THAT(result.out, Not(HasSubstr("Look at")));
  // Records that were in memory or in an open file are there again.
  EXPECT_EQ(Steps(out_).size(), 2000u);
  EXPECT_EQ(Json::parse(ReadWholeFile(out_ + "/summary.json"))["steps"], 2000);
}

// The data are checked before the folder is.
TEST_F(Output, BadDataUnderTheSameName_ExitSeventyEightBeforeAnythingIsTouched) {
  const std::string head =
      "name: small\nmodel: {gpt: {layers: 4, width: 32, heads: 2, context: 32, vocabulary: 4000}}\n";
  const std::string tail =
      "train: {steps: 3, batch: 16, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}\nstages: 4\n"
      "schedule: 1f1b\n";
  std::string tokens(4000, '\0');
  folder_.Write("good.bin", tokens);
  tokens[2 * 1234] = static_cast<char>(4000 & 255);
  tokens[2 * 1234 + 1] = static_cast<char>(4000 >> 8);
  folder_.Write("bad.bin", tokens);
  folder_.Write("odd.bin", tokens + "x");
  const auto file = [&](const std::string& data) {
    return folder_.Write("run.yaml", head + "data:\n  text: {path: " + data + ", tokens: uint16}\n" + tail);
  };
  ASSERT_EQ(Command::Run({"weft", "train", file("good.bin"), "--reference", "--out", out_}).code, 0);
  const Files before = ReadFiles(out_);
  const std::string run = file("bad.bin");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"train", run, "--overwrite", "--out", out_},
        {"train", run, "--overwrite", "--reference", "--out", out_},
        {"train", run, "--out", folder_ / "new"},
        {"eval", run, "--checkpoint", out_ + "/checkpoint"},
        {"profile", run},
        {"compare", run, "--measure", "--schedules", "1f1b"}}) {
    std::vector<std::string> words = {"weft"};
    words.insert(words.end(), command.begin(), command.end());
    const CommandResult result = Command::Run(words);
    EXPECT_EQ(result.code, 78) << command[0];
    EXPECT_THAT(result.err, HasSubstr(run + ":4: data.text.path: token 1234 of " + (folder_ / "bad.bin") +
                                      " is 4000; model.gpt.vocabulary is 4000, so tokens go up to 3999"));
  }
  EXPECT_THAT(Command::Run({"weft", "train", file("odd.bin"), "--overwrite", "--out", out_}).err,
              HasSubstr(run + ":4: data.text.path: " + (folder_ / "odd.bin") + " has 4001 bytes"));
  EXPECT_EQ(ReadFiles(out_), before);
  EXPECT_FALSE(fs::exists(folder_ / "new"));
  // A pipe is refused, not waited for.
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(Command::Run({"weft", "train", folder_ / "pipe"}).code, 78);
  EXPECT_THAT(Command::Run({"weft", "train", file("pipe"), "--out", folder_ / "new"}).err,
              HasSubstr(":4: data.text.path: " + (folder_ / "pipe") + " is not a regular file"));
}

TEST_F(Output, TextShorterThanABatch_Said) {
  folder_.Write("short.txt", std::string(33, 'a'));
  const CommandResult result = Train({"--reference"}, {{"data", "{text: {path: short.txt}}"}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("train.batch: a batch has 16 samples, the data have only 1"));
}

// A disk of its own, as only root can make one.
class FullDisk : public Output {
 protected:
  ~FullDisk() override {
    if (mounted_) umount2(disk_.c_str(), MNT_DETACH);
  }
  bool Mount(const std::string& size) {
    fs::create_directories(disk_);
    mounted_ = mount("none", disk_.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
    return mounted_;
  }
  // Leaves that many bytes.
  void Fill(int64_t remaining) const {
    const auto space = fs::space(disk_);
    const int file = open((disk_ + "/filler").c_str(), O_WRONLY | O_CREAT, 0600);
    EXPECT_EQ(posix_fallocate(file, 0, static_cast<off_t>(space.available) - remaining), 0);
    close(file);
  }

  const std::string disk_ = folder_ / "disk";
  bool mounted_ = false;
};

// It ends only when it is told to, so that the disk is full while steps are made.
TEST_F(FullDisk, WhileStepsAreMade_TrainingGoesOnAndStepsAreWrittenLater) {
  if (!Mount("8m")) GTEST_SKIP() << "NOT RUN: only root can mount a small disk";
  const std::string file = WriteSmallRun(folder_, {{"train", kLong}});
  Command train({"weft", "train", file, "--out", disk_ + "/out", "--processes", "1"});
  ASSERT_TRUE(WaitFor([&] { return !ReadWholeFile(disk_ + "/out/steps.jsonl").empty(); }));
  Fill(0);
  ASSERT_TRUE(train.WaitFor("the training goes on, and the steps are kept", kSeconds));
  const size_t then = Steps(disk_ + "/out").size();
  fs::remove(disk_ + "/filler");
  ASSERT_TRUE(WaitFor([&] { return Steps(disk_ + "/out").size() > then; }));
  train.Signal(SIGINT);
  const CommandResult result = train.Wait(kSeconds);
  EXPECT_EQ(result.code, 130) << result.err;
  const std::vector<int> steps = Steps(disk_ + "/out");
  std::vector<int> all(steps.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(steps, all) << "no step is missing";
}

TEST_F(FullDisk, AtTheEnd_CheckpointAndSummaryThereAndTheTraceIsSaid) {
  if (!Mount("3m")) GTEST_SKIP() << "NOT RUN: only root can mount a small disk";
  // 600 steps of 36 jobs make a trace that has no room.
  const std::string file = WriteSmallRun(
      folder_,
      {{"model", kQuick},
       {"train", "{steps: 600, batch: 4, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}"}});
  const CommandResult result =
      Command::Run({"weft", "train", file, "--out", disk_ + "/out", "--processes", "1"}, kSeconds);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("cannot write " + disk_ + "/out/trace.json"),
                                HasSubstr("the checkpoint and summary.json are whole")));
  EXPECT_EQ(Json::parse(ReadWholeFile(disk_ + "/out/summary.json"))["steps"], 600);
  EXPECT_TRUE(fs::exists(disk_ + "/out/checkpoint/model.safetensors.index.json"));
}

}  // namespace
}  // namespace weft::output_test
