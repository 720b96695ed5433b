// `weft plan`: its answers and refusals on the command line, and that a run file trains with a plan to the
// bits of the plain loop.
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/checkpoint_tensors.h"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
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

TEST_F(PlanCommand, WhatIsWrongOrDoesNotFit_GetsASentenceAndItsCode) {
  const auto expect = [&](std::vector<std::string> words, int code, const std::string& text) {
    const CommandResult refused = Plan(words);
    EXPECT_EQ(refused.code, code) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(text));
    EXPECT_THAT(refused.out, testing::Not(HasSubstr("period")));
  };
  expect({profile_, "--workers", "4", "--memory", "3"}, kNothingFits, "4 B (4 bytes) would do");
  expect({profile_, "--workers", "4", "--schedule", "1f1b"}, kUsage, "'1f1b' cannot be planned");
  expect({profile_, "--workers", "4", "--bandwidth", "-1"}, kUsage, "\"-1\" is not a number");
  expect({profile_}, kUsage, "--workers");
  expect({folder_ / "missing.json", "--workers", "4"}, kBadConfiguration, "cannot read");
  const std::string run = WriteSmallRun(folder_, {});
  expect({run, "--workers", "2", "--profile", profile_}, kBadConfiguration, "4 layers, and the model of");
  expect({run, "--workers", "2", "--memory", "1KB"}, kNothingFits, "nothing fits");
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

TEST_F(PlanCommand, RunFileWithAPlan_TrainsToTheBitsOfThePlainLoop) {
  const std::string run = WriteSmallRun(folder_, {});
  const CommandResult plan = Plan({run, "--workers", "2", "-o", "yaml"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  std::ofstream(folder_ / "plan.yaml") << plan.out;
  const std::string planned = WriteSmallRun(folder_, {{"schedule", "{file: plan.yaml}"}, {"stages", ""}});
  ASSERT_EQ(Command::Run({"weft", "train", planned, "--out", folder_ / "planned"}, 120).code, 0);
  ASSERT_EQ(Command::Run({"weft", "train", planned, "--reference", "--out", folder_ / "plain"}, 120).code, 0);
  const CommandResult differ = Command::Run({"weft", "diff", folder_ / "planned", folder_ / "plain"});
  EXPECT_EQ(differ.code, 0) << differ.out << differ.err;
}

}  // namespace
}  // namespace weft
