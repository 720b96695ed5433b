#include "tests/conformance/rounding_bound.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weft::testing {
namespace {

RunSpec GptRun() {
  GptSpec model;
  model.width = 24;
  model.context = 10;
  model.vocabulary = 256;
  RunSpec run;
  run.model = model;
  run.train.batch = 12;
  run.train.microbatches = 4;
  run.train.steps = 2;
  run.train.optimizer = SgdSpec{};
  return run;
}

TEST(LongestSum, OfAGpt_IsTheLongestOfVocabularyWidthAndRows) {
  RunSpec run = GptRun();
  EXPECT_EQ(LongestSum(run), 256 + 4);
  std::get<GptSpec>(run.model).width = 100;
  EXPECT_EQ(LongestSum(run), 4 * 100 + 4);
  std::get<GptSpec>(run.model).context = 1024;
  EXPECT_EQ(LongestSum(run), 3 * 1024 + 4);
}

TEST(LongestSum, OfAResidualNetwork_CountsKernelsAndPlaces) {
  ResNetSpec model;
  model.width = 4;
  model.channels = 1;
  model.size = 9;
  RunSpec run = GptRun();
  run.model = model;
  run.train.batch = 4;
  EXPECT_EQ(LongestSum(run), 8 * 4 * 9 + 4);  // the last group's 32 channels, 3 x 3
  run.train.batch = 20;
  EXPECT_EQ(LongestSum(run), 5 * 9 * 9 + 4);
}

TEST(Rounding, OfASum_GrowsWithTheRootOfItsTerms) {
  EXPECT_EQ(RelativeRounding(1), 0x1p-24);
  EXPECT_EQ(RelativeRounding(256), 0x1p-20);
}

// One parameter of four elements, one step.
Trajectory Of(double loss, std::vector<double> weights) {
  Trajectory trajectory;
  trajectory.losses = {loss};
  trajectory.weights[0]["w"] = {1, 1, 1, 1};
  trajectory.weights[1]["w"] = std::move(weights);
  return trajectory;
}

TEST(Tolerance, OfDisturbedTrainings_IsTheFurthestAndWhatFloat32Adds) {
  const RunSpec run = GptRun();
  const Trajectory truth = Of(2, {3, 3, 3, 3});
  const std::vector<Trajectory> disturbed = {Of(2.5, {3, 3, 3, 3}), Of(1.75, {3, 3.5, 2.5, 3})};
  const double rho = std::sqrt(260.0) * kUnitRoundoff;
  const Tolerance tolerance = ToleranceOf(run, truth, disturbed);
  EXPECT_DOUBLE_EQ(tolerance.losses.at(0), kJumps * 0.5 + 2 * rho);
  const double added = kUnitRoundoff * (kWeightRoundings * 3 + kChangeRoundings * 2);
  EXPECT_DOUBLE_EQ(tolerance.weights.at(1).at("w"), kJumps * 0.25 + added);
  EXPECT_EQ(tolerance.weights.at(0).at("w"), 0);
}

TEST(Distance, InUnitsOfTheTolerance_NamesTheWorst) {
  const Trajectory truth = Of(2, {3, 3, 3, 3});
  Tolerance tolerance;
  tolerance.losses = {0.5};
  tolerance.weights[1]["w"] = 0.25;
  const Trajectory other = Of(3, {3, 3, 3, 3.5});
  EXPECT_EQ(WorstLoss(other, truth, tolerance).ratio, 2);
  EXPECT_EQ(WorstLoss(other, truth, tolerance).where, "step 0");
  EXPECT_EQ(WorstWeights(other, truth, tolerance).ratio, 0.5);
  EXPECT_EQ(WorstWeights(other, truth, tolerance).where, "w after step 0");
}

TEST(Distance, OfWhatIsNoNumber_IsInfinite) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const Trajectory truth = Of(2, {3, 3, 3, 3});
  Tolerance tolerance;
  tolerance.losses = {0.5};
  tolerance.weights[1]["w"] = 0.25;
  EXPECT_EQ(WorstLoss(Of(kNone, {3, 3, 3, 3}), truth, tolerance).ratio,
            std::numeric_limits<double>::infinity());
  EXPECT_EQ(WorstWeights(Of(2, {3, kNone, 3, 3}), truth, tolerance).ratio,
            std::numeric_limits<double>::infinity());
  tolerance.losses = {kNone};
  EXPECT_EQ(WorstLoss(truth, truth, tolerance).ratio, std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace weft::testing
