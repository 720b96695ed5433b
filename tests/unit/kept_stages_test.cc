#include "schedules/dispatch/kept_stages.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"

namespace weft::kept_stages_test {
namespace {

Graph GraphOf(const std::string& name, const std::map<std::string, std::string>& parameters, int size,
              const std::string& rule = "sync") {
  Schedule schedule = *MakeSchedule(name, parameters, size, size);
  EXPECT_TRUE(ApplyRule(rule, name, &schedule).ok());
  return Graph(WithoutTerms(schedule));
}

TEST(KeptByRanks, PipelineOnOldWeights_KeepsAVersionMoreForEachStepOfLag) {
  const Graph graph = GraphOf("gpipe", {}, 3, "cdp_v1");
  const auto kept = KeptByRanks(graph), of_one_step = KeptByRanks(graph, 1);
  ASSERT_EQ(kept.size(), 3u);
  for (Rank rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(kept[rank].size(), 1u);
    const KeptOfStage& stage = kept[rank].front();
    EXPECT_EQ(stage.stage, rank);
    ASSERT_TRUE(stage.kept.has_value());
    EXPECT_EQ(stage.kept->versions, 1 + graph.schedule().MaxStaleness(rank));
    EXPECT_EQ(stage.kept->sums, 1 + graph.schedule().MaxStaleness(rank));
    EXPECT_FALSE(stage.fetches || stage.goes_on);
    EXPECT_EQ(stage.handed_out, 0);
    EXPECT_EQ(of_one_step[rank].front().kept->sums, 1) << "a run of one step sums once";
    EXPECT_LE(of_one_step[rank].front().kept->versions, 2);
  }
}

TEST(KeptByRanks, DataParallel_HandsOutTheGradientsOfItsMicrobatches) {
  const Graph graph = GraphOf("ddp", {}, 4);
  for (const std::vector<KeptOfStage>& of_rank : KeptByRanks(graph)) {
    ASSERT_EQ(of_rank.size(), 4u) << "every rank holds every stage";
    for (const KeptOfStage& stage : of_rank) {
      EXPECT_EQ(stage.handed_out, 1);
      EXPECT_EQ(stage.handed_on, 0);
      EXPECT_EQ(stage.kept->parts_of_sum, 4);
      EXPECT_EQ(stage.kept->sums_leaving, 1) << "others may take it while the next step's is made";
    }
  }
  EXPECT_EQ(KeptByRanks(graph, 1)[0][0].kept->sums_leaving, 0) << "there is no next step";
  RunSchedule joint = WithoutTerms(graph.schedule());
  joint.terms.reduction = ReductionMode::kFast;
  EXPECT_EQ(KeptByRanks(Graph(joint))[0][0].kept->sums_leaving, 0) << "a joint sum leaves nobody's memory";
}

TEST(KeptByRanks, ShardedStages_AreKeptByTheirHolderAndFetchedByTheOthers) {
  for (Rank rank = 0; const std::vector<KeptOfStage>& of_rank : KeptByRanks(GraphOf("fsdp", {}, 3))) {
    ASSERT_EQ(of_rank.size(), 3u);
    for (const KeptOfStage& stage : of_rank) {
      EXPECT_EQ(stage.kept.has_value(), stage.stage == rank);
      EXPECT_EQ(stage.fetches, stage.stage != rank);
    }
    ++rank;
  }
}

TEST(KeptByRanks, MigratingStates_AreKeptByEveryRankOfTheirRoute) {
  for (const std::vector<KeptOfStage>& of_rank :
       KeptByRanks(GraphOf("fsdp", {{"residency", "migrating"}}, 3, "cdp_v1"))) {
    ASSERT_EQ(of_rank.size(), 3u);
    for (const KeptOfStage& stage : of_rank) {
      EXPECT_TRUE(stage.goes_on && stage.kept.has_value());
      EXPECT_EQ(stage.kept->versions, 2);
      EXPECT_EQ(stage.kept->sums, 1);
      EXPECT_FALSE(stage.fetches);
    }
  }
}

}  // namespace
}  // namespace weft::kept_stages_test
