// Tests the status of a training for Kubeflow's Trainer.
#include "client/kubeflow/trainer_status.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace weft::trainer_status_test {
namespace {

using Json = nlohmann::json;

constexpr char kTime[] = "2026-01-23T10:30:45Z";

Json StatusOf(const ProgressState& state, double steps_per_second) {
  return Json::parse(TrainerStatus(state, steps_per_second, kTime))["trainerStatus"];
}

std::string MetricOf(const Json& status, const std::string& name) {
  for (const Json& metric : status["metrics"]) {
    if (metric["name"] == name) return metric["value"];
  }
  return "none";
}

TEST(TrainerStatus, RunThatWaits_HasNoLossAndNoEnd) {
  ProgressState state;
  state.steps = 200;
  const Json status = StatusOf(state, 0);
  EXPECT_EQ(status["progressPercentage"], 0);
  EXPECT_FALSE(status.contains("estimatedRemainingSeconds"));
  EXPECT_EQ(MetricOf(status, "loss"), "none");
  EXPECT_EQ(status["lastUpdatedTime"], kTime);
}

TEST(TrainerStatus, RunningRun_HasShareRestAndMetricsAsTexts) {
  ProgressState state;
  state.steps = 200;
  state.steps_done = 133;
  state.loss = 1.25;
  state.has_loss = true;
  state.validation.emplace();
  state.validation->loss = 1.5;
  state.validation->metrics["accuracy"] = 0.75;
  const Json status = StatusOf(state, 2);
  EXPECT_EQ(status["progressPercentage"], 66) << "whole percents, none too many";
  EXPECT_EQ(status["estimatedRemainingSeconds"], 34);
  EXPECT_EQ(MetricOf(status, "step"), "133");
  EXPECT_EQ(MetricOf(status, "steps"), "200");
  EXPECT_EQ(MetricOf(status, "loss"), "1.25");
  EXPECT_EQ(MetricOf(status, "validation_loss"), "1.5");
  EXPECT_EQ(MetricOf(status, "validation_accuracy"), "0.75");
}

TEST(TrainerStatus, SlowRun_HasARestThatKubeflowTakes) {
  ProgressState state;
  state.steps = 2'000'000'000;
  EXPECT_EQ(StatusOf(state, 1e-6)["estimatedRemainingSeconds"], 2'147'483'647);
}

}  // namespace
}  // namespace weft::trainer_status_test
