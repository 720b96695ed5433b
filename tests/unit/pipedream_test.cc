#include "planner/pipedream.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/planner_instances.h"

namespace weft::pipedream_test {
namespace {

using testing::ElementsAre;

std::vector<int> LayersOf(const ContiguousPlan& plan) {
  std::vector<int> layers;
  for (const ContiguousStage& stage : plan.stages) layers.push_back(stage.layers);
  return layers;
}

TEST(PipeDream, LongLayerInTheMiddle_TakesThree) {
  const auto plan = FindContiguousPlan(WorkChain({1, 2, 1}, {}, 2), /*replicated=*/false);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->period, 3);
  EXPECT_EQ(plan->batches_in_flight, 2);
  EXPECT_THAT(PlacementOf(*plan), testing::SizeIs(3));
}

TEST(PipeDream, TheoremsFamily_TakesTwoKMinusOneAndAnEpsilon) {
  for (int k = 2; k <= 6; ++k) {
    const auto plan = FindContiguousPlan(TheoremChain(k), /*replicated=*/false);
    ASSERT_TRUE(plan.has_value());
    EXPECT_EQ(plan->period, (2 * k - 1) * (2 * k + 1) + 1) << k;
  }
}

TEST(PipeDream, WeightsThatFitOnlyApart_HaveNoContiguousPlan) {
  EXPECT_FALSE(FindContiguousPlan(WorkChain({1, 1, 1}, {1, 2, 1}, 2, 2), false).has_value());
  EXPECT_TRUE(FindContiguousPlan(WorkChain({1, 1, 1}, {1, 2, 1}, 2, 3), false).has_value());
}

TEST(PipeDream, FewRanksForLargeWeights_TakesPTimesA) {
  const auto plan = FindContiguousPlan(WorkChain({1, 1, 5, 5, 5}, {2, 2, 3, 1, 1}, 4, 3), false);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->period, 10);
}

TEST(PipeDream, LayerLongerThanItsShare_IsReplicated) {
  PlannedChain chain = WorkChain({6, 2}, {}, 4);
  chain.layers[1].sync = 1000;
  const auto plan = FindContiguousPlan(chain, /*replicated=*/true);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->period, 2);
  EXPECT_THAT(LayersOf(*plan), ElementsAre(1, 1));
  EXPECT_EQ(plan->stages[0].replicas, 3);
  EXPECT_EQ(plan->batches_in_flight, 2);  // four ranks over three replicas, rounded up
}

TEST(PipeDream, SumOfLargeWeights_KeepsAStageOnOneRank) {
  PlannedChain chain = WorkChain({6, 2}, {}, 4);
  chain.layers[0].sync = 1000;
  const auto plan = FindContiguousPlan(chain, /*replicated=*/true);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->stages[0].replicas, 1);
  EXPECT_EQ(plan->period, 6);
}

TEST(PipeDream, SlowLink_MovesTheCut) {
  PlannedChain chain = WorkChain({2, 2, 2, 2}, {}, 2);
  chain.layers[1].transfer = 5;
  EXPECT_EQ(FindContiguousPlan(chain, false)->period, 5);
  chain.links = LinkKind::kPairHalf;  // output and gradient share the link
  const auto plan = FindContiguousPlan(chain, false);
  EXPECT_EQ(plan->period, 6);
  EXPECT_EQ(plan->stages[0].layers % 2, 1);
}

}  // namespace
}  // namespace weft::pipedream_test
