// The checker of patterns, on patterns that were written down by hand: the published 2F2B ones, and each kind
// of fault.
#include "planner/pattern_check.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/chain.h"
#include "tests/unit/planner_instances.h"

namespace weft::pattern_check_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Two batches a window, as published: forwards and backwards of one batch, layer by layer.
Pattern TwoBatches(const ChainPattern& placed, int64_t window, const std::vector<int>& forward,
                   const std::vector<int>& backward) {
  Pattern pattern{window * kUnit, std::vector<int64_t>(placed.problem.tasks.size())};
  for (size_t i = 0; i < forward.size(); ++i) {
    pattern.starts[placed.forward[i]] = forward[i] * kUnit;
    pattern.starts[placed.backward[i]] = backward[i] * kUnit;
  }
  return pattern;
}

TEST(PatternCheck, PublishedPatternOfFourRanks_AnswersWithFourTwoTwoOneCopies) {
  const PlannedChain chain = KeptChain({3, 2, 2, 2}, {1, 2, 2, 4}, 4, 4);
  const ChainPattern placed = PlaceChain(chain, {0, 1, 2, 3}, 2);
  ASSERT_TRUE(CheckProblem(placed.problem).ok());
  const Pattern pattern =
      TwoBatches(placed, 12, {0, 3, 5, 7, 6, 19, 21, 23}, {15, 13, 11, 9, 33, 29, 27, 25});
  EXPECT_TRUE(CheckPattern(placed.problem, pattern).ok()) << CheckPattern(placed.problem, pattern);
  EXPECT_THAT(PatternPeaks(placed.problem, pattern), ElementsAre(4, 4, 4, 4));
}

TEST(PatternCheck, PublishedPatternOfTwoRanks_AnswersWithinTheMemory) {
  const PlannedChain chain = KeptChain({1, 2, 1}, {2, 3, 2}, 2, 6);
  const ChainPattern placed = PlaceChain(chain, {0, 1, 0}, 2);
  const Pattern pattern = TwoBatches(placed, 8, {0, 2, 4, 6, 8, 10}, {9, 6, 5, 15, 12, 11});
  EXPECT_TRUE(CheckPattern(placed.problem, pattern).ok()) << CheckPattern(placed.problem, pattern);
  EXPECT_THAT(PatternPeaks(placed.problem, pattern), ElementsAre(6, 6));
}

class FaultyPattern : public testing::Test {
 protected:
  FaultyPattern() : placed_(PlaceChain(CountedChain({1, 2}, {1, 4}, {}, 0, 2, kUnit), {0, 1}, 1)) {
    // forward 0-1, transfer 1-5, forward 5-7, backward 7-9, transfer 9-13, backward 13-14
    for (const int start : {0, 1, 5, 7, 9, 13}) pattern_.starts.push_back(start * kUnit);
    pattern_.period = 12 * kUnit;
  }
  std::string Fault() const { return std::string(CheckPattern(placed_.problem, pattern_).message()); }

  ChainPattern placed_;
  Pattern pattern_;
};

TEST_F(FaultyPattern, Untouched_Answers) { EXPECT_EQ(Fault(), ""); }

TEST_F(FaultyPattern, StartBeforeTheTransferEnds_IsNamed) {
  pattern_.starts[2] -= 1;
  EXPECT_EQ(Fault(),
            "forward of layer 1, batch 0 starts at 4199, but what output of layer 0, batch 0 leaves is there "
            "at 4200");
}

TEST_F(FaultyPattern, PeriodShorterThanTheLink_IsNamedAsOverlapOfBothDirections) {
  pattern_.period -= 1;
  EXPECT_THAT(Fault(), HasSubstr("of layer 0, batch 0 at"));
  EXPECT_THAT(Fault(), HasSubstr("occupies the same resource"));
}

TEST_F(FaultyPattern, BytesAboveTheMemory_AreNamedWithTheRank) {
  const std::vector<int64_t> peaks = PatternPeaks(placed_.problem, pattern_);
  placed_.problem.memory[1] = peaks[1] - 1;
  EXPECT_THAT(Fault(), HasSubstr("rank 1 has"));
}

TEST_F(FaultyPattern, MissingStart_IsNoPattern) {
  pattern_.starts.pop_back();
  EXPECT_THAT(Fault(), HasSubstr("5 starts for 6 tasks"));
}

TEST(PatternProblem, HoldOfTasksWithoutACommonResource_IsRefused) {
  ChainPattern placed = PlaceChain(KeptChain({1, 1}, {1, 1}, 2), {0, 1}, 1);
  placed.problem.holds[0].last = placed.backward[1];
  EXPECT_THAT(std::string(CheckProblem(placed.problem).message()), HasSubstr("share no resource"));
}

TEST(PlannedChain, LayerThatKeepsBytesInNoTime_IsRefused) {
  PlannedChain chain = KeptChain({1, 1}, {1, 1}, 2);
  chain.layers[1].backward = 0;
  EXPECT_THAT(std::string(CheckChain(chain).message()), HasSubstr("layer 1"));
}

TEST(PlacedChain, TransferThatTakesNoTime_IsALag) {
  PlannedChain chain = KeptChain({1, 1}, {1, 1}, 2);
  chain.latency = 7;
  const ChainPattern placed = PlaceChain(chain, {0, 1}, 1);
  ASSERT_EQ(placed.problem.tasks.size(), 4u);
  EXPECT_EQ(placed.problem.tasks[0].lag, 7);
  EXPECT_EQ(placed.problem.tasks[1].lag, 0);
  EXPECT_EQ(placed.problem.tasks[2].lag, 7);
}

}  // namespace
}  // namespace weft::pattern_check_test
