// Orders of pipelines with split backwards: their times, the rule of zero-bubble pipelines against its
// published bubbles, and the search against the rule and against all orders.
#include "planner/split_order.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/split_order_search.h"
#include "planner/zero_bubble_order.h"
#include "tests/unit/split_pipelines.h"

namespace weft::split_order_test {
namespace {

// Returns every sound word of a rank.
std::vector<std::string> WordsOf(const SplitPipeline& pipeline, size_t stage) {
  std::string word = std::string(pipeline.microbatches, 'F') + std::string(pipeline.microbatches, 'I') +
                     std::string(pipeline.microbatches, 'W');
  std::vector<std::string> words;
  do {
    if (IsSound(pipeline, stage, word)) words.push_back(word);
  } while (std::next_permutation(word.begin(), word.end()));
  return words;
}

void AddOrders(const std::vector<std::vector<std::string>>& words, SplitOrder* begin,
               std::vector<SplitOrder>* orders) {
  if (begin->size() == words.size()) {
    orders->push_back(*begin);
    return;
  }
  for (const std::string& word : words[begin->size()]) {
    begin->push_back(word);
    AddOrders(words, begin, orders);
    begin->pop_back();
  }
}

std::vector<SplitOrder> AllOrders(const SplitPipeline& pipeline) {
  std::vector<std::vector<std::string>> words;
  for (size_t stage = 0; stage < pipeline.stages.size(); ++stage) words.push_back(WordsOf(pipeline, stage));
  std::vector<SplitOrder> orders;
  SplitOrder begin;
  AddOrders(words, &begin, &orders);
  return orders;
}

TEST(SplitOrder, OneRank_TakesItsWork) {
  const SplitPipeline pipeline = EqualPipeline(1, 2, {3, 4, 5, 1});
  const auto times = SplitClock(pipeline).TimesOf({"FIFIWW"});
  ASSERT_TRUE(times.has_value());
  EXPECT_EQ(times->span, 25);
  EXPECT_EQ(times->period, 25);
}

// Rank 0 runs F 0-2, I from 2 + 1 + 2 + 3 + 1 = 9 to 12, W to 16; rank 1 runs F 3-5, I to 8, W to 12.
TEST(SplitOrder, TwoRanks_WaitForEachOther) {
  const SplitPipeline pipeline = EqualPipeline(2, 1, {2, 3, 4}, 1);
  const auto times = SplitClock(pipeline).TimesOf({"FIW", "FIW"});
  ASSERT_TRUE(times.has_value());
  EXPECT_EQ(times->span, 16);
  EXPECT_EQ(times->period, 16);
}

TEST(SplitOrder, RanksThatBeginLater_MayHaveAPeriodBelowTheSpan) {
  const SplitPipeline pipeline = EqualPipeline(2, 2, {2, 2, 2});
  const auto times = SplitClock(pipeline).TimesOf({"FFIIWW", "FIFIWW"});
  ASSERT_TRUE(times.has_value());
  EXPECT_LE(times->period, times->span);
  EXPECT_GE(times->period, pipeline.MostWork());
}

TEST(SplitOrder, RanksThatWaitInACircle_Deadlock) {
  const SplitPipeline pipeline = EqualPipeline(2, 2);
  EXPECT_FALSE(SplitClock(pipeline).TimesOf({"FIFIWW", "FFIIWW"}).has_value());
}

TEST(SplitOrder, Word_IsSoundWithEachJobOnceAndInTurn) {
  SplitPipeline pipeline = EqualPipeline(1, 2);
  EXPECT_TRUE(IsSound(pipeline, 0, "FFIIWW"));
  EXPECT_TRUE(IsSound(pipeline, 0, "FIWFIW"));
  EXPECT_FALSE(IsSound(pipeline, 0, "IFFIWW")) << "a backward before its forward";
  EXPECT_FALSE(IsSound(pipeline, 0, "FWIFIW")) << "a half before the other";
  EXPECT_FALSE(IsSound(pipeline, 0, "FFIIW"));
  EXPECT_FALSE(IsSound(pipeline, 0, "FFIIWWW"));
}

// A forward needs three bytes, of which the backward_weight gives two back.
TEST(SplitOrder, Word_IsSoundIfTheRankHasRoom) {
  SplitPipeline pipeline = EqualPipeline(1, 2, {1, 1, 1, 0, 3, 2, 5});
  EXPECT_FALSE(IsSound(pipeline, 0, "FFIIWW"));
  EXPECT_TRUE(IsSound(pipeline, 0, "FIFIWW"));
  pipeline.stages[0].room = 4;
  EXPECT_FALSE(IsSound(pipeline, 0, "FIFIWW"));
  EXPECT_TRUE(IsSound(pipeline, 0, "FIWFIW"));
}

// Tables 5 and 9 of arXiv 2401.10241: bubbles of the automatic order with the memory of 1f1b and with twice
// that, from measured times in microseconds.
TEST(ZeroBubbleOrder, PublishedTimes_GiveThePublishedBubbles) {
  struct Row {
    int ranks, microbatches;
    int64_t forward, input, weight, transfer;
    double bubble_1p, bubble_2p;
  };
  for (const Row& row : {Row{8, 24, 18522, 18086, 9337, 601, 0.1585, 0.0433},
                         Row{16, 64, 11347, 11248, 8132, 377, 0.1088, 0.0054},
                         Row{32, 128, 10419, 10207, 7715, 408, 0.1106, 0.0029}}) {
    for (const int times_1f1b : {1, 2}) {
      const SplitStage stage = {row.forward, row.input, row.weight, 0, 2, 1, 2 * times_1f1b * row.ranks};
      const SplitPipeline pipeline = EqualPipeline(row.ranks, row.microbatches, stage, row.transfer);
      SplitClock clock(pipeline);
      int64_t least = INT64_MAX;
      for (const SplitOrder& order : ZeroBubbleOrders(pipeline))
        least = std::min(least, clock.TimesOf(order).value().span);
      const double bubble = 1 - static_cast<double>(pipeline.MostWork()) / static_cast<double>(least);
      EXPECT_NEAR(bubble, times_1f1b == 1 ? row.bubble_1p : row.bubble_2p, 0.0005)
          << row.ranks << " ranks with " << times_1f1b << " times the memory of 1f1b";
    }
  }
}

TEST(ZeroBubbleOrder, UnequalStages_GetSoundOrders) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const SplitPipeline pipeline = UnequalPipeline(2 + seed % 5, 1 + seed % 9, 0.7, 2 + seed % 3, seed);
    const auto orders = ZeroBubbleOrders(pipeline);
    EXPECT_FALSE(orders.empty()) << seed;
    SplitClock clock(pipeline);
    for (const SplitOrder& order : orders) {
      for (size_t stage = 0; stage < order.size(); ++stage)
        EXPECT_TRUE(IsSound(pipeline, stage, order[stage])) << seed << ": " << order[stage];
      EXPECT_TRUE(clock.TimesOf(order).has_value()) << seed;
    }
  }
}

TEST(ZeroBubbleOrder, NoRoomForAMicrobatch_GivesNone) {
  const SplitPipeline pipeline = EqualPipeline(2, 4, {1, 1, 1, 0, 3, 2, 2});
  EXPECT_THAT(ZeroBubbleOrders(pipeline), testing::IsEmpty());
  EXPECT_FALSE(FindSplitOrder(pipeline).has_value());
}

TEST(SplitOrderSearch, SmallPipelines_GetTheBestOfAllOrders) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const bool three = seed % 2 == 1;
    const SplitPipeline pipeline = UnequalPipeline(three ? 3 : 2, three ? 3 : 4, 0.5, 2 + seed % 3, seed);
    const auto found = FindSplitOrder(pipeline, {100'000});
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->period, LeastPeriodOf(pipeline, AllOrders(pipeline))) << "seed " << seed;
  }
}

// The room that a simple rule leaves on unequal stages is the reason for the search.
TEST(SplitOrderSearch, UnequalStages_AreFasterThanTheRuleByAPercent) {
  double gain = 0;
  constexpr int kPipelines = 48;
  for (int seed = 0; seed < kPipelines; ++seed) {
    const int ranks = seed % 3 == 0 ? 3 : seed % 3 == 1 ? 4 : 8;
    const SplitPipeline pipeline = UnequalPipeline(ranks, ranks == 8 ? 16 : 5, 0.5, ranks, seed);
    const auto found = FindSplitOrder(pipeline, {100'000});
    ASSERT_TRUE(found.has_value());
    const int64_t rule = LeastPeriodOf(pipeline, ZeroBubbleOrders(pipeline));
    EXPECT_LE(found->period, rule) << seed;
    EXPECT_GE(found->period, pipeline.MostWork()) << seed;
    EXPECT_EQ(found->proven, found->period == pipeline.MostWork());
    EXPECT_EQ(SplitClock(pipeline).TimesOf(found->order).value().period, found->period);
    for (size_t stage = 0; stage < found->order.size(); ++stage)
      EXPECT_TRUE(IsSound(pipeline, stage, found->order[stage])) << found->order[stage];
    gain += static_cast<double>(rule) / static_cast<double>(found->period) - 1;
  }
  EXPECT_GE(gain / kPipelines, 0.01);
}

TEST(SplitOrderSearch, WeightsThatNobodyWaitsFor_ComeRightBehindTheirInputs) {
  const auto found = FindSplitOrder(EqualPipeline(1, 4));
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(found->order[0], testing::Not(testing::ContainsRegex("I[^W]"))) << found->order[0];
}

TEST(SplitOrderSearch, OneProblem_HasOneAnswer) {
  const SplitPipeline pipeline = UnequalPipeline(4, 6, 0.5, 4, 3);
  EXPECT_EQ(FindSplitOrder(pipeline, {10'000})->order, FindSplitOrder(pipeline, {10'000})->order);
}

TEST(SplitOrderSearch, Stopped_KeepsTheRulesOrder) {
  const SplitPipeline pipeline = UnequalPipeline(4, 6, 0.5, 4, 3);
  const auto found = FindSplitOrder(pipeline, {10'000, [] { return true; }});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->period, LeastPeriodOf(pipeline, ZeroBubbleOrders(pipeline)));
}

}  // namespace
}  // namespace weft::split_order_test
