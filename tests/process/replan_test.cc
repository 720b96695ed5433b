// Runs whose ranks are not equally fast: `weft plan --from` plans them anew, and runs with `replan` move by
// themselves. Bits are those of the undisturbed loop, whatever the speeds.
#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/child_processes.h"
#include "tests/process/command.h"
#include "tests/process/disturbed_run.h"
#include "tests/process/slowed_process.h"

namespace weft::replan_test {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr int kUsage = 2, kBadConfiguration = 78;
constexpr double kShare = 0.25;  // of a core, for the slow rank

class Replan : public DisturbedRun {
 protected:
  // Writes a training of two samples in a micro-batch, whose jobs take milliseconds.
  std::string WriteSlowRun(const std::string& schedule, int steps, const std::string& replan,
                           int microbatches = 6) const {
    std::map<std::string, std::string> changes = {
        {"model", "{gpt: {layers: 4, width: 192, heads: 4, context: 64}}"},
        {"train", "{steps: " + std::to_string(steps) + ", batch: " + std::to_string(2 * microbatches) +
                      ", microbatches: " + std::to_string(microbatches) +
                      ", seed: 1, clip_norm: 1.0, optimizer: {adamw: {lr: 1.0e-3}}}"},
        {"stages", "6"},
        {"schedule", schedule}};
    if (!replan.empty()) changes["replan"] = replan;
    return WriteSmallRun(folder_, changes);
  }
  static std::vector<Json> LinesOf(const std::string& path) {
    std::vector<Json> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  // Returns, by rank, the number of forwards in the last step.
  std::vector<int> ForwardsOfRanks() const {
    const Json trace = Json::parse(ReadWholeFile(out_ + "/trace.json"));
    const int last = Summary()["steps"].get<int>() - 1;
    std::vector<int> forwards(2);
    for (const Json& event : trace["traceEvents"]) {
      if (event.value("cat", "") == "forward" && event["args"]["step"] == last)
        ++forwards[event["args"]["rank"]];
    }
    return forwards;
  }
  // Trains with two processes, of which that of rank 1 has a part of a core behind the third step.
  void TrainWithASlowProcess(const std::string& file, std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"weft", "train", file, "--processes", "2", "--out", out_};
    words.insert(words.end(), more.begin(), more.end());
    Command train(words);
    ASSERT_TRUE(AwaitSteps(3));
    const pid_t fast = WorkerProcess(train.pid(), 0), slow = WorkerProcess(train.pid(), 1);
    ASSERT_TRUE(fast > 0 && slow > 0);
    {
      const FavouredProcess favoured(fast);
      const SlowedProcess slowed(slow, kShare);
      result_ = train.Wait(kSeconds);
    }
    ASSERT_EQ(result_.code, 0) << result_.err;
  }
  CommandResult PlanFrom(std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"weft", "plan", "--from", out_};
    words.insert(words.end(), more.begin(), more.end());
    return Command::Run(words);
  }

  CommandResult result_;
};

// Under each way to place the work the slow rank has less of it at the end.
class ReplanUnder : public Replan, public ::testing::WithParamInterface<const char*> {};

TEST_P(ReplanUnder, RankBecomesSlow_TheRunGivesItLessWorkWithTheSameBits) {
  const std::string file = WriteSlowRun(GetParam(), 30, "{gain: 5 %, steps: 1000}");
  TrainReference(file);
  TrainWithASlowProcess(file);
  ExpectTheReference();
  const std::vector<Json> replans = LinesOf(out_ + "/replans.jsonl");
  ASSERT_EQ(replans.size(), 1u) << result_.err;
  EXPECT_THAT(replans[0]["reason"].get<std::string>(), HasSubstr("of the fastest rank's speed, rank 1 at "));
  EXPECT_EQ(Summary()["schedule"], replans[0]["schedule"]);
  EXPECT_EQ(Summary()["restarts"], 1);
  EXPECT_THAT(result_.err, HasSubstr("the run goes on from its checkpoint of step "));
  const std::vector<int> forwards = ForwardsOfRanks();
  EXPECT_LT(forwards[1], forwards[0]);
}

INSTANTIATE_TEST_SUITE_P(Schedules, ReplanUnder,
                         ::testing::Values("{ddp: {ranks: 2}}",
                                           "{custom: {ranks: 2, compute: \"s < 3 ? 0 : 1\", order: 1f1b}}"));

TEST_F(Replan, EquallyFastRanks_TheRunStays) {
  // So much of the time no hiccup of the machine costs for four steps.
  const std::string file = WriteSlowRun("{ddp: {ranks: 2}}", 16, "{gain: 90 %}");
  const CommandResult train =
      Command::Run({"weft", "train", file, "--processes", "2", "--out", out_}, kSeconds);
  ASSERT_EQ(train.code, 0) << train.err;
  EXPECT_EQ(Summary()["restarts"], 0);
  EXPECT_FALSE(std::filesystem::exists(out_ + "/replans.jsonl"));
}

// Each rank has the one micro-batch that it cannot do without.
TEST_F(Replan, NothingToGain_TheRunStaysHoweverSlowARankIs) {
  const std::string file = WriteSlowRun("{ddp: {ranks: 2}}", 14, "{gain: 5 %, steps: 1}", 2);
  TrainReference(file);
  TrainWithASlowProcess(file);
  ExpectTheReference();
  EXPECT_EQ(Summary()["restarts"], 0);
  EXPECT_FALSE(std::filesystem::exists(out_ + "/replans.jsonl"));
}

TEST_F(Replan, PlanFromARun_GivesTheSlowRankLessAndTheRunGoesOnWithIt) {
  const std::string file = WriteSlowRun("{ddp: {ranks: 2}}", 14, "");
  TrainReference(file);
  TrainWithASlowProcess(file, {"--until", "12"});
  const CommandResult planned = PlanFrom({"-o", "json"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Json json = Json::parse(planned.out);
  const std::vector<double> speeds = json["speeds"];
  EXPECT_EQ(speeds[0], 1);
  EXPECT_LT(speeds[1], 0.5);
  EXPECT_GT(json["gain"], 0.05);
  EXPECT_LT(json["step"], json["present"]["step"]);
  EXPECT_GE(json["step"].get<double>() * (1 + 1e-9), json["step_lower_bound"].get<double>());
  const CommandResult table = PlanFrom();
  EXPECT_THAT(table.out, HasSubstr("better       "));
  const CommandResult yaml = PlanFrom({"-o", "yaml"});
  std::ofstream(folder_ / "plan.yaml") << yaml.out;
  EXPECT_THAT(yaml.err, HasSubstr("a step takes "));
  const CommandResult rest = Command::Run(
      {"weft", "train", file, "--plan", folder_ / "plan.yaml", "--resume", out_, "--out", out_}, kSeconds);
  ASSERT_EQ(rest.code, 0) << rest.err;
  ExpectTheReference();
  EXPECT_EQ(Summary()["schedule"], json["schedule"]);
}

TEST_F(Replan, WhatIsWrong_GetsASentenceAndItsCode) {
  const std::string file = WriteRun("{ddp: {ranks: 2}}", 4);
  const auto expect = [&](const CommandResult& refused, int code, const std::string& text) {
    EXPECT_EQ(refused.code, code) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(text));
  };
  expect(PlanFrom(), kBadConfiguration, "is no folder; give that of a training's results");
  const CommandResult train =
      Command::Run({"weft", "train", file, "--processes", "2", "--out", out_}, kSeconds);
  ASSERT_EQ(train.code, 0) << train.err;
  ASSERT_EQ(PlanFrom().code, 0);
  expect(PlanFrom({"--workers", "2"}), kUsage, "--from");
  folder_.Write("profile.json", R"({"layers": [{"forward": 1}, {"forward": 1}]})");
  expect(PlanFrom({"--profile", folder_ / "profile.json"}), kBadConfiguration, "2 layers, and the model of");
  // A plan for other layers is refused when the run goes on.
  folder_.Write("plan.yaml", "schedule: 1f1b\nstages: [2, 2, 1, 1]\n");
  const std::string resume = out_ + "/checkpoint";
  expect(Command::Run({"weft", "train", WriteRun("{ddp: {ranks: 2}}", 8), "--plan", folder_ / "plan.yaml",
                       "--resume", resume, "--out", folder_ / "other"}),
         kBadConfiguration, "--resume: ");
  // So is the trace of another training.
  const std::string simulated =
      Command::Run({"weft", "simulate", "1f1b", "--stages", "2", "--microbatches", "4", "-o", "trace"}).out;
  std::ofstream(out_ + "/trace.json") << simulated;
  expect(PlanFrom(), kBadConfiguration, "was simulated");
  std::filesystem::remove(out_ + "/trace.json");
  expect(PlanFrom(), kBadConfiguration, "has no trace.json");
  for (const auto& [replan, text] :
       std::map<std::string, std::string>{{"{gain: -5 %}", "replan.gain: must be the part of a step's time"},
                                          {"{gain: 5}", "replan.gain: must be"},
                                          {"{}", "replan"},
                                          {"{gain: 5 %, steps: 0}", "replan.steps"},
                                          {"{gain: 5 %, often: 3}", "unknown key \"often\""},
                                          {"5 %", "replan"}}) {
    const std::string bad = WriteRun("{ddp: {ranks: 2}}", 4, {{"replan", replan}});
    expect(Command::Run({"weft", "train", bad, "--out", folder_ / "bad"}), kBadConfiguration, text);
  }
}

}  // namespace
}  // namespace weft::replan_test
