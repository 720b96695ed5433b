// `weft plan --from`: a run is planned anew from its trace, and goes on under the plan to the bits of the
// plain loop.
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/disturbed_run.h"

namespace weft::measured_plan_test {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr int kNothingFits = 1, kUsage = 2, kBadConfiguration = 78;

class MeasuredPlanTest : public DisturbedRun {
 protected:
  // Writes a training of twelve micro-batches on two ranks.
  std::string WriteTwelve() const {
    return WriteRun("{ddp: {ranks: 2}}", 6,
                    {{"train",
                      "{steps: 6, batch: 12, microbatches: 12, seed: 1, clip_norm: 1.0, optimizer: "
                      "{adamw: {lr: 1.0e-3}}}"}});
  }
  CommandResult PlanFrom(std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"weft", "plan", "--from", out_};
    words.insert(words.end(), more.begin(), more.end());
    return Command::Run(words);
  }
  // Gives the jobs in the run's trace the times of ranks of speed 1 and 0.5, so that no other work of the
  // machine decides what is planned.
  void SetTimes() const {
    const std::map<std::string, int> times = {
        {"forward", 1000}, {"backward", 2000}, {"reduce", 50}, {"update", 50}};
    Json trace = Json::parse(ReadWholeFile(out_ + "/trace.json"));
    for (Json& event : trace["traceEvents"]) {
      const std::string kind = event.value("cat", "");
      const auto time = times.find(kind);
      if (time == times.end()) continue;
      event["args"].erase("delay");
      event["dur"] = time->second * (event["args"]["rank"] == 1 ? 2 : 1);
    }
    std::ofstream(out_ + "/trace.json") << trace.dump();
  }
};

TEST_F(MeasuredPlanTest, RankOfHalfTheSpeed_GetsHalfOfTheWorkAndTheRunGoesOn) {
  const std::string file = WriteTwelve();
  TrainReference(file);
  const CommandResult train =
      Command::Run({"weft", "train", file, "--processes", "2", "--out", out_, "--until", "3"}, kSeconds);
  ASSERT_EQ(train.code, 0) << train.err;
  SetTimes();
  // Links without a time, so that only the work counts.
  const CommandResult planned = PlanFrom({"--bandwidth", "1e18", "--latency", "1e-12", "-o", "json"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Json json = Json::parse(planned.out);
  EXPECT_NEAR(json["speeds"][0], 1, 1e-6);
  EXPECT_NEAR(json["speeds"][1], 0.5, 1e-6);
  EXPECT_GT(json["gain"], 0.2);
  EXPECT_LT(json["step"], json["present"]["step"]);
  EXPECT_GE(json["step"].get<double>() * (1 + 1e-9), json["step_lower_bound"].get<double>());
  EXPECT_EQ(json["schedule"], "custom,compute=b % 3 < 2 ? 0 : 1,order=1f1b,ranks=2");
  EXPECT_THAT(PlanFrom().out, HasSubstr("% less"));
  const CommandResult yaml = PlanFrom({"--bandwidth", "1e18", "--latency", "1e-12", "-o", "yaml"});
  std::ofstream(folder_ / "plan.yaml") << yaml.out;
  EXPECT_THAT(yaml.err, HasSubstr("rank 1 at 0.50; a step takes "));
  const CommandResult rest = Command::Run(
      {"weft", "train", file, "--plan", folder_ / "plan.yaml", "--resume", out_, "--out", out_}, kSeconds);
  ASSERT_EQ(rest.code, 0) << rest.err;
  ExpectTheReference();
  EXPECT_EQ(Summary()["schedule"], json["schedule"]);
}

TEST_F(MeasuredPlanTest, WhatIsWrong_GetsASentenceAndItsCode) {
  const auto expect = [&](const CommandResult& refused, int code, const std::string& text) {
    EXPECT_EQ(refused.code, code) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(text));
  };
  expect(PlanFrom(), kBadConfiguration, "is no folder; give that of a training's results");
  const std::string file = WriteRun("{ddp: {ranks: 2}}", 4);
  const CommandResult train =
      Command::Run({"weft", "train", file, "--processes", "2", "--out", out_}, kSeconds);
  ASSERT_EQ(train.code, 0) << train.err;
  ASSERT_EQ(PlanFrom().code, 0);
  expect(PlanFrom({"--memory", "1"}), kNothingFits, "the budget is 1 B");
  EXPECT_EQ(Json::parse(PlanFrom({"--memory", "1", "-o", "json"}).out),
            Json({{"from", out_}, {"fits", false}}));
  expect(PlanFrom({"--workers", "2"}), kUsage, "--from");
  expect(Command::Run({"weft", "plan"}), kUsage, "--from");
  folder_.Write("profile.json", R"({"layers": [{"forward": 1}, {"forward": 1}]})");
  expect(PlanFrom({"--profile", folder_ / "profile.json"}), kBadConfiguration, "2 layers, and the model of");
  // A plan for other layers is refused when the run goes on.
  folder_.Write("plan.yaml", "schedule: 1f1b\nstages: [2, 2, 1, 1]\n");
  expect(Command::Run({"weft", "train", WriteRun("{ddp: {ranks: 2}}", 8), "--plan", folder_ / "plan.yaml",
                       "--resume", out_ + "/checkpoint", "--out", folder_ / "other"}),
         kBadConfiguration, "--resume: ");
  std::ofstream(out_ + "/trace.json")
      << Command::Run({"weft", "simulate", "1f1b", "--stages", "2", "--microbatches", "4", "-o", "trace"})
             .out;
  expect(PlanFrom(), kBadConfiguration, "was simulated");
  std::filesystem::remove(out_ + "/trace.json");
  expect(PlanFrom(), kBadConfiguration, "has no trace.json");
}

}  // namespace
}  // namespace weft::measured_plan_test
