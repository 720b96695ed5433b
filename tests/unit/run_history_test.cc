// Loss and memory over a run's whole length, in bounded memory.
#include "coordinator/record/run_history.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::run_history_test {
namespace {

using ::testing::ElementsAre;

std::vector<int> Thinned(int count, size_t most) {
  ThinnedSeries<int> series(most);
  for (int i = 0; i < count; ++i) series.Add(i);
  return series.values();
}

TEST(ThinnedSeries, FewValues_AreAllThere) { EXPECT_THAT(Thinned(4, 4), ElementsAre(0, 1, 2, 3)); }

TEST(ThinnedSeries, ManyValues_AreEvenlySpreadWithTheLast) {
  EXPECT_THAT(Thinned(5, 4), ElementsAre(0, 2, 4));
  EXPECT_THAT(Thinned(6, 4), ElementsAre(0, 2, 4, 5));
  EXPECT_THAT(Thinned(8, 4), ElementsAre(0, 4, 7));
}

TEST(ThinnedSeries, AnyLength_StaysWithinItsBoundAndEndsWithTheNewest) {
  for (int count = 1; count < 600; ++count) {
    const std::vector<int> values = Thinned(count, 16);
    ASSERT_LE(values.size(), 16u);
    ASSERT_GE(values.size(), std::min<size_t>(count, 8));
    ASSERT_EQ(values.front(), 0);
    ASSERT_EQ(values.back(), count - 1);
    // All distances are equal, but for the last.
    for (size_t i = 2; i + 1 < values.size(); ++i)
      ASSERT_EQ(values[i] - values[i - 1], values[1] - values[0]);
  }
}

TEST(RunHistory, StepsThatAreMadeAgain_TakeThePlaceOfThoseBefore) {
  RunHistory history;
  for (int step = 0; step < 5; ++step) history.OnLoss(step, 10 - step);
  history.OnLoss(3, 1);
  std::vector<int> steps;
  for (const LossPoint& p : history.losses()) steps.push_back(p.step);
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(history.losses().back().loss, 1);
}

RankReport Report(Rank rank, double seconds, int64_t weights) {
  RankReport report;
  report.rank = rank;
  report.wall_seconds = seconds;
  report.live_bytes = {{"weights", weights}};
  return report;
}

TEST(RunHistory, ReportsOfSeveralRanks_AreSummed) {
  RunHistory history;
  history.OnReport({Report(0, 1, 100)});
  history.OnReport({Report(1, 1.1, 10)});  // of the same moment
  history.OnReport({Report(0, 2, 200), Report(1, 2, 20)});
  ASSERT_EQ(history.bytes().size(), 2u);
  EXPECT_EQ(history.bytes()[0].bytes.at("weights"), 100);
  EXPECT_EQ(history.bytes()[1].bytes.at("weights"), 220);
  EXPECT_EQ(history.bytes()[1].seconds, 2);
}

TEST(RunHistory, FurtherAttempt_GoesOnWhereTheOneBeforeEnded) {
  RunHistory history;
  history.OnReport({Report(0, 10, 100)});
  history.OnReport({Report(0, 1, 100)});
  history.OnReport({Report(0, 2, 100)});
  std::vector<double> seconds;
  for (const LiveBytes& sample : history.bytes()) seconds.push_back(sample.seconds);
  EXPECT_THAT(seconds, ElementsAre(10, 11, 12));
}

}  // namespace
}  // namespace weft::run_history_test
