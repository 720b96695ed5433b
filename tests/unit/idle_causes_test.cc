// Tests why the simulator's ranks are idle: the same words, and the same meaning, as of a worker's ranks.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/without_terms.h"

namespace weft::idle_causes_test {
namespace {

double Of(const RankStats& rank, IdleCause cause) { return rank.idle_by_cause[static_cast<int>(cause)]; }

SimulationResult MustRun(const Schedule& schedule, SimulationOptions options) {
  options.record_jobs = options.record_waits = true;
  const Graph graph(WithoutTerms(schedule));
  auto result = Simulate(graph, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

SimulationOptions Durations(double forward, double backward) {
  SimulationOptions options;
  options.duration[static_cast<int>(JobKind::kForward)] = {forward};
  options.duration[static_cast<int>(JobKind::kBackward)] = {backward};
  return options;
}

TEST(IdleCauses_EveryFamily, JobsAndIdleIntervalsTileTheTimeOfEachRank) {
  for (const Family& family : Families()) {
    std::map<std::string, std::string> parameters;
    for (const FamilyParameter& p : family.parameters) {
      if (p.name == "groups" || p.name == "ranks") parameters[p.name] = "2";
    }
    auto schedule = MakeSchedule(family.name, parameters, 4, 4);
    for (const int microbatches : {1, 8}) {
      if (!schedule.ok()) schedule = MakeSchedule(family.name, parameters, 4, microbatches);
    }
    ASSERT_TRUE(schedule.ok()) << family.name << ": " << schedule.status();
    ASSERT_TRUE(ApplyRule(family.default_rule, family.name, &*schedule).ok()) << family.name;
    SimulationOptions options = Durations(1, 2);
    options.steps = 3;
    options.latency = 0.25;
    options.duration[static_cast<int>(JobKind::kUpdate)] = {0.5};
    const SimulationResult result = MustRun(*schedule, options);
    for (Rank rank = 0; rank < schedule->ranks; ++rank) {
      const RankStats& stats = result.ranks[rank];
      double sum = 0;
      for (const double idle : stats.idle_by_cause) sum += idle;
      EXPECT_NEAR(sum, stats.idle, 1e-9) << family.name << ", rank " << rank;
      std::vector<std::pair<double, double>> spans;
      for (const SimulatedJob& j : result.jobs) {
        if (j.rank == rank && j.end > j.start) spans.emplace_back(j.start, j.end);
      }
      for (const IdleInterval& i : result.idle) {
        if (i.rank == rank) spans.emplace_back(i.start, i.end);
      }
      std::sort(spans.begin(), spans.end());
      double end = 0;
      for (const auto& [from, to] : spans) {
        EXPECT_LE(from, end + 1e-9) << family.name << ", rank " << rank << ": nothing is said of this time";
        end = std::max(end, to);
      }
      EXPECT_NEAR(end, result.makespan, 1e-9) << family.name << ", rank " << rank;
    }
  }
}

TEST(IdleCauses_Limit, OneForwardOneBackward_WaitsForItsOwnLimitAndNeverForMemory) {
  const SimulationResult result = MustRun(*MakeSchedule("1f1b", {}, 4, 8), Durations(1, 2));
  // The first backward is on its way through the other three stages after four forwards. At the end no
  // forward is left: the last backward is waited for.
  EXPECT_DOUBLE_EQ(Of(result.ranks[0], IdleCause::kLimit), 6);
  EXPECT_DOUBLE_EQ(Of(result.ranks[0], IdleCause::kMemory), 0);
  EXPECT_DOUBLE_EQ(Of(result.ranks[0], IdleCause::kDependency), 3);
  // The last stage waits for its first input, and has nothing to do when the others still compute.
  EXPECT_DOUBLE_EQ(Of(result.ranks[3], IdleCause::kDependency), 3);
  EXPECT_DOUBLE_EQ(Of(result.ranks[3], IdleCause::kNoWork), 6);
}

TEST(IdleCauses_Memory, BudgetOfBytesWithoutALimit_IsMemory) {
  SimulationOptions options = Durations(1, 2);
  options.activation = {100};
  options.memory = 200;
  const SimulationResult result = MustRun(*MakeSchedule("gpipe", {}, 4, 8), options);
  EXPECT_GT(Of(result.ranks[0], IdleCause::kMemory), 0);
  EXPECT_DOUBLE_EQ(Of(result.ranks[0], IdleCause::kLimit), 0);
  options.memory = 0;
  const SimulationResult free = MustRun(*MakeSchedule("gpipe", {}, 4, 8), options);
  for (const RankStats& rank : free.ranks) EXPECT_DOUBLE_EQ(Of(rank, IdleCause::kMemory), 0);
}

TEST(IdleCauses_Transfer, TimeOnALinkIsApartFromTheBubble) {
  SimulationOptions options = Durations(1, 1);
  options.latency = 5;
  const SimulationResult result = MustRun(*MakeSchedule("gpipe", {}, 2, 1), options);
  // Rank 1 waits one for the forward before it, and five for its output.
  EXPECT_DOUBLE_EQ(Of(result.ranks[1], IdleCause::kDependency), 1);
  EXPECT_DOUBLE_EQ(Of(result.ranks[1], IdleCause::kTransfer), 5);
  EXPECT_DOUBLE_EQ(Of(result.ranks[0], IdleCause::kTransfer), 5);
  ASSERT_EQ(result.transfers.size(), 2u);
  EXPECT_EQ(result.transfers[0].from, 0);
  EXPECT_EQ(result.transfers[0].to, 1);
  EXPECT_EQ(result.transfers[0].tensor, TensorKind::kActivation);
  EXPECT_EQ(result.transfers[0].consumer, Job::Compute(0, 1, 0, JobKind::kForward));
  EXPECT_DOUBLE_EQ(result.transfers[0].start, 1);
  EXPECT_DOUBLE_EQ(result.transfers[0].end, 6);
}

TEST(IdleCauses_Reduce, GradientsOfOtherReplicas_AreWaitedFor) {
  Schedule schedule = *MakeSchedule("ddp", {}, 2, 2);
  SimulationOptions options = Durations(1, 1);
  options.latency = 2;
  const SimulationResult result = MustRun(schedule, options);
  double reduce = 0;
  for (const RankStats& rank : result.ranks) reduce += Of(rank, IdleCause::kReduce);
  EXPECT_DOUBLE_EQ(reduce + result.IdleByCause()[static_cast<int>(IdleCause::kTransfer)],
                   result.ranks[0].idle + result.ranks[1].idle);
  EXPECT_GT(result.IdleByCause()[static_cast<int>(IdleCause::kTransfer)], 0);
}

TEST(IdleCauses_NoWork, RankWithoutJobs_HasNoneAllTheTime) {
  Schedule schedule = *MakeSchedule("gpipe", {}, 2, 2);
  schedule.ranks = 3;
  SimulationOptions options = Durations(1, 1);
  options.steps = 50;
  const SimulationResult result = MustRun(schedule, options);
  EXPECT_DOUBLE_EQ(Of(result.ranks[2], IdleCause::kNoWork), result.makespan);
}

}  // namespace
}  // namespace weft::idle_causes_test
