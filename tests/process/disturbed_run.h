// A training that a test disturbs, with the real programs, and the undisturbed loop that it must equal: the
// same bits, the same losses, and each step reported once.
#ifndef WEFT_TESTS_PROCESS_DISTURBED_RUN_H_
#define WEFT_TESTS_PROCESS_DISTURBED_RUN_H_

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/checkpoint_tensors.h"
#include "tests/process/command.h"
#include "tests/process/eventually.h"
#include "tests/process/run_files.h"

namespace weft {

class DisturbedRun : public ::testing::Test {
 protected:
  static constexpr int kSeconds = 120;  // how long anything may take before the test fails

  // Asks until it is so. Returns false if it never was.
  static bool Eventually(const std::function<bool()>& done) { return weft::Eventually(done, kSeconds); }

  // Returns the steps in the log and their losses, in the order of their lines, without their times. The last
  // line may still be on its way.
  static std::vector<std::pair<int, double>> LossesIn(const std::string& out) {
    std::vector<std::pair<int, double>> losses;
    std::ifstream file(out + "/steps.jsonl");
    for (std::string line; std::getline(file, line) && !file.eof();) {
      const nlohmann::json step = nlohmann::json::parse(line, nullptr, false);
      if (step.contains("loss")) losses.emplace_back(step["step"], step["loss"]);
    }
    return losses;
  }

  // Writes a training of so many steps with AdamW and clipping, and a checkpoint of every fifth step.
  // `changes` replaces sections of the run file. Returns its path.
  std::string WriteRun(const std::string& schedule, int steps,
                       std::map<std::string, std::string> changes = {}) const {
    changes.insert(
        {{"train", absl::StrCat("{steps: ", steps,
                                ", batch: 16, microbatches: 4, seed: 1, clip_norm: 1.0, optimizer: "
                                "{adamw: {lr: 1.0e-3}}}")},
         {"schedule", schedule},
         {"checkpoint", "{every: 5}"}});
    return WriteSmallRun(folder_, changes);
  }
  // The tensors that a training ends with, and the losses on its way.
  struct Trained {
    CheckpointTensors tensors;
    std::vector<std::pair<int, double>> losses;
  };

  // Returns what the plain loop makes of the run, which it trains once for all tests of this program whose
  // runs have the same results.
  Trained PlainResults(const std::string& file) const {
    static std::map<std::string, Trained> results;
    const auto [result, is_new] = results.try_emplace(WhatDecidesResults(file));
    if (is_new) {
      const std::string out = folder_ / "reference";
      const CommandResult r =
          Command::Run({"weft", "train", file, "--reference", "--overwrite", "--out", out}, kSeconds);
      EXPECT_EQ(r.code, 0) << r.err;
      if (r.code == 0) result->second = {ReadTensors(out + "/checkpoint"), LossesIn(out)};
    }
    return result->second;
  }
  void TrainReference(const std::string& file) {
    reference_ = PlainResults(file);
    ASSERT_FALSE(reference_.tensors.empty()) << "the plain loop of such a run has failed";
  }
  // Waits until so many steps are in the log, or the run has ended.
  bool AwaitSteps(size_t steps) const {
    return Eventually([&] { return LossesIn(out_).size() >= steps || HasSummary(); });
  }
  // Waits until a checkpoint of a later step than the first is whole.
  bool AwaitCheckpoint() const {
    namespace fs = std::filesystem;
    return Eventually([&] {
      for (const fs::directory_entry& entry : fs::directory_iterator(out_)) {
        const std::string name = entry.path().filename();
        const bool sealed = name.rfind("checkpoint-", 0) == 0 && name.find('.') == std::string::npos;
        if (sealed && name != "checkpoint-0" && fs::exists(entry.path() / "model.safetensors.index.json"))
          return true;
      }
      return false;
    });
  }
  // Expects the trained weights and each loss of the undisturbed loop, and each step reported once.
  void ExpectTheReference() const {
    EXPECT_TRUE(ReadTensors(out_ + "/checkpoint") == reference_.tensors) << "other bits";
    EXPECT_EQ(LossesIn(out_), reference_.losses);
  }
  bool HasSummary() const { return std::filesystem::exists(out_ + "/summary.json"); }
  nlohmann::json Summary() const {
    return nlohmann::json::parse(ReadWholeFile(out_ + "/summary.json"), nullptr, false);
  }

  const TestFolder folder_;
  const std::string out_ = folder_ / "out";
  Trained reference_;

 private:
  // Returns the run file without what changes no result: where and in which order jobs run (the rule of
  // synchronization is part of the schedule and stays), and what is saved.
  static std::string WhatDecidesResults(const std::string& file) {
    std::istringstream lines(ReadWholeFile(file));
    std::string kept;
    for (std::string line; std::getline(lines, line);) {
      const std::string key = line.substr(0, line.find(':'));
      if (key == "checkpoint" || key == "redundancy" || key == "restarts" || key == "replan") continue;
      const size_t rule = line.find("rule: ");
      const bool reads_old =
          line.find("pipedream") != std::string::npos || line.find("staleness") != std::string::npos;
      if (key == "schedule" && !reads_old) line = rule == std::string::npos ? "" : line.substr(rule);
      kept += line + "\n";
    }
    return kept;
  }
};

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_DISTURBED_RUN_H_
