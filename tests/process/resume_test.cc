// Trainings that stop at a step and go on from their checkpoints, with the real programs: the bits are those
// of the undisturbed training, whatever placement, number of processes or plain loop makes either part.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/child_processes.h"
#include "tests/process/command.h"
#include "tests/process/run_files.h"
#include "tests/process/standing_workers.h"

namespace weft::resume_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kAdamW[] = "{adamw: {lr: 3.0e-3, weight_decay: 0.1}}";
constexpr char kMomentum[] = "{sgd: {lr: 0.05, momentum: 0.9, weight_decay: 0.01}}";
constexpr int kSteps = 8;

using Files = std::map<std::string, std::string>;  // content by name

Files ReadFiles(const std::string& folder) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), folder).string()] = ReadWholeFile(entry.path());
  }
  // The run that made it, and the time, are not compared.
  for (auto& [name, content] : files) {
    if (name != "model.safetensors.index.json") continue;
    Json index = Json::parse(content);
    for (const char* key : {"run_id", "attempt", "periodic", "sealed_ms", "crc32"})
      index["metadata"].erase(key);
    content = index.dump(1);
  }
  return files;
}

// The losses by step. The last line may still be on its way.
std::map<int, double> ReadLosses(const std::string& folder) {
  std::map<int, double> losses;
  std::ifstream file(folder + "/steps.jsonl");
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const Json step = Json::parse(line);
    losses[step["step"]] = step["loss"];
  }
  return losses;
}

class Resume : public OnStandingWorkers {
 protected:
  void SetUp() override { WriteIdx(folder_, 240, 8); }

  // 4 stages.
  std::string RunText(const std::string& schedule, const std::string& optimizer = kAdamW,
                      int microbatches = 4, int steps = kSteps) const {
    return absl::StrCat(
        "name: again\nmodel: {mlp: {layers: 4, width: 24, inputs: 64, classes: 10, dropout: 0.1}}\n",
        "data: {idx: {images: ", folder_ / "images.idx", ", labels: ", folder_ / "labels.idx", "}}\n",
        "train: {steps: ", steps, ", batch: 12, microbatches: ", microbatches,
        ", seed: 2, optimizer: ", optimizer, "}\nstages: 4\nschedule: ", schedule, "\n");
  }
  CommandResult Run(const std::string& text, const std::vector<std::string>& flags,
                    const std::string& out) const {
    std::vector<std::string> words = {"weft",        "train", folder_.Write("run.yaml", text),
                                      "--overwrite", "--out", folder_ / out};
    words.insert(words.end(), flags.begin(), flags.end());
    return Command::Run(words, 120);
  }
  void Train(const std::string& text, const std::vector<std::string>& flags, const std::string& out) const {
    const CommandResult r = Run(text, flags, out);
    ASSERT_EQ(r.code, 0) << r.err;
  }
  // Trains on some of the worker processes that stay.
  void TrainOnWorkers(const std::string& text, const std::vector<std::string>& flags,
                      const std::string& out) const {
    const CommandResult r = Workers().Train(folder_.Write("run.yaml", text), flags, folder_ / out);
    ASSERT_EQ(r.code, 0) << r.err;
  }
  void ExpectRefused(const std::string& text, const std::vector<std::string>& flags,
                     const testing::Matcher<std::string>& message, int code = 78) const {
    const std::string before = ReadWholeFile(folder_ / "refused/steps.jsonl");
    const CommandResult r = Run(text, flags, "refused");
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_THAT(r.err, message);
    EXPECT_EQ(ReadWholeFile(folder_ / "refused/steps.jsonl"), before) << "the folder was touched";
  }
  Files Checkpoint(const std::string& out) const { return ReadFiles(folder_ / (out + "/checkpoint")); }

  TestFolder folder_;
};

// Two schedules of one rule: one stops on two processes, the other goes on in one.
struct Pair {
  std::string stopped, resumed;
  std::string optimizer = kAdamW;
  int microbatches = 4;
};

std::vector<Pair> Pairs() {
  std::vector<Pair> pairs = {
      {"gpipe", "1f1b", kMomentum},
      {"{fsdp: {shard: width}}", "gpipe"},
      {"ddp", "{fsdp: {shard: width}}", kMomentum},
      {"{1f1b: , activations: recompute}", "zb_h1", "sgd"},
      {"{cdp_mp: , rule: cdp_v1}", "{fsdp: {residency: migrating}, rule: cdp_v1}"},
      {"{fsdp: {residency: migrating}, rule: cdp_v2}", "{1f1b: , rule: cdp_v2}"},
      {"pipedream_2bw", "{ddp: , rule: cdp_v1}", kMomentum},
  };
  for (const std::string optimizer : {kAdamW, kMomentum}) {
    pairs.push_back({"{ddp: , rule: cdp_v2}", "{fsdp: , rule: cdp_v2}", optimizer});
    pairs.push_back(
        {"pipedream", "{custom: {workers: 3, compute: s % W, staleness: S - 1 - s}}", optimizer, 1});
  }
  return pairs;
}

TEST_F(Resume, AnotherPlacementOfTheRule_EndsWithTheBitsOfTheUndisturbedRun) {
  for (const Pair& pair : Pairs()) {
    const std::string first = RunText(pair.stopped, pair.optimizer, pair.microbatches);
    const std::string second = RunText(pair.resumed, pair.optimizer, pair.microbatches);
    Train(first + "checkpoint: {every: 1, keep: 100}\n", {"--reference"}, "whole");
    // Fewer steps than the oldest weights are old, and more.
    for (const int stop : {1, 5}) {
      SCOPED_TRACE(absl::StrCat(pair.stopped, ", then ", pair.resumed, " from ", stop, ", ", pair.optimizer));
      TrainOnWorkers(first, {"--processes", "2", "--until", absl::StrCat(stop)}, "stopped");
      EXPECT_EQ(Checkpoint("stopped"), ReadFiles(folder_ / absl::StrCat("whole/checkpoint-", stop)))
          << "all versions and the optimizer's state";
      TrainOnWorkers(second, {"--processes", "1", "--resume", folder_ / "stopped/checkpoint"}, "resumed");
      EXPECT_EQ(Checkpoint("resumed"), Checkpoint("whole"));
      std::map<int, double> losses = ReadLosses(folder_ / "stopped");
      EXPECT_EQ(losses.size(), static_cast<size_t>(stop));
      losses.merge(ReadLosses(folder_ / "resumed"));
      EXPECT_EQ(losses, ReadLosses(folder_ / "whole"));
      if (HasFailure()) return;
    }
  }
}

TEST_F(Resume, ReferenceAndRuntime_GoOnFromEachOther) {
  for (const auto& [schedule, microbatches] :
       {std::pair("{ddp: , rule: cdp_v2}", 4), std::pair("pipedream", 1), std::pair("gpipe", 6)}) {
    SCOPED_TRACE(schedule);
    const std::string run = RunText(schedule, kAdamW, microbatches);
    TrainOnWorkers(run, {"--processes", "2"}, "whole");
    Train(run, {"--reference", "--until", "3"}, "loop");
    TrainOnWorkers(run, {"--processes", "2", "--resume", folder_ / "loop/checkpoint", "--until", "6"},
                   "runtime");
    Train(run, {"--reference", "--resume", folder_ / "runtime/checkpoint"}, "loop");
    EXPECT_EQ(Checkpoint("loop"), Checkpoint("whole"));
    const Json summary = Json::parse(ReadWholeFile(folder_ / "loop/summary.json"));
    EXPECT_EQ(summary["first_step"], 6);
    EXPECT_EQ(summary["steps"], kSteps - 6);
    EXPECT_FALSE(fs::exists(folder_ / "loop/checkpoint-0")) << "it began with another's weights";
  }
}

TEST_F(Resume, AnotherNumberOfProcesses_EndsWithTheBitsOfTheUndisturbedRun) {
  for (const std::string schedule : {"{1f1b: , rule: cdp_v2}", "{fsdp: {shard: width}}"}) {
    const std::string run = RunText(schedule);
    Train(run, {"--reference"}, "whole");
    std::string from;
    // Each part goes on where the one before it stopped, until the last has made all steps.
    for (const auto& [processes, until] :
         {std::pair("1", "2"), std::pair("4", "4"), std::pair("3", "6"), std::pair("2", "8")}) {
      SCOPED_TRACE(absl::StrCat(schedule, " on ", processes, " processes until ", until));
      const std::string out = absl::StrCat("until", until);
      std::vector<std::string> flags = {"--processes", processes, "--until", until};
      if (!from.empty()) flags.insert(flags.end(), {"--resume", folder_ / from});
      TrainOnWorkers(run, flags, out);
      if (HasFatalFailure()) return;
      from = out;
    }
    EXPECT_EQ(Checkpoint(from), Checkpoint("whole"));
  }
}

TEST_F(Resume, IntoItsOwnFolder_KeepsTheCheckpointUnderItsStep) {
  const std::string run = RunText("{1f1b: , rule: cdp_v2}");
  Train(run, {"--processes", "2"}, "whole");
  Train(run, {"--processes", "2", "--until", "3"}, "own");
  const Files stopped = Checkpoint("own");
  Train(run, {"--processes", "2", "--resume", folder_ / "own/checkpoint", "--until", "5"}, "own");
  EXPECT_EQ(ReadFiles(folder_ / "own/checkpoint-3"), stopped);
  Train(run, {"--processes", "1", "--resume", folder_ / "own/checkpoint"}, "own");
  EXPECT_EQ(Checkpoint("own"), Checkpoint("whole"));
  // Once more from the kept one, and over the one that was kept before.
  Train(run, {"--processes", "1", "--resume", folder_ / "own/checkpoint-3", "--until", "5"}, "own");
  Train(run, {"--reference", "--resume", folder_ / "own/checkpoint"}, "own");
  EXPECT_EQ(Checkpoint("own"), Checkpoint("whole"));
  EXPECT_EQ(ReadFiles(folder_ / "own/checkpoint-3"), stopped);
}

TEST_F(Resume, LongerRunFile_GoesOnFromTheEnd) {
  const std::string longer = RunText("gpipe", kMomentum, 4, kSteps + 3);
  Train(longer, {"--reference"}, "whole");
  Train(RunText("gpipe", kMomentum), {"--processes", "2"}, "ended");
  Train(longer, {"--processes", "2", "--resume", folder_ / "ended/checkpoint"}, "longer");
  EXPECT_EQ(Checkpoint("longer"), Checkpoint("whole"));
}

TEST_F(Resume, WhatDoesNotFit_IsRefusedBeforeAnythingIsTouched) {
  const std::string run = RunText("{ddp: , rule: cdp_v1}");
  Train(run, {"--reference", "--until", "2"}, "from");
  Train(run, {"--reference", "--until", "1"}, "refused");
  const std::string from = folder_ / "from/checkpoint";
  const std::vector<std::string> resume = {"--processes", "2", "--resume", from};
  ExpectRefused(RunText("gpipe"), resume, AllOf(HasSubstr("--resume: "), HasSubstr("another rule")));
  ExpectRefused(RunText("{ddp: , rule: cdp_v2}"), resume, HasSubstr("another rule"));
  ExpectRefused(RunText("{ddp: , rule: cdp_v1}", kMomentum), resume,
                AllOf(HasSubstr("optimizer adamw"), HasSubstr("sgd with momentum")));
  std::string other = run;
  other.replace(other.find("width: 24"), 9, "width: 32");
  ExpectRefused(other, resume, HasSubstr("another model"));
  other = run;
  other.replace(other.find("stages: 4"), 9, "stages: 2");
  other.replace(other.find("{ddp: , rule: cdp_v1}"), 21, "pipedream_2bw");
  ExpectRefused(other, resume, HasSubstr("cut into 4 stages, the run's has 2"));
  ExpectRefused(RunText("{ddp: , rule: cdp_v1}", kAdamW, 4, 2), resume, HasSubstr("nothing is left"));
  ExpectRefused(run, {"--resume", from, "--until", "2"}, HasSubstr("nothing is left"));
  ExpectRefused(run, {"--until", "9"}, HasSubstr("--until: the run has 8 steps"), /*code=*/2);
  ExpectRefused(run, {"--resume", folder_ / "from/checkpoint-0"}, HasSubstr("weights alone"));
  ExpectRefused(run, {"--resume", folder_ / "nothing"}, HasSubstr("no whole checkpoint"));
  ExpectRefused(run + "until: 3\n", {}, HasSubstr("until: is not a key of a run file; it is a flag"));

  // Stage 2 of another step.
  fs::copy(from, folder_ / "mixed", fs::copy_options::recursive);
  fs::copy_file(folder_ / "refused/checkpoint/state/stage02.safetensors",
                folder_ / "mixed/state/stage02.safetensors", fs::copy_options::overwrite_existing);
  ExpectRefused(run, {"--resume", folder_ / "mixed"}, HasSubstr("mixes versions"));
  fs::remove(folder_ / "mixed/state/stage02.safetensors");
  ExpectRefused(run, {"--resume", folder_ / "mixed"}, HasSubstr("which the checkpoint's index names"));
  fs::copy(from, folder_ / "cut", fs::copy_options::recursive);
  fs::resize_file(folder_ / "cut/stage01.safetensors",
                  fs::file_size(folder_ / "cut/stage01.safetensors") - 8);
  ExpectRefused(run, {"--reference", "--resume", folder_ / "cut"}, HasSubstr("is damaged"));
}

// A run saves on its way, while its steps run on: by one holder, in slices, in relays, by width, by the rank
// that makes the version of a migrating state, and with old versions.
TEST_F(Resume, CheckpointOnTheWay_IsWhatARunThatStopsThereLeaves) {
  for (const auto& [schedule, other, microbatches] :
       {std::tuple("1f1b", "ddp", 4), std::tuple("ddp", "gpipe", 4),
        std::tuple("{fsdp: {shard: width}}", "zb_h1", 4), std::tuple("pipedream", "pipedream", 1),
        std::tuple("{cdp_mp: {}, rule: cdp_v2}", "{ddp: {}, rule: cdp_v2}", 4),
        std::tuple("{fsdp: {residency: migrating}, rule: cdp_v1}", "{1f1b: {}, rule: cdp_v1}", 4)}) {
    SCOPED_TRACE(schedule);
    const std::string run = RunText(schedule, kAdamW, microbatches);
    Train(run, {"--reference"}, "whole");
    TrainOnWorkers(run + "checkpoint: {every: 1, keep: 100}\n", {"--processes", "2"}, "saved");
    EXPECT_EQ(Checkpoint("saved"), Checkpoint("whole"));
    for (const int step : {1, 3, kSteps - 1}) {
      Train(run, {"--reference", "--until", absl::StrCat(step)}, "until");
      EXPECT_EQ(ReadFiles(folder_ / absl::StrCat("saved/checkpoint-", step)), Checkpoint("until")) << step;
      if (HasFailure()) return;
    }
    TrainOnWorkers(RunText(other, kAdamW, microbatches),
                   {"--processes", "1", "--resume", folder_ / "saved/checkpoint-3"}, "resumed");
    EXPECT_EQ(Checkpoint("resumed"), Checkpoint("whole"));
  }
}

TEST_F(Resume, EveryAndKeep_LeaveTheNewestOfTheRun) {
  const std::string run = RunText("1f1b") + "checkpoint: {every: 2, keep: 2}\n";
  Train(run, {"--processes", "2"}, "runtime");
  Train(run, {"--reference"}, "loop");
  for (const std::string out : {"runtime", "loop"}) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / out)) {
      if (entry.is_directory()) names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, (std::vector<std::string>{"checkpoint", "checkpoint-0", "checkpoint-4", "checkpoint-6"}))
        << out;
  }
  EXPECT_EQ(ReadFiles(folder_ / "runtime/checkpoint-6"), ReadFiles(folder_ / "loop/checkpoint-6"));
  // The initial weights are a checkpoint like any other.
  const CommandResult eval = Command::Run(
      {"weft", "eval", folder_ / "run.yaml", "--checkpoint", folder_ / "runtime/checkpoint-0"}, 60);
  EXPECT_EQ(eval.code, 0) << eval.err;
}

// A key that is misspelt, a value of the wrong kind, each by its line.
TEST_F(Resume, CheckpointKey_IsCheckedLikeAnyOther) {
  for (const auto& [key, message] :
       {std::pair("{evry: 3}", "did you mean \"every\"?"), std::pair("{every: 0}", "checkpoint.every"),
        std::pair("{every: 10x}", "as 30s, 10m or 2h"), std::pair("{keep: 3}", "checkpoint.every"),
        std::pair("{every: 5, keep: 1}", "checkpoint.keep")}) {
    const CommandResult r = Run(RunText("1f1b") + "checkpoint: " + key + "\n", {}, "out");
    EXPECT_EQ(r.code, 78) << key;
    EXPECT_THAT(r.err, AllOf(HasSubstr("run.yaml:7: "), HasSubstr(message))) << key;
  }
}

class Stopped : public Resume {
 protected:
  // So long that a test stops it, with a step that takes no time.
  static constexpr int kManySteps = 1'000'000;
  std::vector<std::string> Words(const std::string& text, const std::vector<std::string>& flags) const {
    std::vector<std::string> words = {"weft", "train", folder_.Write("run.yaml", text), "--out",
                                      folder_ / "out"};
    words.insert(words.end(), flags.begin(), flags.end());
    return words;
  }
  bool AwaitSteps(size_t count) const {
    for (int i = 0; i < 1200; ++i) {
      if (ReadLosses(folder_ / "out").size() >= count) return true;
      usleep(50'000);
    }
    return false;
  }
  // A snapshot is written beside the steps, which do not wait for it.
  bool AwaitCheckpoint() const {
    for (int i = 0; i < 1200; ++i) {
      if (NewestStep() > 0) return true;
      usleep(50'000);
    }
    return false;
  }
  // Returns the step of the folder's newest checkpoint; -1 for none.
  int NewestStep() const {
    int newest = -1;
    std::error_code gone;  // older ones are removed meanwhile
    for (const auto& entry : fs::directory_iterator(folder_ / "out", gone)) {
      const std::string name = entry.path().filename();
      if (name.rfind("checkpoint-", 0) == 0 &&
          fs::exists(entry.path() / "model.safetensors.index.json", gone))
        newest = std::max(newest, std::atoi(name.c_str() + 11));
    }
    return newest;
  }
  // Makes two steps from the newest checkpoint on, by the plain loop.
  void ExpectGoesOn(int step) {
    const std::string until = absl::StrCat(step + 2);
    const CommandResult resumed = Command::Run(
        Words(ReadWholeFile(folder_ / "run.yaml"), {"--resume", folder_ / "out", "--until", until}), 120);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    const Files made = Checkpoint("out");
    Train(ReadWholeFile(folder_ / "run.yaml"), {"--reference", "--until", until}, "undisturbed");
    EXPECT_EQ(made, Checkpoint("undisturbed"));
    // The curve is whole.
    EXPECT_EQ(ReadLosses(folder_ / "out"), ReadLosses(folder_ / "undisturbed"));
  }
};

TEST_F(Stopped, BySignal_SavesAndSaysHowToGoOn) {
  for (const std::string mode : {"--processes=2", "--reference"}) {
    SCOPED_TRACE(mode);
    fs::remove_all(folder_ / "out");
    Command training(Words(RunText("1f1b", kAdamW, 4, kManySteps), {mode}));
    ASSERT_TRUE(AwaitSteps(3));
    training.Signal(mode == "--reference" ? SIGTERM : SIGINT);
    const CommandResult r = training.Wait(60);
    EXPECT_EQ(r.code, 130) << r.err;
    const int step = NewestStep();
    ASSERT_GT(step, 0) << r.err;
    EXPECT_THAT(r.err, AllOf(HasSubstr("saving a checkpoint after step"), HasSubstr("press Ctrl-C again"),
                             HasSubstr(absl::StrCat("the checkpoint of step ", step, " is complete")),
                             HasSubstr("--resume ")));
    EXPECT_EQ(ReadLosses(folder_ / "out").size(), static_cast<size_t>(step)) << "a step a line";
    ExpectGoesOn(step);
  }
}

TEST_F(Stopped, BeforeItsFirstStep_EndsAtOnce) {
  Command training(Words(RunText("1f1b", kAdamW, 4, kManySteps), {"--processes", "2"}));
  training.Signal(SIGINT);
  const CommandResult r = training.Wait(60);
  EXPECT_TRUE(r.code == 130 || r.signal == SIGINT) << r.code << r.err;
  EXPECT_THAT(r.err, ::testing::Not(HasSubstr("saving a checkpoint")));
}

// The checkpoint that is complete stays, and is named.
TEST_F(Stopped, ByTheDeathOfAWorker_KeepsItsLastCheckpoint) {
  Command training(Words(RunText("ddp", kAdamW, 4, kManySteps) + "checkpoint: {every: 5}\nrestarts: 0\n",
                         {"--processes", "2"}));
  ASSERT_TRUE(AwaitCheckpoint());
  const std::vector<pid_t> workers = Children(training.pid());
  ASSERT_FALSE(workers.empty());
  kill(workers.front(), SIGKILL);
  const CommandResult r = training.Wait(60);
  EXPECT_EQ(r.code, 1) << r.err;
  const int step = NewestStep();
  ASSERT_GT(step, 0);
  EXPECT_THAT(r.err, HasSubstr(absl::StrCat("the checkpoint of step ", step, " is complete")));
  for (const auto& entry : fs::directory_iterator(folder_ / "out"))
    EXPECT_NE(entry.path().extension(), ".partial") << entry.path();
  ExpectGoesOn(step);
}

// Something stands in the way of the later ones, as a full disk would.
TEST_F(Stopped, PeriodicSaveThatFails_IsSaidAndTheTrainingGoesOn) {
  Command training(Words(RunText("1f1b", kAdamW, 4, kManySteps) + "checkpoint: {every: 200, keep: 1000}\n",
                         {"--processes", "1"}));
  ASSERT_TRUE(AwaitSteps(200));
  // The steps that it has reached meanwhile have their checkpoints.
  for (int step = 400; step < 200'000; step += 200) {
    std::error_code there;
    fs::create_directory_symlink("/nowhere", folder_ / absl::StrCat("out/checkpoint-", step), there);
  }
  ASSERT_TRUE(training.WaitFor("was not saved", 60));
  const size_t then = ReadLosses(folder_ / "out").size();
  EXPECT_TRUE(AwaitSteps(then + 10));
  training.Signal(SIGKILL);
  training.Wait(60);
}

// The whole checkpoint is read before the run starts.
TEST_F(Resume, FlippedBit_RefusedWithTheFilesName) {
  const std::string run = RunText("gpipe");
  Train(run, {"--reference", "--until", "2"}, "from");
  const std::string path = folder_ / "from/checkpoint/state/stage01.safetensors";
  std::string bytes = ReadWholeFile(path);
  bytes[bytes.size() - 9] = static_cast<char>(bytes[bytes.size() - 9] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
  for (const std::string mode : {"--reference", "--processes=2"}) {
    const CommandResult r = Run(run, {mode, "--resume", folder_ / "from/checkpoint"}, "out");
    EXPECT_EQ(r.code, 78) << mode;
    EXPECT_FALSE(fs::exists(folder_ / "out")) << mode;
    EXPECT_THAT(r.err, AllOf(HasSubstr("state/stage01.safetensors"), HasSubstr("checksum"))) << mode;
  }
}

}  // namespace
}  // namespace weft::resume_test
