// Times that a simulation charges for sums of gradients, by the protocol of the stage, and for the first
// micro-batch of a step on a rank, against times by hand. A forward and a backward take 1 each.
#include <string>

#include "gtest/gtest.h"
#include "schedules/sync/catalogue.h"
#include "tests/unit/simulated_family.h"
#include "tests/unit/without_terms.h"

namespace weft::simulated_costs_test {
namespace {

constexpr double kSum = 4, kUpdate = 10;  // of a whole stage

double MakespanOf(Schedule schedule, double update = kUpdate, double cold = 0) {
  SimulationOptions options;
  options.accumulate = {kSum};
  options.cold = {cold};
  options.duration[static_cast<int>(JobKind::kUpdate)] = {update};
  auto run = Simulate(Graph(WithoutTerms(std::move(schedule))), options);
  EXPECT_TRUE(run.ok()) << run.status();
  return run->makespan;
}

TEST(GradientSums, EachHolderOfAWholeStage_SumsASliceOfAllMicrobatches) {
  EXPECT_DOUBLE_EQ(MakespanOf(*MakeSchedule("ddp", {}, 1, 2)), 2 + 2 * kSum / 2 + kUpdate);
  EXPECT_DOUBLE_EQ(MakespanOf(*MakeSchedule("ddp", {}, 1, 4)), 2 + 4 * kSum / 4 + kUpdate);
  EXPECT_DOUBLE_EQ(MakespanOf(*MakeSchedule("ddp", {{"ranks", "2"}}, 1, 4)), 4 + 4 * kSum / 2 + kUpdate);
}

TEST(GradientSums, SingleHolder_SumsInItsBackwards) {
  EXPECT_DOUBLE_EQ(MakespanOf(*MakeSchedule("1f1b", {}, 1, 4)), 8 + kUpdate);
}

TEST(GradientSums, GradientsThatLeave_AreSummedByTheOneHolderBeforeItsUpdate) {
  EXPECT_DOUBLE_EQ(MakespanOf(*MakeSchedule("fsdp", {}, 1, 3)), 2 + 3 * kSum + kUpdate);
}

TEST(GradientSums, RunningSum_TakesItsTimeInEachBackwardButTheFirst) {
  Schedule schedule = *MakeSchedule("ddp", {}, 1, 3);
  schedule.sync = Relayed();
  EXPECT_DOUBLE_EQ(MakespanOf(schedule, 0), 2 + (1 + kSum) + (1 + kSum));
}

TEST(ColdMicrobatch, FirstOfEachRank_TakesLonger) {
  EXPECT_DOUBLE_EQ(MakespanOf(*MakeSchedule("1f1b", {}, 1, 4), 0, 0.5), 8.5);
  EXPECT_DOUBLE_EQ(MakespanOf(*MakeSchedule("ddp", {{"ranks", "2"}}, 1, 4), 0, 0.5), 4.5 + 4 * kSum / 2)
      << "each rank has a first one";
  EXPECT_DOUBLE_EQ(MakespanOf(*MakeSchedule("1f1b", {}, 2, 2), 0, 0.5), 6 + 2 * 0.5)
      << "the second stage begins later, and is cold as well";
}

// A rank of half the speed takes twice as long to send and wake, too.
TEST(Dispatch, EachJob_CostsItsRankTheSame) {
  const auto makespan_of = [](const char* schedule, double speed) {
    const Graph graph(WithoutTerms(*MakeSchedule(schedule, {}, 1, 4)));
    SimulationOptions options;
    options.dispatch = 0.25;
    options.network.speeds.assign(graph.schedule().ranks, speed);
    options.duration[static_cast<int>(JobKind::kUpdate)] = {kUpdate};
    const auto run = Simulate(graph, options);
    EXPECT_TRUE(run.ok()) << run.status();
    return run->makespan;
  };
  EXPECT_DOUBLE_EQ(makespan_of("1f1b", 1), 4 * (1 + 1) + kUpdate + 9 * 0.25);
  EXPECT_DOUBLE_EQ(makespan_of("1f1b", 0.5), 2 * (4 * (1 + 1) + kUpdate + 9 * 0.25));
  EXPECT_DOUBLE_EQ(makespan_of("ddp", 1), 1 + 1 + kUpdate + 4 * 0.25) << "and a reduce";
  EXPECT_DOUBLE_EQ(makespan_of("zb_h1", 1), 4 * (1 + 1 + 1) + kUpdate + 13 * 0.25) << "halves are jobs";
}

}  // namespace
}  // namespace weft::simulated_costs_test
