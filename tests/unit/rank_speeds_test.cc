#include "planner/rank_speeds.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::rank_speeds_test {
namespace {

// Returns the times that ranks of these speeds take for each kind of work of these costs, as `did` says.
std::vector<TimedWork> TimesOf(const std::vector<double>& speeds, const std::vector<double>& costs,
                               const std::vector<std::vector<int>>& did) {
  std::vector<TimedWork> times;
  for (size_t r = 0; r < did.size(); ++r) {
    for (const int w : did[r]) times.push_back({static_cast<int>(r), w, costs[w] / speeds[r], 3});
  }
  return times;
}

TEST(RankSpeeds, RanksWithWorkInCommon_AreCompared) {
  RankSpeeds fit = FitRankSpeeds(TimesOf({0.5, 1, 0.25}, {2, 6}, {{0, 1}, {0, 1}, {0, 1}}), 3, 2);
  ScaleToFastest(3, &fit);
  EXPECT_NEAR(fit.speeds[0], 0.5, 1e-6);
  EXPECT_NEAR(fit.speeds[1], 1, 1e-6);
  EXPECT_NEAR(fit.speeds[2], 0.25, 1e-6);
  EXPECT_NEAR(fit.seconds[0], 2, 1e-6);
  EXPECT_NEAR(fit.seconds[1], 6, 1e-6);
}

// Rank 0 and rank 3 have no work in common, only those between them.
TEST(RankSpeeds, RanksThatAChainConnects_AreCompared) {
  RankSpeeds fit = FitRankSpeeds(TimesOf({1, 0.8, 0.6, 0.5}, {1, 2, 3}, {{0}, {0, 1}, {1, 2}, {2}}), 4, 3);
  ScaleToFastest(4, &fit);
  EXPECT_NEAR(fit.speeds[3], 0.5, 1e-4);
  EXPECT_NEAR(fit.seconds[2], 3, 1e-3);
}

TEST(RankSpeeds, RanksWithNothingInCommon_CountAsEquallyFast) {
  const RankSpeeds fit = FitRankSpeeds(TimesOf({1, 0.5}, {1, 1}, {{0}, {1}}), 2, 2);
  EXPECT_NEAR(fit.speeds[0], fit.speeds[1], 1e-9);
  EXPECT_NEAR(fit.seconds[1], 2 * fit.seconds[0], 1e-9);
}

// The long work says more of a rank's speed than the short one.
TEST(RankSpeeds, TimesWithErrors_WeighByTheTimeSpent) {
  const std::vector<TimedWork> times = {{0, 0, 1.0, 1}, {1, 0, 2.0, 1}, {0, 1, 0.001, 1}, {1, 1, 0.001, 1}};
  RankSpeeds fit = FitRankSpeeds(times, 2, 2);
  ScaleToFastest(2, &fit);
  EXPECT_NEAR(fit.speeds[1], 0.5, 0.01);
}

// Ranks 2 and 3 are ranks 0 and 1 as they were before: equally fast. Their work shows how the speeds changed.
TEST(RankSpeeds, KnownSpeeds_CompareRanksWithNothingElseInCommon) {
  const std::vector<TimedWork> times = TimesOf({1, 0.5, 1, 1}, {4, 5}, {{0}, {1}, {0}, {1}});
  const RankSpeeds fit = FitRankSpeeds(times, 4, 2, {0, 0, 1, 1});
  EXPECT_NEAR(fit.speeds[0], 1, 1e-6);
  EXPECT_NEAR(fit.speeds[1], 0.5, 1e-6);
  EXPECT_NEAR(fit.seconds[1], 5, 1e-5);
}

TEST(RankSpeeds, WorkThatTookNoTime_IsLeftOut) {
  const RankSpeeds fit = FitRankSpeeds({{0, 0, 0, 1}, {1, 1, 2, 1}}, 2, 2);
  EXPECT_EQ(fit.seconds[0], 0);
  EXPECT_NEAR(fit.speeds[0], fit.speeds[1], 1e-9);
}

}  // namespace
}  // namespace weft::rank_speeds_test
