#include "coordinator/shell/spec_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace weft::spec_planner_test {
namespace {

using ::testing::HasSubstr;

nlohmann::json File() {
  return nlohmann::json::parse(R"({
    "name": "tiny", "model": {"mlp": {"layers": 4, "width": 8, "inputs": 4, "classes": 3}},
    "data": {"idx": {"images": "images", "labels": "labels"}},
    "train": {"steps": 7, "batch": 8, "microbatches": 4, "seed": 1, "optimizer": {"sgd": {"lr": 0.1}}},
    "stages": 4, "schedule": {"lpp": {"groups": 2, "ranks": 2}}})");
}

absl::StatusOr<std::shared_ptr<const RunPlan>> PlanText(const std::string& text) {
  absl::StatusOr<UnplannedRun> run = ReadRun(text);
  if (!run.ok()) return run.status();
  return run->plan();
}

TEST(SpecPlanner, GoodFile_GivesThePlan) {
  const auto plan = PlanText(File().dump());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)->name, "tiny");
  EXPECT_EQ((*plan)->steps, 7);
  EXPECT_EQ((*plan)->ranks(), 4);
  EXPECT_THAT((*plan)->schedule, HasSubstr("lpp"));
  size_t claimed = 0;
  for (const auto& rank : (*plan)->claim_order->at(0)) claimed += rank.size();
  EXPECT_EQ(claimed, static_cast<size_t>((*plan)->graph.jobs_per_step()));
}

// A coordinator that is started again plans a run that has moved to another schedule from both texts.
TEST(SpecPlanner, OtherSchedule_TakesThePlaceOfTheSubmittedOne) {
  const auto plan = PlanText(WithSchedule(File().dump(), R"({"ddp": {"ranks": "2"}, "rule": "sync"})"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)->schedule, "ddp,ranks=2");
  EXPECT_EQ((*plan)->ranks(), 2);
  EXPECT_EQ(WithSchedule("{", "{}"), "{");
}

TEST(SpecPlanner, WrongFile_SaysWhere) {
  EXPECT_THAT(std::string(PlanText("{").status().message()), HasSubstr("not JSON"));
  nlohmann::json file = File();
  file["train"]["microbatches"] = 3;
  EXPECT_THAT(std::string(PlanText(file.dump()).status().message()), HasSubstr("microbatches"));
  file = File();
  file["schedule"] = {{"1f1c", nlohmann::json::object()}};
  EXPECT_FALSE(PlanText(file.dump()).ok());
}

// The record of the run predicts it with the speed of each of its ranks.
TEST(SpecPlanner, NetworkWithFewerRanksThanTheSchedule_IsRefused) {
  nlohmann::json file = File();
  file["schedule"] = {{"ddp", {{"ranks", "2"}}}};
  file["network"] = {{"speeds", {1}}};
  const absl::Status few = PlanText(file.dump()).status();
  EXPECT_EQ(few.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(few.message()), HasSubstr("network: speeds: "));
  file["network"] = {{"nodes", {1}}};
  EXPECT_THAT(std::string(PlanText(file.dump()).status().message()), HasSubstr("network: nodes: "));
  file["network"] = {{"speeds", {1, 0.5}}};
  EXPECT_TRUE(PlanText(file.dump()).ok());
}

TEST(SpecPlanner, LargeRun_IsPlannedAside) {
  EXPECT_FALSE(ReadRun(File().dump())->slow);
  nlohmann::json file = File();
  file["train"]["batch"] = file["train"]["microbatches"] = 40'000;
  EXPECT_TRUE(ReadRun(file.dump())->slow);
}

TEST(SpecPlanner, NestedSpecification_IsRefusedBeforeAnyRecursion) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  for (const std::string key : {"model", "until", "stages", "schedule", "data", "name"}) {
    std::string text = File().dump();
    text.insert(1, absl::StrCat("\"", key, "\":", deep, ","));
    const auto plan = PlanText(text);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(plan.status().message()),
                HasSubstr("the run's specification is nested 33 levels deep"));
  }
}

}  // namespace
}  // namespace weft::spec_planner_test
