// `weft plan`: its answers and refusals on the command line, and that a run file trains with a plan to the
// bits of the plain loop.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/measured_buffers.h"
#include "tests/process/checkpoint_tensors.h"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft::plan_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr int kNothingFits = 1, kUsage = 2, kBadConfiguration = 78;

class PlanCommand : public ::testing::Test {
 protected:
  PlanCommand() {
    std::ofstream(profile_) << R"({"layers": [
      {"forward": 3, "backward": 3, "activation_bytes": 1}, {"forward": 2, "backward": 2, "activation_bytes": 2},
      {"forward": 2, "backward": 2, "activation_bytes": 2}, {"forward": 2, "backward": 2, "activation_bytes": 4}]})";
  }
  static CommandResult Plan(std::vector<std::string> words) {
    words.insert(words.begin(), {"weft", "plan"});
    return Command::Run(words);
  }

  const TestFolder folder_;
  const std::string profile_ = folder_ / "layers.json";
};

TEST_F(PlanCommand, ProfileWithLittleMemory_GivesThePublishedPeriods) {
  const CommandResult one =
      Plan({profile_, "--workers", "4", "--memory", "4", "--schedule", "periodic", "-o", "json"});
  ASSERT_EQ(one.code, 0) << one.err;
  const Json json = Json::parse(one.out);
  EXPECT_EQ(json["period"], 8.0);
  EXPECT_EQ(json["lower_bound"], 8.0);
  EXPECT_EQ(json["step"], 8.0);
  EXPECT_EQ(json["optimal"], true);
  const CommandResult two =
      Plan({profile_, "--workers", "4", "--memory", "4", "--schedule", "periodic,k=2", "-o", "json"});
  EXPECT_EQ(Json::parse(two.out)["period"], 6.0);
  const CommandResult any = Plan({profile_, "--workers", "4", "--memory", "4"});
  EXPECT_THAT(any.out, HasSubstr("period       6 a micro-batch, 2 in a window"));
}

// A run file and the profile alone say the same of a tied parameter.
TEST_F(PlanCommand, ProfileOfATiedModelAlone_IsPlannedAndSimulatedAsWithItsRun) {
  const std::string run =
      folder_.Write("tied.yaml",
                    "model: {gpt: {layers: 4, width: 16, heads: 2, context: 8, tied: true}}\n"
                    "data: {text: {path: text.txt}}\ntrain: {steps: 1, batch: 8, microbatches: 4}\nstages: "
                    "3\nschedule: 1f1b\n");
  std::ofstream(folder_ / "text.txt") << std::string(200, 'a');
  const std::string profile = folder_ / "tied.json";
  const CommandResult measured = Command::Run({"weft", "profile", run, "--steps", "2", "-o", profile});
  ASSERT_EQ(measured.code, 0) << measured.err;
  std::ifstream file(profile);
  const Json layers = Json::parse(file)["layers"];
  EXPECT_EQ(layers[0]["readers"], Json({1, 6}));
  EXPECT_FALSE(layers[1].contains("readers"));

  const std::vector<std::string> asked = {"--workers", "3", "--schedule", "1f1b", "-o"};
  const auto planned = [&](std::vector<std::string> words, const char* form) {
    words.insert(words.end(), asked.begin(), asked.end());
    words.emplace_back(form);
    const CommandResult result = Plan(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const Json with = Json::parse(planned({run, "--profile", profile}, "json"));
  const Json alone = Json::parse(planned({profile, "--microbatches", "4"}, "json"));
  EXPECT_EQ(alone["stages"], with["stages"]);
  EXPECT_EQ(alone["step"], with["step"]);
  const std::string plan = folder_.Write("tied-plan.yaml", planned({profile, "--microbatches", "4"}, "yaml"));
  const CommandResult simulated =
      Command::Run({"weft", "simulate", plan, "--microbatches", "4", "--profile", profile, "-o", "json"});
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  EXPECT_EQ(Json::parse(simulated.out)["stages"], 4);
}

TEST_F(PlanCommand, PlanOfAProfile_IsSimulatedWithItsPeriod) {
  const std::string plan = folder_ / "plan.yaml";
  std::ofstream(plan) << Plan({profile_, "--workers", "4", "--memory", "4", "-o", "yaml"}).out;
  double makespan[2];
  for (const int i : {0, 1}) {
    const CommandResult run = Command::Run({"weft", "simulate", plan, "--microbatches", i == 0 ? "50" : "100",
                                            "--profile", profile_, "--memory", "4", "-o", "json"});
    ASSERT_EQ(run.code, 0) << run.err;
    makespan[i] = Json::parse(run.out)["makespan"];
  }
  EXPECT_EQ(makespan[1] - makespan[0], 300);
}

TEST_F(PlanCommand, PlanWithACutOfItsOwn_IsSimulatedWithThatCut) {
  folder_.Write("plan.yaml", "schedule: 1f1b\nstages: [3, 1]\n");
  folder_.Write("equal.json",
                R"({"layers": [{"forward": 1}, {"forward": 1}, {"forward": 1}, {"forward": 1}]})");
  const auto busy = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"weft", "simulate",  folder_ / "plan.yaml",  "--microbatches",
                                      "4",    "--profile", folder_ / "equal.json", "-o",
                                      "json"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult run = Command::Run(words);
    EXPECT_EQ(run.code, 0) << run.err;
    std::vector<double> times;
    const Json json = Json::parse(run.out);
    for (const Json& rank : json["rank_stats"]) times.push_back(rank["busy"]);
    return times;
  };
  EXPECT_THAT(busy({}), ElementsAre(36, 12));
  EXPECT_THAT(busy({"--stages", "4"}), ElementsAre(12, 12, 12, 12)) << "another cut was asked for";
  folder_.Write("plan.yaml", "schedule: 1f1b\nstages: [3, 2]\n");
  const CommandResult other = Command::Run({"weft", "simulate", folder_ / "plan.yaml", "--microbatches", "4",
                                            "--profile", folder_ / "equal.json"});
  EXPECT_EQ(other.code, kBadConfiguration);
  EXPECT_THAT(other.err, HasSubstr("the profile is of 4 layers, the model has 5"));
}

TEST_F(PlanCommand, WhatIsWrongOrDoesNotFit_GetsASentenceAndItsCode) {
  const auto expect = [&](std::vector<std::string> words, int code, const std::string& text) {
    const CommandResult refused = Plan(words);
    EXPECT_EQ(refused.code, code) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(text));
    EXPECT_THAT(refused.out, testing::Not(HasSubstr("period")));
  };
  expect({profile_, "--workers", "4", "--memory", "3"}, kNothingFits, "4 B (4 bytes) would do");
  expect({profile_, "--workers", "4", "--schedule", "1f1c"}, kUsage,
         "--schedule: unknown schedule \"1f1c\"; did you mean \"1f1b\"? Valid here: auto, order, 1f1b, ");
  expect({profile_, "--workers", "4", "--schedule", "ordr"}, kUsage, "did you mean \"order\"?");
  expect({profile_, "--workers", "4", "--schedule", "auto,activations=recompute"}, kUsage,
         "--schedule: auto has no parameters; leave out ',activations=recompute'");
  expect({profile_, "--workers", "4", "--schedule", "order,k=2"}, kUsage, "order has no parameters");
  expect({profile_, "--workers", "4", "--schedule", "periodic,k=0"}, kUsage,
         "'periodic,k=0' is not of the form");
  expect({profile_, "--workers", "4", "--schedule", "1f1b"}, kUsage, "--microbatches");
  expect({profile_, "--workers", "4", "--vary", "microbatches"}, kUsage, "--vary has no effect");
  expect({profile_, "--workers", "2", "--network", folder_.Write("slow.yaml", "speeds: [1, 1.0e-5]\n")},
         kBadConfiguration,
         "slow.yaml: network: speeds: rank 1 has the speed 1e-05; a plan takes 0.001 to 1000");
  expect({profile_, "--workers", "4", "--schedule", "order"}, kUsage, "--microbatches");
  expect({profile_, "--workers", "5", "--schedule", "order", "--microbatches", "4"}, kUsage,
         "5 ranks and the 4 layers");
  folder_.Write("network.yaml", "bandwidth: -1\n");
  expect({profile_, "--workers", "4", "--network", folder_ / "network.yaml"}, kBadConfiguration, "bandwidth");
  folder_.Write("network.yaml", "speeds: [1, 0.5]\n");
  expect({profile_, "--workers", "4", "--network", folder_ / "network.yaml"}, kBadConfiguration,
         "network.yaml: network: speeds: there are 2; the schedule has 4 ranks");
  folder_.Write("network.yaml", "nodes: [1, 2]\n");
  expect({profile_, "--workers", "4", "--network", folder_ / "network.yaml"}, kBadConfiguration,
         "network.yaml: network: nodes: the nodes have 3 ranks together; the schedule has 4");
  expect({profile_, "--workers", "4", "--bandwidth", "-1"}, kUsage, "\"-1\" is not a number");
  expect({profile_, "--workers", "4", "--bandwidth", "1e-320"}, kUsage, "\"1e-320\" is too small");
  expect({profile_, "--workers", "4", "--flops", "0"}, kUsage, "--flops: must be above 0");
  expect({profile_}, kUsage, "--workers");
  expect({folder_ / "missing.json", "--workers", "4"}, kBadConfiguration, "cannot read");
  const std::string run = WriteSmallRun(folder_, {});
  expect({run, "--workers", "2", "--profile", profile_}, kBadConfiguration, "4 layers, and the model of");
  expect({run, "--workers", "2", "--memory", "1KB"}, kNothingFits, "would do");
  expect({run, "--workers", "2", "--memory", "1KB", "--schedule", "1f1b"}, kNothingFits, "would do");
  expect({run, "--workers", "2", "--memory", "0.5", "--schedule", "1f1b"}, kNothingFits, "would do");
  for (const char* schedule : {"1f1b", "order"}) {
    expect({run, "--workers", "2", "--schedule", schedule, "--time-limit", "0"}, kNothingFits,
           "the time for the search was over before a plan was found; give more with --time-limit");
  }
  const std::string slow =
      folder_.Write("slow.json",
                    R"({"layers": [{"forward": 1.1, "backward": 2, "output_bytes": 1, "weight_bytes": 10},
          {"forward": 1.3, "backward": 2, "output_bytes": 1, "weight_bytes": 10}], "bandwidth": 1e-10})");
  expect({slow, "--workers", "2", "--memory", "15", "--schedule", "periodic"}, kUsage,
         "the period of a pattern is not known");
}

TEST_F(PlanCommand, MemoryThatWouldDo_Does) {
  const std::string run = WriteSmallRun(folder_, {});
  const std::vector<std::vector<std::string>> plans = {
      {run},
      {run, "--schedule", "1f1b"},
      {run, "--schedule", "gpipe"},
      {run, "--schedule", "order"},
      {run, "--schedule", "periodic"},
      {run, "--schedule", "periodic,k=2,contiguous"},
      {profile_},
      {profile_, "--microbatches", "4"},
      {profile_, "--microbatches", "4", "--schedule", "1f1b"},
      {profile_, "--microbatches", "4", "--schedule", "order"},
  };
  for (std::vector<std::string> words : plans) {
    SCOPED_TRACE(absl::StrJoin(words, " "));
    words.insert(words.end(), {"--workers", "2", "--time-limit", "60", "--memory", "2"});
    const CommandResult refused = Plan(words);
    EXPECT_EQ(refused.code, kNothingFits) << refused.err;
    const size_t at = refused.err.rfind('(');
    ASSERT_NE(at, std::string::npos) << refused.err;
    ASSERT_THAT(refused.err.substr(at), HasSubstr(" bytes) would do"));
    words.back() = refused.err.substr(at + 1, refused.err.find(' ', at) - at - 1);
    EXPECT_EQ(Plan(words).code, 0) << words.back();
  }
}

TEST_F(PlanCommand, PeakOfAnOrder_IsEnoughForIt) {
  const std::string run = WriteSmallRun(folder_, {});
  std::vector<std::string> words = {run, "--workers", "2", "--schedule", "order", "-o", "json"};
  const CommandResult free = Plan(words);
  ASSERT_EQ(free.code, 0) << free.err;
  double most = 0;
  const Json planned = Json::parse(free.out);
  for (const double bytes : planned["peak_bytes"]) most = std::max(most, bytes);
  words.insert(words.end(), {"--memory", std::to_string(static_cast<int64_t>(most))});
  const CommandResult limited = Plan(words);
  ASSERT_EQ(limited.code, 0) << limited.err;
  EXPECT_LE(Json::parse(limited.out)["step"], planned["step"]);
}

// No family takes 5 ranks with 4 micro-batches, and 4 ranks do.
TEST_F(PlanCommand, OneMoreRank_DoesNotMakeThePlanSlower) {
  Json profile = {{"layers", Json::array()}};
  for (int l = 0; l < 4; ++l) profile["layers"].push_back({{"forward", 1}, {"backward", 2}});
  const std::string equal = folder_.Write("equal.json", profile.dump());
  const auto planned = [&](const char* ranks) {
    const CommandResult plan = Plan({equal, "--workers", ranks, "--microbatches", "4", "-o", "json"});
    EXPECT_EQ(plan.code, 0) << plan.err;
    return Json::parse(plan.out);
  };
  const Json four = planned("4"), five = planned("5");
  EXPECT_LE(five["step"], four["step"]);
  EXPECT_EQ(five["peak_bytes"].size(), 4u);
  EXPECT_EQ(five["rank_bytes"].size(), 4u);
}

// Planned with all of the memory, the pattern is predicted to need more. A pattern in less memory fits.
TEST_F(PlanCommand, MoreMemory_StillHasAPattern) {
  folder_.Write("text.txt", std::string(200, 'a'));
  const std::string run = folder_.Write("gpt.yaml",
                                        "model: {gpt: {layers: 4, width: 16, heads: 2, context: 8}}\n"
                                        "data: {text: {path: text.txt}}\n"
                                        "train: {steps: 2, batch: 8, microbatches: 4}\n"
                                        "stages: 2\nschedule: 1f1b\n");
  for (const char* memory : {"217602", "300000"}) {
    const CommandResult plan =
        Plan({run, "--workers", "2", "--bandwidth", "100000", "--schedule", "periodic", "--memory", memory});
    EXPECT_EQ(plan.code, 0) << memory << plan.err;
  }
}

// Copies that take long are worse than one rank that does it all.
TEST_F(PlanCommand, PatternThatLeavesRanksEmpty_CountsThoseThatItHas) {
  const std::string run = WriteSmallRun(folder_, {});
  const CommandResult plan =
      Plan({run, "--workers", "2", "--bandwidth", "1", "--schedule", "periodic", "-o", "json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const Json json = Json::parse(plan.out);
  EXPECT_EQ(json["peak_bytes"].size(), 1u);
  EXPECT_EQ(json["rank_bytes"].size(), 1u);
  // A profile alone has no micro-batches, so nothing is predicted.
  const CommandResult alone = Plan({profile_, "--workers", "6", "-o", "json"});
  ASSERT_EQ(alone.code, 0) << alone.err;
  const Json of_profile = Json::parse(alone.out);
  EXPECT_EQ(of_profile["ranks"], 4);
  EXPECT_EQ(of_profile["peak_bytes"].size(), 4u);
  EXPECT_EQ(of_profile["held_bytes"].size(), 4u);
  EXPECT_EQ(of_profile["rank_bytes"].size(), 4u);
}

// The links are so slow that one rank does it all.
TEST_F(PlanCommand, AutoPlanOfFewerRanksThanProcesses_IsTrained) {
  const std::string run = WriteSmallRun(
      folder_, {{"schedule", "{auto: {time_limit: 1}}"}, {"stages", ""}, {"network", "{bandwidth: 1}"}});
  const CommandResult train =
      Command::Run({"weft", "train", run, "--processes", "2", "--out", folder_ / "out", "--until", "2"}, 180);
  ASSERT_EQ(train.code, 0) << train.err;
  EXPECT_THAT(train.err, HasSubstr(" on 1 rank"));
  EXPECT_THAT(train.err, HasSubstr("jobs were timed with 2 ranks busy, and with 1 they may take less"));
  const CommandResult resumed = Command::Run(
      {"weft", "train", run, "--processes", "2", "--resume", folder_ / "out", "--out", folder_ / "rest"},
      180);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
}

TEST_F(PlanCommand, ProfileOfAnotherModel_IsRefusedByItsWeights) {
  const std::string run = WriteSmallRun(folder_, {});
  Json profile = {{"layers", Json::array()}};
  for (int l = 0; l < 6; ++l) profile["layers"].push_back({{"forward", 1}, {"weight_bytes", 4}});
  std::ofstream(profile_) << profile.dump();
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"weft", "plan", run, "--workers", "2"},
                                             {"weft", "compare", run},
                                             {"weft", "compare", run, "--ranks", "2"},
                                             {"weft", "simulate", run},
                                             {"weft", "simulate", run, "--schedule", "gpipe"}}) {
    std::vector<std::string> words = command;
    words.insert(words.end(), {"--profile", profile_});
    const CommandResult refused = Command::Run(words);
    EXPECT_EQ(refused.code, kBadConfiguration) << command[1];
    EXPECT_THAT(refused.err,
                HasSubstr("layers.json is of another model: its layer 0 has 4 bytes of weights, and that of "
                          "the run small has"))
        << command[1];
  }
}

TEST_F(PlanCommand, PlanForAnotherModel_IsRefused) {
  const std::string plan = folder_.Write(
      "plan.yaml", Plan({WriteSmallRun(folder_), "--workers", "2", "--schedule", "1f1b", "-o", "yaml"}).out);
  const std::string model = "{gpt: {layers: 4, width: 64, heads: 2, context: 32}}";  // as many layers
  const std::string by_flag = WriteSmallRun(folder_, {{"model", model}});
  const CommandResult refused = Command::Run({"weft", "train", by_flag, "--plan", plan});
  EXPECT_EQ(refused.code, kBadConfiguration);
  EXPECT_THAT(refused.err, HasSubstr("plan.yaml is for another model: its weights have"));
  const std::string by_file = folder_.Write(
      "named.yaml", absl::StrCat("name: named\nmodel: ", model, "\ndata: {text: {path: text.txt}}\n",
                                 "train: {steps: 1, batch: 16}\nschedule: {file: plan.yaml}\n"));
  const CommandResult named = Command::Run({"weft", "simulate", by_file});
  EXPECT_EQ(named.code, kBadConfiguration);
  EXPECT_THAT(named.err, HasSubstr("named.yaml:5: schedule: "));
}

TEST_F(PlanCommand, RunFile_IsPlannedAtLeastAsFastAsCompareFinds) {
  const std::string run = WriteSmallRun(folder_, {});
  const CommandResult compared = Command::Run({"weft", "compare", run, "--ranks", "2", "-o", "json"});
  ASSERT_EQ(compared.code, 0) << compared.err;
  double best = 0;
  const Json rows = Json::parse(compared.out);
  for (const Json& row : rows["schedules"]) {
    if (row["fits"] == true && row["staleness"] == 0 && (best == 0 || row["step_time"] < best))
      best = row["step_time"];
  }
  const CommandResult planned = Plan({run, "--workers", "2", "-o", "json"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Json plan = Json::parse(planned.out);
  EXPECT_LE(plan["step"], best * (1 + 1e-9));
  EXPECT_GE(plan["step"], plan["step_lower_bound"].get<double>() * (1 - 1e-9));
  EXPECT_FALSE(plan["others"].empty());
  const CommandResult one = Plan({run, "--workers", "2", "--schedule", "1f1b", "-o", "json"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(Json::parse(one.out)["schedule"], "1f1b");
  EXPECT_GE(Json::parse(one.out)["step"], plan["step"]);
}

// Expects that the bytes of each rank's classes add up to its peak.
void ExpectClassesAddUp(const Json& plan) {
  ASSERT_EQ(plan["rank_bytes"].size(), plan["peak_bytes"].size());
  for (size_t r = 0; r < plan["rank_bytes"].size(); ++r) {
    double sum = 0;
    for (const auto& [name, bytes] : plan["rank_bytes"][r].items()) {
      EXPECT_GE(bytes, 0) << name;
      sum += bytes.get<double>();
    }
    EXPECT_EQ(sum, plan["peak_bytes"][r]) << "rank " << r;
  }
}

// A tied parameter is a stage, and no rank is planned for it. Its copies and their gradients are bytes on the
// link to the head.
TEST_F(PlanCommand, SettingsOfANamedSchedule_GoBeforeTheRunFiles) {
  const auto planned = [&](const std::string& run, const std::string& schedule, const char* form) {
    const CommandResult result = Plan({run, "--workers", "2", "--schedule", schedule, "-o", form});
    EXPECT_EQ(result.code, 0) << schedule << result.err;
    return result.out;
  };
  const auto activations = [&](const std::string& run, const std::string& schedule) {
    return Json::parse(planned(run, schedule, "json"))["activations"];
  };
  const std::string run = WriteSmallRun(folder_, {{"schedule", "{1f1b: {}, activations: recompute}"}});
  EXPECT_EQ(activations(run, "1f1b"), "recompute");
  EXPECT_EQ(activations(run, "1f1b,activations=retain"), "retain");
  EXPECT_EQ(activations(run, "1f1b,activations=retain/recompute"), "retain/recompute");
  const std::string plain = WriteSmallRun(folder_, {});
  EXPECT_EQ(activations(plain, "ddp,activations=recompute"), "recompute");
  EXPECT_THAT(planned(plain, "ddp,reduction=fast", "yaml"), HasSubstr("  reduction: fast\n"));
  Json profile = {{"layers", Json::array()}, {"activations", "recompute"}};
  for (const int forward : {1, 1, 1, 1, 2, 2}) profile["layers"].push_back({{"forward", forward}});
  const std::string measured = folder_.Write("recomputed.json", profile.dump());
  const CommandResult other = Plan({plain, "--workers", "2", "--schedule", "1f1b,activations=retain",
                                    "--profile", measured, "-o", "json"});
  EXPECT_EQ(other.code, kUsage);
  EXPECT_THAT(other.err, HasSubstr("recomputed.json was measured under recompute"));
  const CommandResult same =
      Plan({plain, "--workers", "2", "--schedule", "1f1b,activations=recompute", "--profile", measured});
  EXPECT_EQ(same.code, 0) << same.err;
  const CommandResult alone =
      Plan({profile_, "--workers", "2", "--microbatches", "4", "--schedule", "1f1b,activations=recompute"});
  EXPECT_EQ(alone.code, kUsage);
  EXPECT_THAT(alone.err, HasSubstr("a plan for a profile alone has `activations: retain`"));
}

TEST_F(PlanCommand, TiedModel_IsPlannedComparedAndTrained) {
  const std::string text = folder_ / "text.txt", run = folder_ / "tied.yaml";
  std::ofstream(text) << std::string(2000, 'a') << std::string(2000, 'b');
  std::ofstream(run) << "model: {gpt: {layers: 4, width: 16, heads: 2, context: 8, tied: true}}\n"
                     << "data: {text: {path: text.txt}}\n"
                     << "train: {steps: 2, batch: 8, microbatches: 4, optimizer: {adamw: {lr: 0.01}}}\n"
                     << "stages: 3\nschedule: 1f1b\n";
  const CommandResult planned = Plan({run, "--workers", "2", "-o", "json"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Json plan = Json::parse(planned.out);
  int layers = 0;
  for (const Json& of_stage : plan["stages"]) layers += of_stage.get<int>();
  EXPECT_EQ(layers, 7);
  EXPECT_GE(plan["stages"][0], 2) << "the tied layer is in no stage by itself";
  for (const char* schedule : {"1f1b", "ddp", "periodic"}) {
    SCOPED_TRACE(schedule);
    const CommandResult under = Plan({run, "--workers", "2", "--schedule", schedule, "-o", "json"});
    ASSERT_EQ(under.code, 0) << under.err;
    ExpectClassesAddUp(Json::parse(under.out));
  }
  const CommandResult piped = Plan({run, "--workers", "2", "--schedule", "1f1b", "-o", "json"});
  const Json placement = Json::parse(piped.out)["placement"];
  ASSERT_EQ(placement.size(), 2u);
  EXPECT_EQ(placement[0]["ranks"], Json::array({0}));
  EXPECT_EQ(placement[1]["ranks"], Json::array({1}));
  const std::string file = folder_ / "plan.yaml";
  std::ofstream(file) << Plan({run, "--workers", "2", "-o", "yaml"}).out;
  const CommandResult trained =
      Command::Run({"weft", "train", run, "--plan", file, "--out", folder_ / "out"});
  EXPECT_EQ(trained.code, 0) << trained.err;

  const CommandResult compared =
      Command::Run({"weft", "compare", run, "--schedules", "1f1b,gpipe", "-o", "json"});
  ASSERT_EQ(compared.code, 0) << compared.err;
  const Json rows = Json::parse(compared.out);
  EXPECT_EQ(rows["stages"], 3);
  std::ofstream(folder_ / "apart.yaml") << "model: {gpt: {layers: 4, width: 16, heads: 2, context: 8}}\n"
                                        << "data: {text: {path: text.txt}}\ntrain: {steps: 2, batch: 8, "
                                           "microbatches: 4}\nstages: 3\nschedule: 1f1b\n";
  const Json apart = Json::parse(
      Command::Run({"weft", "compare", folder_ / "apart.yaml", "--schedules", "1f1b", "-o", "json"}).out);
  EXPECT_EQ(rows["schedules"][0]["ranks"], 3);
  const double copies =
      2.0 * 4 * 256 * 16 * 4;  // the embedding there, its gradient back, for each micro-batch
  EXPECT_DOUBLE_EQ(
      rows["schedules"][0]["bytes_sent"].get<double>() - apart["schedules"][0]["bytes_sent"].get<double>(),
      copies);
}

// The network has ranks for other schedules too.
TEST_F(PlanCommand, RankOfHalfTheSpeed_GetsLessWork) {
  folder_.Write("network.yaml", "speeds: [0.5, 1, 1, 1]\nnodes: [1, 3]\n");
  Json profile = {{"layers", Json::array()}};
  for (int l = 0; l < 6; ++l) profile["layers"].push_back({{"forward", 1}, {"backward", 1}});
  std::ofstream(profile_) << profile.dump();
  const CommandResult pattern =
      Plan({profile_, "--workers", "2", "--network", folder_ / "network.yaml", "-o", "json"});
  ASSERT_EQ(pattern.code, 0) << pattern.err;
  EXPECT_EQ(Json::parse(pattern.out)["period"], 8);  // 4 layers on the fast one, 2 on the other
  EXPECT_EQ(Json::parse(pattern.out)["optimal"], true);
  const CommandResult family = Plan({profile_, "--workers", "2", "--network", folder_ / "network.yaml",
                                     "--schedule", "1f1b", "--microbatches", "16", "-o", "json"});
  ASSERT_EQ(family.code, 0) << family.err;
  EXPECT_EQ(Json::parse(family.out)["stages"], Json({2, 4}));
}

TEST_F(PlanCommand, LittleMemory_IsKeptByASlowerStep) {
  const std::string run = WriteSmallRun(folder_, {});
  const auto plan = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {run, "--workers", "2", "--schedule", "gpipe", "-o", "json"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult planned = Plan(words);
    EXPECT_EQ(planned.code, 0) << planned.err;
    return Json::parse(planned.out);
  };
  const auto most = [](const Json& plan) {
    double bytes = 0;
    for (const double of_rank : plan["peak_bytes"]) bytes = std::max(bytes, of_rank);
    return bytes;
  };
  const Json free = plan({});
  EXPECT_EQ(free["activations"], "retain");
  const double memory = 0.85 * most(free);
  const Json tight = plan({"--memory", std::to_string(static_cast<int64_t>(memory))});
  EXPECT_LE(most(tight), memory);
  EXPECT_GE(tight["step"], free["step"]);
  EXPECT_EQ(tight["schedule"], "gpipe");
}

// The fastest cut does not fit with all activations. It does where the larger stage moves them to the host.
TEST_F(PlanCommand, StagesOffload_WhereThatIsFaster) {
  Json profile = {{"layers", Json::array()}, {"activations", "retain"}};
  for (const int forward : {1, 1, 1, 1, 2, 2}) profile["layers"].push_back({{"forward", forward}});
  const std::string file = folder_.Write("profile.json", profile.dump());
  const std::string run = WriteSmallRun(folder_, {});
  const auto plan = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {run,         "--workers", "2",  "--schedule", "gpipe",
                                      "--profile", file,        "-o", "json"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult planned = Plan(words);
    EXPECT_EQ(planned.code, 0) << planned.err;
    return Json::parse(planned.out);
  };
  const Json free = plan({});
  EXPECT_EQ(free["stages"], Json({4, 2}));
  const std::string memory = std::to_string(static_cast<int64_t>(0.8 * free["peak_bytes"][0].get<double>()));
  const Json tight = plan({"--memory", memory}), slow = plan({"--memory", memory, "--host-bandwidth", "1"});
  EXPECT_GT(tight["step"], free["step"]);
  EXPECT_EQ(slow["step"], tight["step"]);
  EXPECT_EQ(slow["activations"], tight["activations"]);
  const Json fast = plan({"--memory", memory, "--host-bandwidth", "1e15"});
  EXPECT_THAT(fast["activations"].get<std::string>(), HasSubstr("offload"));
  EXPECT_LT(fast["step"], tight["step"]);
  profile["host_bandwidth"] = 1e15;
  folder_.Write("profile.json", profile.dump());
  EXPECT_EQ(plan({"--memory", memory})["step"], fast["step"]) << "as the profile says";
  const std::string offloads =
      WriteSmallRun(folder_, {{"schedule", "{gpipe: {}, activations: offload}"}, {"memory", memory}});
  const CommandResult unknown = Plan({offloads, "--workers", "2", "--schedule", "gpipe"});
  EXPECT_EQ(unknown.code, 0) << unknown.err;
  EXPECT_THAT(unknown.err,
              HasSubstr("so no stage is planned to offload; give --host-bandwidth, or a profile"));
}

TEST_F(PlanCommand, CopiesOfUnknownTimeWithoutALimitOfMemory_TakeNone) {
  const std::string offloads = WriteSmallRun(folder_, {{"schedule", "{gpipe: {}, activations: offload}"}});
  const CommandResult unknown = Plan({offloads, "--workers", "2", "--schedule", "gpipe", "-o", "json"});
  ASSERT_EQ(unknown.code, 0) << unknown.err;
  EXPECT_THAT(unknown.err, HasSubstr("all stages are planned to offload, with copies that take no time"));
  EXPECT_EQ(Json::parse(unknown.out)["activations"], "offload");
}

TEST_F(PlanCommand, HostBandwidthWithoutEffect_IsRefused) {
  const std::string run = WriteSmallRun(folder_, {});
  Json profile = {{"layers", Json::array()}};
  for (const int forward : {1, 1, 1, 1, 2, 2}) profile["layers"].push_back({{"forward", forward}});
  const std::string file = folder_.Write("profile.json", profile.dump());
  const auto refused = [&](std::vector<std::string> words, const char* why) {
    words.insert(words.begin(), "weft");
    words.insert(words.end(), {"--host-bandwidth", "1e9"});
    const CommandResult result = Command::Run(words);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(why));
  };
  refused({"plan", run, "--workers", "2"}, "may offload without a limit of memory; give --memory");
  refused({"plan", file, "--workers", "2"}, "a plan for a profile alone retains all activations");
  const char* const other = "profile.json are not of `activations: retain`";
  refused({"plan", run, "--workers", "2", "--memory", "1GB", "--profile", file}, other);
  refused({"compare", run, "--profile", file}, other);
  refused({"simulate", run, "--profile", file}, other);
  refused({"compare", run}, "no schedule here has `activations: offload`");
  refused({"simulate", run}, "no stage has `activations: offload`");
}

TEST_F(PlanCommand, PlanThatOffloads_TrainsWithinTheBytesThatItSays) {
  Json profile = {{"layers", Json::array()}, {"activations", "retain"}, {"host_bandwidth", 1e15}};
  for (const int forward : {1, 1, 1, 1, 2, 2}) profile["layers"].push_back({{"forward", forward}});
  const std::string file = folder_.Write("profile.json", profile.dump());
  const std::string run = WriteSmallRun(folder_, {});
  const auto plan = [&](std::vector<std::string> more, const char* form) {
    std::vector<std::string> words = {run,         "--workers", "2",  "--schedule", "gpipe",
                                      "--profile", file,        "-o", form};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult planned = Plan(words);
    EXPECT_EQ(planned.code, 0) << planned.err;
    return planned.out;
  };
  const Json free = Json::parse(plan({}, "json"));
  const std::string memory = std::to_string(static_cast<int64_t>(0.8 * free["peak_bytes"][0].get<double>()));
  const Json said = Json::parse(plan({"--memory", memory}, "json"));
  folder_.Write("plan.yaml", plan({"--memory", memory}, "yaml"));
  const std::string planned =
      WriteSmallRun(folder_, {{"schedule", "{file: plan.yaml}"}, {"stages", ""}, {"memory", memory}});
  const std::string out = folder_ / "out";
  const CommandResult train = Command::Run({"weft", "train", planned, "--processes", "2", "--out", out}, 180);
  ASSERT_EQ(train.code, 0) << train.err;
  std::ifstream written(out + "/summary.json");
  const Json summary = Json::parse(written);
  const CommandResult simulated = Command::Run({"weft", "simulate", planned, "-o", "json"});
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  const Json simulation = Json::parse(simulated.out);
  double moved = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const Json& measured = summary["peak_bytes"][rank];
    const Json& predicted = simulation["rank_stats"][rank];
    for (const char* name : {"weights", "gradients", "optimizer", "activations", "buffers"}) {
      EXPECT_GE(measured[name], predicted["certain_peak_bytes"][name]) << name << " of rank " << rank;
      EXPECT_LE(measured[name], predicted["peak_bytes"][name]) << name << " of rank " << rank;
      EXPECT_LE(measured[name], said["rank_bytes"][rank][name]) << name << " of rank " << rank;
    }
    moved += measured.value("host", 0.0);
  }
  EXPECT_GT(moved, 0);
}

TEST_F(PlanCommand, Placement_SaysTheLayersOfStagesAndTheBytesOfRanks) {
  const std::string run = WriteSmallRun(folder_, {});
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {run, "--workers", "2"},
           {run, "--workers", "2", "--schedule", "ddp"},
           {profile_, "--workers", "4", "--memory", "4"},
           {profile_, "--workers", "2", "--microbatches", "4", "--schedule", "1f1b"}}) {
    std::vector<std::string> flags = words;
    flags.insert(flags.end(), {"-o", "json"});
    const CommandResult planned = Plan(flags);
    ASSERT_EQ(planned.code, 0) << planned.err;
    const Json plan = Json::parse(planned.out);
    int next = 0;
    ASSERT_EQ(plan["placement"].size(), plan["stages"].size());
    for (size_t s = 0; s < plan["stages"].size(); ++s) {
      const Json& stage = plan["placement"][s];
      EXPECT_EQ(stage["layers"], Json({next, next + plan["stages"][s].get<int>() - 1}));
      EXPECT_FALSE(stage["ranks"].empty());
      if (plan.contains("rank_of_stage")) {
        EXPECT_EQ(stage["ranks"], Json::array({plan["rank_of_stage"][s]}));
      }
      next += plan["stages"][s].get<int>();
    }
    SCOPED_TRACE(absl::StrJoin(words, " "));
    ExpectClassesAddUp(plan);
  }
  const CommandResult table = Plan({run, "--workers", "2", "--schedule", "1f1b"});
  EXPECT_THAT(table.out, testing::StartsWith("step "));
  EXPECT_THAT(table.out, testing::ContainsRegex(
                             "rank +peak +weights +gradients +optimizer +activations +buffers +layers"));
  EXPECT_THAT(table.out, HasSubstr("(embedding to block"));
}

TEST_F(PlanCommand, PlanForOtherLayers_IsRefusedByTrain) {
  const std::string run = WriteSmallRun(folder_, {});
  folder_.Write("plan.yaml", "schedule: 1f1b\nstages: [3, 2]\n");
  const CommandResult refused =
      Command::Run({"weft", "train", run, "--plan", folder_ / "plan.yaml", "--out", folder_ / "out"});
  EXPECT_EQ(refused.code, kBadConfiguration);
  EXPECT_THAT(refused.err, HasSubstr("stages"));
  folder_.Write("plan.yaml", "schedule: 1f1b\n");
  const CommandResult none =
      Command::Run({"weft", "train", run, "--plan", folder_ / "plan.yaml", "--out", folder_ / "out"});
  EXPECT_EQ(none.code, kBadConfiguration);
  EXPECT_THAT(none.err, HasSubstr("is no plan"));
}

TEST_F(PlanCommand, ScheduleAutoWithinMemoryThatNothingFits_IsAWrongRunFile) {
  const std::string run = WriteSmallRun(
      folder_, {{"schedule", "{auto: {ranks: 2, time_limit: 20}}"}, {"stages", ""}, {"memory", "100KB"}});
  const CommandResult train = Command::Run({"weft", "train", run, "--out", folder_ / "out"}, 180);
  EXPECT_EQ(train.code, kBadConfiguration);
  EXPECT_THAT(train.err, HasSubstr("run.yaml: memory: nothing fits"));
}

TEST_F(PlanCommand, ScheduleAuto_MeasuresPlansTrainsAndLeavesThePlan) {
  const std::string run =
      WriteSmallRun(folder_, {{"schedule", "{auto: {ranks: 2, time_limit: 1}}"}, {"stages", ""}});
  const std::string out = folder_ / "out";
  const CommandResult train = Command::Run({"weft", "train", run, "--out", out, "--until", "2"}, 180);
  ASSERT_EQ(train.code, 0) << train.err;
  EXPECT_THAT(train.err, HasSubstr("schedule: auto chose "));
  EXPECT_THAT(train.err, HasSubstr(" a step"));
  std::ifstream summary(out + "/summary.json");
  EXPECT_GT(Json::parse(summary)["planned_step_seconds"], 0);
  const CommandResult explained = Command::Run({"weft", "explain", out});
  EXPECT_THAT(explained.out, HasSubstr(out + "/profile.json")) << explained.err;
  const CommandResult simulated =
      Command::Run({"weft", "simulate", out + "/plan.yaml", "--microbatches", "4", "-o", "json"});
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  EXPECT_EQ(Json::parse(simulated.out)["ranks"], 2);
  const CommandResult resumed =
      Command::Run({"weft", "train", run, "--resume", out, "--out", folder_ / "rest"}, 180);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, testing::Not(HasSubstr("auto chose")));
  const CommandResult plain = Command::Run(
      {"weft", "train", run, "--plan", out + "/plan.yaml", "--reference", "--out", folder_ / "plain"}, 180);
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(ReadTensors(folder_ / "rest/checkpoint"), ReadTensors(folder_ / "plain/checkpoint"));
  const CommandResult submitted = Command::Run({"weft", "compare", run});
  EXPECT_EQ(submitted.code, kBadConfiguration);
  EXPECT_THAT(submitted.err, HasSubstr("auto is planned by weft train"));
}

// A budget that two ranks keep and one does not: what is refused on one rank is no reason to refuse the plan.
TEST_F(PlanCommand, ScheduleAutoOfAModelThatOnlyFitsInStages_IsPlannedAndTrained) {
  const auto most_of = [&](const char* workers) {
    const std::string run = WriteSmallRun(folder_, {});
    const CommandResult plan = Plan({run, "--workers", workers, "--schedule", "1f1b", "-o", "json"});
    EXPECT_EQ(plan.code, 0) << plan.err;
    const Json peaks = Json::parse(plan.out)["peak_bytes"];
    return *std::max_element(peaks.begin(), peaks.end());
  };
  const double one = most_of("1"), two = most_of("2");
  ASSERT_LT(1.2 * two, one);
  const std::string memory = std::to_string(static_cast<int64_t>((one + two) / 2));
  const std::string alone = WriteSmallRun(
      folder_, {{"schedule", "{lpp: {groups: 1, ranks: 1}}"}, {"stages", "1"}, {"memory", memory}});
  const CommandResult refused = Command::Run({"weft", "train", alone, "--out", folder_ / "alone"});
  EXPECT_EQ(refused.code, kBadConfiguration);
  EXPECT_THAT(refused.err, HasSubstr("memory"));
  const std::string run = WriteSmallRun(
      folder_, {{"schedule", "{auto: {ranks: 2, time_limit: 1}}"}, {"stages", ""}, {"memory", memory}});
  const CommandResult train = Command::Run({"weft", "train", run, "--out", folder_ / "out"}, 180);
  ASSERT_EQ(train.code, 0) << train.err;
  EXPECT_THAT(train.err, HasSubstr("schedule: auto chose "));
  const CommandResult plain =
      Command::Run({"weft", "train", run, "--reference", "--out", folder_ / "plain"}, 180);
  EXPECT_EQ(plain.code, 0) << plain.err;
}

TEST_F(PlanCommand, ManyLayers_EndInTimeOrAreRefused) {
  const auto layers = [&](int count) {
    Json profile = {{"layers", Json::array()}};
    for (int l = 0; l < count; ++l)
      profile["layers"].push_back({{"forward", 1 + l * 7 % 5}, {"activation_bytes", 1 + l * 3 % 4}});
    std::ofstream(profile_) << profile.dump();
    return Plan({profile_, "--workers", "8", "--memory", "600", "--time-limit", "1", "-o", "json"});
  };
  const CommandResult many = layers(100);
  ASSERT_EQ(many.code, 0) << many.err;
  const Json plan = Json::parse(many.out);
  EXPECT_GE(plan["period"], plan["lower_bound"]);
  const CommandResult more = layers(300);
  EXPECT_EQ(more.code, kBadConfiguration);
  EXPECT_THAT(more.err, HasSubstr("600 layers in a window, and at most 512"));
}

TEST_F(PlanCommand, DamagedPlan_IsNamed) {
  const std::string run = WriteSmallRun(folder_, {}), plan = folder_ / "plan.yaml";
  for (const auto& [text, message] : std::map<std::string, std::string>{
           {"stages: [2, 4]\nmicrobatches: 4294967300\n",
            "plan.yaml:3: microbatches: must be a whole number from 1 to 16777216, not 4294967300"},
           {"stages: [2, 4]\nmicrobatches: 0\n", "plan.yaml:3: microbatches: must be a whole number"},
           {"stages: [2, 4294967300]\nmicrobatches: 4\n", "plan.yaml:2: stages[1]: must be a whole number"},
           {"stages: []\nmicrobatches: 4\n", "plan.yaml:2: stages: is an empty list"}}) {
    std::ofstream(plan) << "schedule: 1f1b\n" << text;
    for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
             {"weft", "simulate", plan}, {"weft", "train", run, "--plan", plan, "--out", folder_ / "out"}}) {
      const CommandResult refused = Command::Run(command);
      EXPECT_EQ(refused.code, kBadConfiguration) << command[1] << text;
      EXPECT_THAT(refused.err, HasSubstr(message)) << command[1];
    }
  }
  std::ofstream(plan) << "stages: [2, 4]\nschedule: {1f1b: {in_flihgt: 3}}\n";
  const CommandResult refused = Command::Run({"weft", "train", run, "--plan", plan});
  EXPECT_EQ(refused.code, kBadConfiguration);
  EXPECT_THAT(refused.err, HasSubstr("plan.yaml:2: schedule.1f1b"));
}

TEST_F(PlanCommand, RunFileWithAPlan_TrainsToTheBitsOfThePlainLoop) {
  for (const std::string schedule : {"auto", "order"}) {
    SCOPED_TRACE(schedule);
    const std::string run = WriteSmallRun(folder_, {});
    const CommandResult plan = Plan({run, "--workers", "2", "--schedule", schedule, "-o", "yaml"});
    ASSERT_EQ(plan.code, 0) << plan.err;
    EXPECT_EQ(schedule == "order", plan.out.find("    actions: |\n      0F0,") != plan.out.npos) << plan.out;
    std::ofstream(folder_ / "plan.yaml") << plan.out;
    const std::string planned = WriteSmallRun(folder_, {{"schedule", "{file: plan.yaml}"}, {"stages", ""}});
    const std::string out = folder_ / schedule, plain = out + "-plain";
    ASSERT_EQ(Command::Run({"weft", "train", planned, "--out", out}, 120).code, 0);
    ASSERT_EQ(Command::Run({"weft", "train", planned, "--reference", "--out", plain}, 120).code, 0);
    const CommandResult differ = Command::Run({"weft", "diff", out, plain});
    EXPECT_EQ(differ.code, 0) << differ.out << differ.err;
  }
}

// Measured jobs take less than the formulas say. The run takes the figures with its plan.
TEST_F(PlanCommand, PlanFromAProfile_FitsAndTrainsWithinLessMemory) {
  const std::string run = WriteSmallRun(folder_, {});
  const std::string profile = folder_ / "profile.json", plan = folder_ / "plan.yaml", out = folder_ / "out";
  ASSERT_EQ(Command::Run({"weft", "profile", run, "-o", profile}, 120).code, 0);
  const auto planned = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {run, "--workers", "2", "--schedule", "gpipe"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult made = Plan(words);
    EXPECT_EQ(made.code, 0) << made.err;
    return made.out;
  };
  const auto most = [](const Json& plan) {
    int64_t bytes = 0;
    for (const double of_rank : plan["peak_bytes"]) bytes = std::max(bytes, static_cast<int64_t>(of_rank));
    return bytes;
  };
  const int64_t measured = most(Json::parse(planned({"--profile", profile, "-o", "json"})));
  EXPECT_LT(measured, most(Json::parse(planned({"-o", "json"}))));
  const std::string memory = std::to_string(measured);
  std::ofstream(plan) << planned({"--profile", profile, "--memory", memory, "-o", "yaml"});
  const std::string limited = WriteSmallRun(folder_, {{"memory", memory}});
  const CommandResult train =
      Command::Run({"weft", "train", limited, "--plan", plan, "--processes", "2", "--out", out}, 120);
  ASSERT_EQ(train.code, 0) << train.err;
  std::ifstream written(out + "/summary.json");
  const Json summary = Json::parse(written);
  EXPECT_EQ(summary["run"]["buffers"]["layers"].size(), 6u);
  for (const int64_t bytes : summary["most_bytes"]) EXPECT_LE(bytes, measured);
}

// A profile of layers gives times; bytes are those by which the run is admitted.
TEST_F(PlanCommand, BudgetBesideAProfile_SaysTheSameToEachCommand) {
  Json layer = {{"forward", 0.01}};
  for (const LayerBuffersField& field : kLayerBuffersFields) layer[field.in_profile] = 4096;
  const Json profile = {
      {"unit", "s"}, {"samples", 4}, {"activations", "retain"}, {"layers", std::vector(6, layer)}};
  const std::string file = folder_.Write("profile.json", profile.dump());
  std::map<std::string, std::string> keys = {
      {"schedule", "{ddp: {ranks: 2}}"}, {"stages", "2"}, {"buffers", "profile.json"}};
  const auto asked = [&](const char* command, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"weft", command, WriteSmallRun(folder_, keys), "--profile", file,
                                      "-o",   "json"};
    words.insert(words.end(), more.begin(), more.end());
    return Command::Run(words);
  };
  const std::vector<std::string> retained = {"--workers", "2", "--schedule",
                                             "ddp,ranks=2,activations=retain"};
  const double most = Json::parse(asked("plan", retained).out)["peak_bytes"][0];
  std::set<bool> answers;
  for (const double part : {0.5, 0.7, 0.8, 0.9, 1.0}) {
    keys["memory"] = std::to_string(static_cast<int64_t>(part * most));
    const bool fits = asked("plan", retained).code == 0;
    answers.insert(fits);
    EXPECT_EQ(asked("simulate", {}).code, fits ? 0 : kBadConfiguration) << part;
    const Json rows = Json::parse(asked("compare", {"--schedules", "ddp,ranks=2"}).out)["schedules"];
    EXPECT_EQ(rows[0]["fits"], fits) << part;
    const CommandResult trained =
        Command::Run({"weft", "train", folder_ / "run.yaml", "--out", folder_ / std::to_string(part)}, 120);
    EXPECT_EQ(trained.code, fits ? 0 : kBadConfiguration) << part << trained.err;
  }
  EXPECT_EQ(answers.size(), 2u);
}

// Recomputing stages fit where the profile's bytes, which are retained, would not.
TEST_F(PlanCommand, PlanThatRecomputesByAProfile_IsSimulatedWithItsStep) {
  Json layer = {{"forward", 0.01}, {"activation_bytes", 1e9}};
  for (const LayerBuffersField& field : kLayerBuffersFields) layer[field.in_profile] = 4096;
  const Json profile = {
      {"unit", "s"}, {"samples", 4}, {"activations", "retain"}, {"layers", std::vector(6, layer)}};
  const std::string file = folder_.Write("profile.json", profile.dump());
  const std::string run = WriteSmallRun(folder_, {});
  const auto planned = [&](const std::string& memory, const char* form) {
    std::vector<std::string> words = {run,          "--profile", file, "--workers", "2",
                                      "--schedule", "gpipe",     "-o", form};
    if (!memory.empty()) words.insert(words.end(), {"--memory", memory});
    return Plan(words).out;
  };
  const double most = Json::parse(planned("", "json"))["peak_bytes"][0];
  const std::string memory = std::to_string(static_cast<int64_t>(0.5 * most));
  const Json plan = Json::parse(planned(memory, "json"));
  ASSERT_THAT(plan["schedule"].get<std::string>(), HasSubstr("recompute"));
  folder_.Write("plan.yaml", planned(memory, "yaml"));
  const std::string limited =
      WriteSmallRun(folder_, {{"schedule", "{file: plan.yaml}"}, {"stages", ""}, {"memory", memory}});
  const CommandResult simulated =
      Command::Run({"weft", "simulate", limited, "--profile", file, "-o", "json"});
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  EXPECT_NEAR(Json::parse(simulated.out)["period"], plan["step"], 1e-6);
  const CommandResult compared =
      Command::Run({"weft", "compare", limited, "--profile", file, "--schedules", "1f1b", "-o", "json"});
  const Json comparison = Json::parse(compared.out);
  bool chosen = false;
  for (const Json& row : comparison["schedules"]) {
    if (!row["chosen"]) continue;
    chosen = true;
    EXPECT_NEAR(row.value("step_time", 0.0), plan["step"], 1e-6) << row;
  }
  EXPECT_TRUE(chosen);
}

// A run counts measured buffers only if it names them.
TEST_F(PlanCommand, BuffersThatTheRunLeaves_AreNotCountedButNamed) {
  Json layer = {{"forward", 0.01}};
  for (const LayerBuffersField& field : kLayerBuffersFields) layer[field.in_profile] = 64;
  const Json profile = {{"samples", 4}, {"layers", std::vector(6, layer)}};
  const std::string file = folder_.Write("profile.json", profile.dump());
  std::map<std::string, std::string> keys = {{"memory", "1500KB"}};
  const auto compared = [&] {
    return Command::Run(
        {"weft", "compare", WriteSmallRun(folder_, keys), "--profile", file, "--schedules", "gpipe"});
  };
  const CommandResult without = compared();
  EXPECT_THAT(without.out,
              AllOf(HasSubstr("does not fit"), HasSubstr("says `buffers: ` and the path of " + file)));
  keys["buffers"] = "profile.json";
  const CommandResult with = compared();
  EXPECT_EQ(with.code, 0) << with.err;
  EXPECT_THAT(with.out, Not(HasSubstr("buffers")));
}

TEST_F(PlanCommand, PlanFromAProfile_IsKeptWithTheRunAndExplainsIt) {
  const std::string run = WriteSmallRun(folder_, {});
  const std::string profile = folder_ / "profile.json", plan = folder_ / "plan.yaml", out = folder_ / "out";
  ASSERT_EQ(Command::Run({"weft", "profile", run, "-o", profile}, 120).code, 0);
  const CommandResult planned = Plan({run, "--profile", profile, "--workers", "2", "-o", "yaml"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  std::ofstream(plan) << planned.out;
  const CommandResult train = Command::Run({"weft", "train", run, "--plan", plan, "--out", out}, 120);
  ASSERT_EQ(train.code, 0) << train.err;
  EXPECT_THAT(train.err + train.out, HasSubstr(" a step, by the plan that it runs"));
  std::ifstream summary(out + "/summary.json"), kept(out + "/plan.yaml");
  EXPECT_GT(Json::parse(summary)["planned_step_seconds"], 0);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(kept), {}), planned.out);
  EXPECT_THAT(Command::Run({"weft", "explain", out}).out, HasSubstr(", from " + out + "/profile.json"));
  EXPECT_THAT(Command::Run({"weft", "explain", out, "--own-times"}).out,
              HasSubstr(", from the run's own job times"));

  // A profile that has changed is not the plan's.
  std::ofstream(profile, std::ios::app) << "\n";
  const std::string other = folder_ / "other";
  ASSERT_EQ(Command::Run({"weft", "train", run, "--plan", plan, "--out", other}, 120).code, 0);
  EXPECT_FALSE(std::ifstream(other + "/profile.json").is_open());
  EXPECT_TRUE(std::ifstream(other + "/plan.yaml").is_open());
  EXPECT_THAT(Command::Run({"weft", "explain", other}).out, HasSubstr("the run's own job times"));
}

// Between the memory that 1f1b needs and that of the next family, an order of its own uses all there is.
TEST_F(PlanCommand, OrderOfAPipeline_IsAPlanThatIsSimulatedWithItsStep) {
  folder_.Write("unequal.json", R"({"layers": [
      {"forward": 10, "backward": 20, "activation_bytes": 10}, {"forward": 20, "backward": 42, "activation_bytes": 20},
      {"forward": 31, "backward": 58, "activation_bytes": 30}, {"forward": 19, "backward": 40, "activation_bytes": 20}]})");
  const std::vector<std::string> problem = {
      folder_ / "unequal.json", "--workers", "4", "--microbatches", "8", "--memory", "90"};
  const auto planned = [&](std::vector<std::string> more) {
    more.insert(more.begin(), problem.begin(), problem.end());
    return Plan(more);
  };
  const CommandResult pipeline = planned({"--schedule", "1f1b", "-o", "json"});
  const CommandResult order = planned({"--schedule", "order", "-o", "json"});
  ASSERT_EQ(order.code, 0) << order.err;
  const Json json = Json::parse(order.out);
  EXPECT_EQ(json["schedule"], "file,path=planned_order");
  EXPECT_LT(json["step"], 0.95 * Json::parse(pipeline.out)["step"].get<double>());
  for (const Json& bytes : json["peak_bytes"]) EXPECT_LE(bytes, 90);

  std::ofstream(folder_ / "order.yaml") << planned({"--schedule", "order", "-o", "yaml"}).out;
  const CommandResult run =
      Command::Run({"weft", "simulate", folder_ / "order.yaml", "--profile", folder_ / "unequal.json",
                    "--memory", "90", "--steps", "4", "-o", "json"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NEAR(Json::parse(run.out)["period"], json["step"], 1e-6);
}

}  // namespace
}  // namespace weft::plan_test
