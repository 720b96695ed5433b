// Planned orders of a pipeline's jobs, predicted by the simulator: against the families, within the memory,
// and with cuts that suit them.
#include "client/planning/order_search.h"

#include <algorithm>
#include <string>

#include "client/planning/family_search.h"
#include "client/planning/plan_source.h"
#include "coordinator/replanning/pipeline_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::order_search_test {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::Le;

// Twelve layers, some of them two or four times as long as the others.
PlanSource UnequalLayers(double memory) {
  PlanSource source;
  source.options.file = "layers.json";
  source.microbatches = 8;
  source.memory = memory;
  for (const double size : {1.0, 1.2, 0.8, 4.1, 1.1, 1.9, 1.0, 2.2, 0.9, 1.0, 4.0, 1.1}) {
    ProfilePart layer;
    layer.forward = 10 * size;
    layer.backward = 19 * size;
    layer.backward_input = 11 * size;
    layer.backward_weight = 8 * size;
    layer.activation_bytes = 1000 * size;
    layer.weight_bytes = 500;
    source.profile.parts.push_back(layer);
  }
  return source;
}

class OrderSearchTest : public testing::Test {
 protected:
  PredictedChoice BestOf(const std::string& family, const PlanSource& source) const {
    FamilySearchOptions options;
    options.ranks = 4;
    for (const ProfilePart& part : source.profile.parts) options.work.push_back(part.forward + part.backward);
    options.microbatches = {source.microbatches};
    options.schedule = family;
    const auto found = SearchFamilies(options, PredictorOf(source));
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() && !found->best.empty() ? found->best[0] : PredictedChoice();
  }

  std::optional<PredictedChoice> Ordered(const PredictedChoice& pipeline, const PlanSource& source) const {
    const StageCosts costs = [&](const PlanChoice& choice) { return CostsOf(source, choice); };
    return SearchOrder(pipeline, costs, PredictorOf(source), {source.memory});
  }
};

// zb_h1 does not fit, and zb_h2 even less.
TEST_F(OrderSearchTest, MemoryBetweenTwoFamilies_IsUsed) {
  const PlanSource source = UnequalLayers(24'000);
  const PredictedChoice pipeline = BestOf("1f1b", source);
  ASSERT_TRUE(IsPipeline(pipeline));
  EXPECT_EQ(BestOf("zb_h1", source).prediction.step, 0) << "it fits";
  const auto ordered = Ordered(pipeline, source);
  ASSERT_TRUE(ordered.has_value());
  EXPECT_LT(ordered->prediction.step, 0.95 * pipeline.prediction.step);
  EXPECT_THAT(ordered->prediction.peak_bytes, Each(Le(24'000)));
  EXPECT_EQ(ordered->prediction.ranks, 4);
}

TEST_F(OrderSearchTest, WithoutLimit_IsNoSlowerThanTheFamilies) {
  const PlanSource source = UnequalLayers(0);
  for (const char* family : {"1f1b", "gpipe", "zb_h1", "zb_h2"}) {
    const PredictedChoice pipeline = BestOf(family, source);
    ASSERT_TRUE(IsPipeline(pipeline)) << family;
    const auto ordered = Ordered(pipeline, source);
    ASSERT_TRUE(ordered.has_value());
    EXPECT_LE(ordered->prediction.step, pipeline.prediction.step * (1 + 1e-5)) << family;
  }
}

TEST_F(OrderSearchTest, BadCut_IsImproved) {
  const PlanSource source = UnequalLayers(0);
  PredictedChoice pipeline = BestOf("1f1b", source);
  pipeline.choice.layers_of_stage = {9, 1, 1, 1};
  const auto ordered = Ordered(pipeline, source);
  ASSERT_TRUE(ordered.has_value());
  EXPECT_LE(*std::max_element(ordered->choice.layers_of_stage.begin(), ordered->choice.layers_of_stage.end()),
            5);
}

TEST_F(OrderSearchTest, Order_IsAScheduleOfRows) {
  const PlanSource source = UnequalLayers(0);
  const auto ordered = Ordered(BestOf("1f1b", source), source);
  ASSERT_TRUE(ordered.has_value());
  EXPECT_EQ(ordered->choice.schedule.name, "file");
  EXPECT_EQ(ordered->choice.schedule.parameters.at("path"), kPlannedOrder);
  const std::string& rows = ordered->choice.schedule.parameters.at("actions");
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 4);
  EXPECT_THAT(rows, HasSubstr("\n3F0,3I0,"));
}

TEST_F(OrderSearchTest, SchedulesThatAreNoPipeline_AreToldApart) {
  const PlanSource source = UnequalLayers(0);
  EXPECT_FALSE(IsPipeline(BestOf("ddp,ranks=4", source)));
  EXPECT_FALSE(IsPipeline(BestOf("zb_v", source)));
  EXPECT_FALSE(IsPipeline(BestOf("lpp,groups=2,ranks=2", source)));
  EXPECT_FALSE(IsPipeline(BestOf("pipedream_2bw", source))) << "it reads old weights";
}

}  // namespace
}  // namespace weft::order_search_test
