#include "run/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "nlohmann/json.hpp"

namespace weft::learning_rate_test {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

Json RunWith(const Json& lr_schedule, int steps = 100) {
  return {{"model", "mlp"},
          {"data", {{"idx", {{"images", "i"}, {"labels", "l"}}}}},
          {"train",
           {{"steps", steps},
            {"batch", 8},
            {"optimizer", {{"sgd", {{"lr", 0.5}}}}},
            {"lr_schedule", lr_schedule}}},
          {"stages", 1},
          {"schedule", "ddp"}};
}

TrainSpec TrainWith(const Json& lr_schedule, int steps = 100) {
  const auto run = ParseRunSpec(RunWith(lr_schedule, steps));
  EXPECT_TRUE(run.ok()) << run.status();
  return run.ok() ? run->train : TrainSpec();
}

TEST(LearningRate_Constant, WithoutSchedule_IsExactlyTheOptimizers) {
  Json file = RunWith("constant");
  file["train"].erase("lr_schedule");
  const auto run = ParseRunSpec(file);
  ASSERT_TRUE(run.ok()) << run.status();
  for (const int step : {0, 1, 50, 99}) {
    EXPECT_EQ(LearningRateAt(run->train, step), 0.5);
    EXPECT_EQ(LearningRateAt(TrainWith("constant"), step), 0.5);
  }
}

TEST(LearningRate_Warmup, AnyDecay_RisesLinearlyToThePeakOfItsLastStep) {
  for (const char* name : {"constant", "linear", "cosine"}) {
    const TrainSpec train = TrainWith({{name, {{"warmup", 10}}}});
    for (int step = 0; step < 10; ++step) EXPECT_DOUBLE_EQ(LearningRateAt(train, step), 0.05 * (step + 1));
    EXPECT_EQ(LearningRateAt(train, 10), 0.5) << name;
  }
  // The first steps of a run that is cut short.
  EXPECT_DOUBLE_EQ(LearningRateAt(TrainWith({{"cosine", {{"warmup", 1000}}}}), 99), 0.05);
}

TEST(LearningRate_Linear, WithFloor_FallsBySameAmounts) {
  const TrainSpec train = TrainWith({{"linear", {{"warmup", 20}, {"min_lr", 0.1}}}});
  EXPECT_EQ(LearningRateAt(train, 20), 0.5);
  EXPECT_NEAR(LearningRateAt(train, 60), 0.3, 1e-15);
  EXPECT_NEAR(LearningRateAt(train, 99), 0.105, 1e-15);
  EXPECT_NEAR(LearningRateAt(TrainWith("linear"), 99), 0.005, 1e-15);
}

TEST(LearningRate_Cosine, WithFloor_IsHalfACosine) {
  const TrainSpec train = TrainWith({{"cosine", {{"warmup", 4}, {"min_lr", 0.1}}}});
  EXPECT_EQ(LearningRateAt(train, 4), 0.5);
  EXPECT_NEAR(LearningRateAt(train, 4 + 32), 0.1 + 0.4 * 0.75, 1e-15);  // a third: cos 60 degrees
  EXPECT_NEAR(LearningRateAt(train, 4 + 48), 0.3, 1e-15);
  EXPECT_NEAR(LearningRateAt(train, 4 + 64), 0.1 + 0.4 * 0.25, 1e-15);
  EXPECT_GT(LearningRateAt(train, 99), 0.1);
  EXPECT_LT(LearningRateAt(train, 99), 0.101);
}

TEST(LearningRate_Step, AfterEachStepSize_IsMultipliedByGamma) {
  const TrainSpec train = TrainWith({{"step", {{"warmup", 5}, {"step_size", 30}, {"gamma", 0.5}}}});
  EXPECT_EQ(LearningRateAt(train, 5), 0.5);
  EXPECT_EQ(LearningRateAt(train, 34), 0.5);
  EXPECT_EQ(LearningRateAt(train, 35), 0.25);
  EXPECT_EQ(LearningRateAt(train, 64), 0.25);
  EXPECT_EQ(LearningRateAt(train, 99), 0.0625);
}

TEST(LearningRate_Json, EachKind_IsReadBackTheSame) {
  for (const Json& schedule :
       {Json("constant"), Json{{"linear", {{"warmup", 7}, {"min_lr", 0.25}}}},
        Json{{"cosine", {{"warmup", 3}}}}, Json{{"step", {{"step_size", 4}, {"gamma", 0.3}}}}}) {
    const TrainSpec train = TrainWith(schedule);
    const TrainSpec again = TrainWith(ToJson(train.lr_schedule));
    for (int step = 0; step < 100; ++step) {
      EXPECT_EQ(LearningRateAt(again, step), LearningRateAt(train, step)) << schedule << " at " << step;
    }
  }
}

void ExpectRefused(const Json& schedule, const std::string& path, const std::string& words) {
  const absl::Status status = ParseRunSpec(RunWith(schedule)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << schedule;
  EXPECT_EQ(std::string(status.GetPayload(kPathPayload).value_or(absl::Cord())), path) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

TEST(LearningRate_Refused, WrongInput_NamesThePlaceAndWhatIsAllowed) {
  ExpectRefused("cosin", "train.lr_schedule", "did you mean \"cosine\"?");
  ExpectRefused(3, "train.lr_schedule", "must name a learning-rate schedule");
  ExpectRefused({{"linear", Json::object()}, {"cosine", Json::object()}}, "train.lr_schedule.linear",
                "names both cosine and linear");
  ExpectRefused({{"constant", {{"min_lr", 0.1}}}}, "train.lr_schedule.constant.min_lr", "unknown key");
  ExpectRefused({{"cosine", {{"warm_up", 10}}}}, "train.lr_schedule.cosine.warm_up",
                "did you mean \"warmup\"?");
  ExpectRefused({{"cosine", {{"warmup", -1}}}}, "train.lr_schedule.cosine.warmup", "from 0 to");
  ExpectRefused({{"cosine", {{"min_lr", 0.6}}}}, "train.lr_schedule.cosine.min_lr",
                "falls from the optimizer's lr, 0.5");
  ExpectRefused("step", "train.lr_schedule.step.step_size", "is missing");
  ExpectRefused({{"step", {{"step_size", 0}}}}, "train.lr_schedule.step.step_size", "from 1 to");
  ExpectRefused({{"step", {{"step_size", 10}, {"gamma", 1.5}}}}, "train.lr_schedule.step.gamma",
                "from 0.0 to 1.0");
}

}  // namespace
}  // namespace weft::learning_rate_test
