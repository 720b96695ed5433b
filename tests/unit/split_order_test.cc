// Orders of split backwards: sound, never worse than zero bubble's heuristic, and the best where all orders
// can be tried.
#include "planner/split_order.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "gtest/gtest.h"

namespace weft {
namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  int operator()(int from, int to) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return from + static_cast<int>((state_ >> 33) % (to - from + 1));
  }

 private:
  uint64_t state_;
};

SplitPipeline RandomPipeline(Draw& draw, int stages, int microbatches) {
  SplitPipeline pipeline;
  pipeline.microbatches = microbatches;
  pipeline.transfer = draw(0, 3);
  for (int s = 0; s < stages; ++s)
    pipeline.stages.push_back({draw(2, 20), draw(2, 20), draw(2, 20), draw(1, 2 * stages)});
  return pipeline;
}

// All orders of one stage: each job behind what it needs on the stage.
void AddOrders(int microbatches, std::vector<SplitJob>* begun, std::vector<std::vector<SplitJob>>* all) {
  int done[3] = {0, 0, 0};
  for (const SplitJob& job : *begun) ++done[static_cast<int>(job.kind)];
  if (done[2] == microbatches) {
    all->push_back(*begun);
    return;
  }
  for (int kind = 0; kind < 3; ++kind) {
    if (done[kind] == (kind == 0 ? microbatches : done[kind - 1])) continue;
    begun->push_back({static_cast<SplitKind>(kind), done[kind]});
    AddOrders(microbatches, begun, all);
    begun->pop_back();
  }
}

TEST(SplitOrder, TwoStagesAndTwoMicrobatches_TakeTheLeastOfAllOrders) {
  std::vector<std::vector<SplitJob>> orders;
  std::vector<SplitJob> begun;
  AddOrders(2, &begun, &orders);
  Draw draw(4);
  for (int round = 0; round < 30; ++round) {
    const SplitPipeline pipeline = RandomPipeline(draw, 2, 2);
    int64_t least = -1;
    for (const auto& first : orders) {
      for (const auto& second : orders) {
        const std::optional<int64_t> ticks = TicksOf(pipeline, {first, second});
        if (ticks.has_value() && (least < 0 || *ticks < least)) least = *ticks;
      }
    }
    EXPECT_EQ(FindSplitOrder(pipeline).ticks, least) << "round " << round;
  }
}

TEST(SplitOrder, RandomPipelines_AreSoundAndNeverWorseThanTheHeuristic) {
  Draw draw(9);
  for (int round = 0; round < 60; ++round) {
    const SplitPipeline pipeline = RandomPipeline(draw, draw(1, 5), draw(1, 6));
    const OrderedSplit found = FindSplitOrder(pipeline, {20, [] { return false; }});
    const std::optional<int64_t> ticks = TicksOf(pipeline, found.order);
    ASSERT_TRUE(ticks.has_value()) << "round " << round;
    EXPECT_EQ(*ticks, found.ticks);
    EXPECT_LE(found.lower_bound, found.ticks);
    const OrderedSplit heuristic = ZeroBubbleOrder(pipeline);
    if (!heuristic.order.empty()) {
      EXPECT_LE(found.ticks, heuristic.ticks);
    }
  }
}

TEST(SplitOrder, EqualJobsAndEnoughMemory_LeaveNoGapOnTheFirstStage) {
  SplitPipeline pipeline;
  pipeline.microbatches = 8;
  for (int s = 0; s < 4; ++s) pipeline.stages.push_back({1, 1, 1, 2 * (4 - s) - 1});
  EXPECT_EQ(FindSplitOrder(pipeline).ticks, 3 * 8 + 3);  // the last stage begins behind three forwards
}

TEST(SplitOrder, OrdersThatCannotRun_HaveNoTicks) {
  SplitPipeline pipeline;
  pipeline.stages = {{1, 1, 1, 1}};
  pipeline.microbatches = 2;
  using enum SplitKind;
  EXPECT_EQ(TicksOf(pipeline,
                    {{{kForward, 0}, {kInput, 0}, {kWeight, 0}, {kForward, 1}, {kInput, 1}, {kWeight, 1}}}),
            6);
  EXPECT_FALSE(TicksOf(pipeline,
                       {{{kForward, 0}, {kForward, 1}, {kInput, 0}, {kInput, 1}, {kWeight, 0}, {kWeight, 1}}})
                   .has_value());
  EXPECT_FALSE(TicksOf(pipeline,
                       {{{kInput, 0}, {kForward, 0}, {kWeight, 0}, {kForward, 1}, {kInput, 1}, {kWeight, 1}}})
                   .has_value());
  EXPECT_FALSE(TicksOf(pipeline, {{{kForward, 0}}}).has_value());
}

}  // namespace
}  // namespace weft
