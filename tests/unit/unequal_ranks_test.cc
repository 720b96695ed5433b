#include "schedules/families/unequal_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "schedules/check/check.h"
#include "schedules/families/families.h"

namespace weft::unequal_ranks_test {
namespace {

// Returns how many parts each rank has.
std::vector<int> CountsOf(const std::vector<Rank>& rank_of, int ranks) {
  std::vector<int> counts(ranks);
  for (const Rank r : rank_of) ++counts[r];
  return counts;
}

TEST(UnequalRanks, DealtParts_AreInProportionToTheSpeeds) {
  EXPECT_EQ(CountsOf(DealBySpeed(12, {1, 0.5}), 2), (std::vector<int>{8, 4}));
  EXPECT_EQ(CountsOf(DealBySpeed(12, {1, 1}), 2), (std::vector<int>{6, 6}));
  // They take 6, 7 and 4 then; with one more on the last rank it would take 8.
  EXPECT_EQ(CountsOf(DealBySpeed(11, {0.5, 1, 0.25}), 3), (std::vector<int>{3, 7, 1}));
}

TEST(UnequalRanks, EveryRankHasAPart_HoweverSlow) {
  EXPECT_EQ(CountsOf(DealBySpeed(4, {1, 0.001}), 2), (std::vector<int>{3, 1}));
  EXPECT_EQ(CountsOf(DealBySpeed(3, {1, 0.001, 0.001}), 3), (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(CountsOf(PlaceBySpeed({1, 1, 1}, {1, 0.001, 0.001}), 3), (std::vector<int>{1, 1, 1}));
}

// No other cut of neighbours is better, by trying all of them.
TEST(UnequalRanks, PlacedParts_TakeTheLeastTime) {
  const std::vector<double> work = {3, 1, 4, 1, 5, 9, 2, 6}, speeds = {1, 0.5, 2};
  const auto time_of = [&](const std::vector<Rank>& rank_of) {
    std::vector<double> times(speeds.size());
    for (size_t p = 0; p < work.size(); ++p) times[rank_of[p]] += work[p] / speeds[rank_of[p]];
    return *std::max_element(times.begin(), times.end());
  };
  double least = 1e9;
  for (size_t a = 1; a + 1 < work.size(); ++a) {
    for (size_t b = a + 1; b < work.size(); ++b) {
      std::vector<Rank> rank_of(work.size(), 2);
      std::fill(rank_of.begin(), rank_of.begin() + b, 1);
      std::fill(rank_of.begin(), rank_of.begin() + a, 0);
      least = std::min(least, time_of(rank_of));
    }
  }
  EXPECT_DOUBLE_EQ(time_of(PlaceBySpeed(work, speeds)), least);
}

TEST(UnequalRanks, Formula_SaysTheRanks) {
  EXPECT_EQ(RankFormula({0, 0, 1, 0, 0, 1}, "b"), "b % 3 < 2 ? 0 : 1");
  EXPECT_EQ(RankFormula({0, 0, 0, 1, 1}, "s"), "s < 3 ? 0 : 1");
  EXPECT_EQ(RankFormula({1, 1, 1}, "s"), "1");
  EXPECT_EQ(RankFormula({0, 1, 2}, "s"), "s < 1 ? 0 : s < 2 ? 1 : 2");
}

TEST(UnequalRanks, Schedules_AreSoundAndPlaceJobsAsTheListsSay) {
  const std::vector<double> speeds = {1, 0.5, 0.7};
  const std::vector<Rank> dealt = DealBySpeed(10, speeds);
  const std::vector<Rank> placed = PlaceBySpeed({1, 2, 3, 4, 5}, speeds);
  const Candidate by_microbatch = DealtCandidate(dealt, 3), by_stage = PlacedCandidate(placed, 3, "1f1b");
  const auto deals = MakeSchedule(by_microbatch.name, by_microbatch.parameters, 5, 10);
  const auto places = MakeSchedule(by_stage.name, by_stage.parameters, 5, 10);
  ASSERT_TRUE(deals.ok() && places.ok()) << deals.status() << places.status();
  for (int s = 0; s < 5; ++s) {
    for (int b = 0; b < 10; ++b) {
      EXPECT_EQ(deals->compute(Job::Compute(0, s, b, JobKind::kForward)), dealt[b]);
      EXPECT_EQ(places->compute(Job::Compute(0, s, b, JobKind::kBackward)), placed[s]);
    }
  }
  EXPECT_TRUE(CheckSchedule(RunSchedule(*deals, RunTerms())).ok());
  EXPECT_TRUE(CheckSchedule(RunSchedule(*places, RunTerms())).ok());
}

}  // namespace
}  // namespace weft::unequal_ranks_test
