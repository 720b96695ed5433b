// Trainings that stop at a step and go on from their checkpoints, with the real programs: the bits are those
// of the undisturbed training, whatever placement, number of processes or plain loop makes either part.
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft {
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
  return files;
}

// The losses by step.
std::map<int, double> ReadLosses(const std::string& folder) {
  std::map<int, double> losses;
  std::ifstream file(folder + "/steps.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json step = Json::parse(line);
    losses[step["step"]] = step["loss"];
  }
  return losses;
}

class Resume : public ::testing::Test {
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
    std::vector<std::string> words = {"weft", "train", folder_.Write("run.yaml", text), "--out",
                                      folder_ / out};
    words.insert(words.end(), flags.begin(), flags.end());
    return Command::Run(words, 120);
  }
  void Train(const std::string& text, const std::vector<std::string>& flags, const std::string& out) const {
    const CommandResult r = Run(text, flags, out);
    ASSERT_EQ(r.code, 0) << r.err;
  }
  void ExpectRefused(const std::string& text, const std::vector<std::string>& flags,
                     const testing::Matcher<std::string>& message) const {
    const std::string before = ReadWholeFile(folder_ / "refused/steps.jsonl");
    const CommandResult r = Run(text, flags, "refused");
    EXPECT_EQ(r.code, 78) << r.err;
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
    Train(first, {"--reference"}, "whole");
    // Fewer steps than the oldest weights are old, and more.
    for (const int stop : {1, 5}) {
      SCOPED_TRACE(absl::StrCat(pair.stopped, ", then ", pair.resumed, " from ", stop, ", ", pair.optimizer));
      const std::string until = absl::StrCat(stop);
      Train(first, {"--reference", "--until", until}, "loop");
      Train(first, {"--processes", "2", "--until", until}, "stopped");
      EXPECT_EQ(Checkpoint("stopped"), Checkpoint("loop")) << "all versions and the optimizer's state";
      Train(second, {"--processes", "1", "--resume", folder_ / "stopped/checkpoint"}, "resumed");
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
    Train(run, {"--processes", "2"}, "whole");
    Train(run, {"--reference", "--until", "3"}, "loop");
    Train(run, {"--processes", "2", "--resume", folder_ / "loop/checkpoint", "--until", "6"}, "runtime");
    Train(run, {"--reference", "--resume", folder_ / "runtime/checkpoint"}, "loop");
    EXPECT_EQ(Checkpoint("loop"), Checkpoint("whole"));
    const Json summary = Json::parse(ReadWholeFile(folder_ / "loop/summary.json"));
    EXPECT_EQ(summary["first_step"], 6);
    EXPECT_EQ(summary["steps"], kSteps - 6);
    EXPECT_FALSE(fs::exists(folder_ / "loop/checkpoint-0")) << "it began with another's weights";
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
  ExpectRefused(run, {"--until", "9"}, HasSubstr("--until: the run has 8 steps"));
  ExpectRefused(run, {"--resume", folder_ / "from/checkpoint-0"}, HasSubstr("weights alone"));
  ExpectRefused(run, {"--resume", folder_ / "from"}, HasSubstr("no whole checkpoint"));
  ExpectRefused(run + "until: 3\n", {}, HasSubstr("until: is not a run file's to say"));

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

// Headers are read before the run starts, the data by whoever holds it.
TEST_F(Resume, FlippedBit_FailsTheRunWithTheFilesName) {
  const std::string run = RunText("gpipe");
  Train(run, {"--reference", "--until", "2"}, "from");
  const std::string path = folder_ / "from/checkpoint/state/stage01.safetensors";
  std::string bytes = ReadWholeFile(path);
  bytes[bytes.size() - 9] = static_cast<char>(bytes[bytes.size() - 9] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
  for (const std::string mode : {"--reference", "--processes=2"}) {
    const CommandResult r = Run(run, {mode, "--resume", folder_ / "from/checkpoint"}, "out");
    EXPECT_EQ(r.code, 1) << mode;
    EXPECT_THAT(r.err, AllOf(HasSubstr("state/stage01.safetensors"), HasSubstr("checksum"))) << mode;
  }
}

}  // namespace
}  // namespace weft
