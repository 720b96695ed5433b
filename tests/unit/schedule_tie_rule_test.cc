// The order of ready jobs and the number of micro-batches in flight, which any greedy placement takes, and
// those families that count their micro-batches in flight by rules of their own.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/simulated_family.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_tie_rule_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Forward and backward 1 each.
SimulationResult WithTransfers(const std::string& name, const Parameters& parameters, int stages,
                               int microbatches, double latency, int steps = 1) {
  const auto schedule = MakeSchedule(name, parameters, stages, microbatches);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
  SimulationOptions options;
  options.latency = latency;
  options.steps = steps;
  auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
  EXPECT_TRUE(run.ok()) << run.status();
  return *std::move(run);
}

std::vector<int> Peaks(const SimulationResult& run) {
  std::vector<int> peaks;
  for (const RankStats& r : run.ranks) peaks.push_back(r.peak_activations);
  return peaks;
}

void ExpectSameJobs(const std::string& name, const Parameters& parameters, const std::string& other,
                    const Parameters& others, int stages, int microbatches) {
  SCOPED_TRACE(absl::StrCat(name, " as ", other, ", S=", stages, " B=", microbatches));
  const auto jobs = [&](const std::string& of, const Parameters& with) {
    const auto schedule = MakeSchedule(of, with, stages, microbatches);
    EXPECT_TRUE(schedule.ok()) << schedule.status();
    SimulationOptions options;
    options.duration[static_cast<int>(JobKind::kBackward)] = {2};
    options.record_jobs = true;
    options.steps = 2;
    return Simulate(Graph(WithoutTerms(*schedule)), options)->jobs;
  };
  const std::vector<SimulatedJob> one = jobs(name, parameters), two = jobs(other, others);
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) {
    ASSERT_EQ(one[i].job, two[i].job) << Describe(one[i].job) << " and " << Describe(two[i].job);
    ASSERT_EQ(one[i].rank, two[i].rank);
    ASSERT_EQ(one[i].start, two[i].start) << Describe(one[i].job);
  }
}

// (S/R) min(S, B/G) is published for lpp. It is that of S micro-batches in flight; with all forwards first a
// rank keeps all that pass it.
TEST(Lpp, AsManyMicrobatchesInFlightAsStages_PeakIsThePublishedForm) {
  for (const int stages : {4, 8, 12}) {
    for (const int ring : {1, 2, 4}) {
      for (const int groups : {1, 2, 4}) {
        for (const int of_group : {1, 2, 4, 8, 12, 24}) {
          for (const Times& times : {Times{1, 1}, Times{1, 2}, Times{1, 3}}) {
            Parameters parameters = {{"groups", absl::StrCat(groups)}, {"ranks", absl::StrCat(ring)}};
            const int microbatches = of_group * groups, on_rank = stages / ring;
            SCOPED_TRACE(absl::StrCat("S=", stages, " B=", microbatches, " G=", groups, " R=", ring));
            EXPECT_EQ(MaxActivations(MustSimulate("lpp", parameters, stages, microbatches, times)),
                      on_rank * of_group);
            parameters["in_flight"] = "S";
            EXPECT_EQ(MaxActivations(MustSimulate("lpp", parameters, stages, microbatches, times)),
                      on_rank * std::min(stages, of_group));
            EXPECT_EQ(MaxActivations(MustSimulate("fslpp", parameters, stages, microbatches, times)),
                      on_rank * std::min(stages, of_group));
          }
        }
      }
    }
  }
}

TEST(TieRule, OrderOfAnotherFamilyOnItsPlacement_IsThatFamily) {
  ExpectSameJobs("gpipe", {{"order", "1f1b"}}, "1f1b", {}, 4, 9);
  ExpectSameJobs("1f1b", {{"order", "forwards_first"}, {"in_flight", "B"}}, "gpipe", {}, 4, 9);
  ExpectSameJobs("lpp", {{"groups", "1"}, {"ranks", "5"}, {"order", "1f1b"}}, "1f1b", {}, 5, 7);
  for (const char* order : {"depth_first", "breadth_first"}) {
    ExpectSameJobs("lpp", {{"groups", "1"}, {"ranks", "2"}, {"order", order}}, order, {{"ranks", "2"}}, 6, 8);
  }
  ExpectSameJobs("custom", {{"ranks", "2"}, {"compute", "s % W"}, {"order", "depth_first"}}, "depth_first",
                 {{"ranks", "2"}}, 4, 6);
  ExpectSameJobs("custom", {{"ranks", "4"}, {"compute", "s"}, {"order", "1f1b"}}, "1f1b", {}, 4, 6);
}

// A micro-batch is S - s ticks of forward and backward and 2 (S-1-s) transfers under way behind stage s, and
// one of them enters every two ticks. Transfers of one tick need one more in flight for each stage behind.
TEST(InFlight, OneForwardOneBackwardWithTransfersOfATick_TakesGPipesTime) {
  EXPECT_DOUBLE_EQ(WithTransfers("1f1b", {}, 4, 8, 1).makespan, 38);
  EXPECT_DOUBLE_EQ(WithTransfers("gpipe", {}, 4, 8, 1).makespan, 28);
  const SimulationResult deep = WithTransfers("1f1b", {{"in_flight", "2*(S-s)-1"}}, 4, 8, 1);
  EXPECT_DOUBLE_EQ(deep.makespan, 28);
  EXPECT_THAT(Peaks(deep), ElementsAre(7, 5, 3, 1));
}

TEST(InFlight, PipeDreamWithTransfersOfATick_IsAlwaysFullOnOlderWeights) {
  EXPECT_DOUBLE_EQ(WithTransfers("pipedream", {}, 4, 1, 1, 40).period, 3.5);
  const SimulationResult deep = WithTransfers("pipedream", {{"in_flight", "2*(S-s)-1"}}, 4, 1, 1, 40);
  EXPECT_DOUBLE_EQ(deep.period, 2);
  EXPECT_THAT(Peaks(deep), ElementsAre(7, 5, 3, 1));
  EXPECT_EQ(deep.ranks[0].peak_weight_versions, 7);
  EXPECT_EQ(deep.ranks[3].peak_weight_versions, 1);
  const auto schedule = MakeSchedule("pipedream", {{"in_flight", "2*(S-s)-1"}}, 4, 1);
  EXPECT_EQ(schedule->StalenessOf(0, 0), 6);
  EXPECT_EQ(schedule->StalenessOf(3, 0), 0);
}

TEST(InFlight, PipeDream2BwWithTransfersOfATick_IsAlwaysFullOnTwoVersions) {
  EXPECT_DOUBLE_EQ(WithTransfers("pipedream_2bw", {}, 4, 8, 1, 10).period, 28);
  const SimulationResult deep = WithTransfers("pipedream_2bw", {{"in_flight", "2*(S-s)-1"}}, 4, 8, 1, 10);
  EXPECT_DOUBLE_EQ(deep.period, 16);
  EXPECT_EQ(deep.ranks[0].peak_weight_versions, 2);
}

TEST(InFlight, Interleaved_IsTheWarmUpPlusOne) {
  const Parameters plain = {{"ranks", "4"}};
  Parameters same = plain, less = plain;
  same["in_flight"] = "2*(W-1-w) + W + 1";
  less["in_flight"] = "(W-1-w) + W + 1";
  EXPECT_THAT(Peaks(MustSimulate("interleaved", plain, 8, 8)), ElementsAre(11, 9, 7, 5));
  ExpectSameJobs("interleaved", same, "interleaved", plain, 8, 8);
  EXPECT_THAT(Peaks(MustSimulate("interleaved", less, 8, 8)), ElementsAre(8, 7, 6, 5));
  EXPECT_THAT(Refusal("interleaved", {{"ranks", "4"}, {"in_flight", "W - 1 - w"}}, 8, 8),
              HasSubstr("in_flight is 0 for rank 3"));
}

TEST(TieRule, WhatIsNoOrderOrNumber_IsRefusedWithTheReason) {
  EXPECT_THAT(
      Refusal("gpipe", {{"order", "deepth_first"}}, 4, 8),
      HasSubstr("gpipe: order is 'deepth_first'; it must be one of forwards_first, 1f1b, depth_first, "
                "breadth_first; did you mean \"depth_first\"?"));
  EXPECT_THAT(Refusal("1f1b", {{"in_flight", "S - x"}}, 4, 8), HasSubstr("1f1b: in_flight is no formula"));
  EXPECT_THAT(Refusal("1f1b", {{"in_flight", "4 / s"}}, 4, 8), HasSubstr("for stage 0 on rank 0"));
  EXPECT_THAT(Refusal("pipedream", {{"in_flight", "s"}}, 4, 1), HasSubstr("in_flight is 0 for stage 0"));
  EXPECT_THAT(Refusal("custom",
                      {{"ranks", "2"}, {"compute", "s % W"}, {"order", "1f1b"}, {"priority", "b*S+s"}}, 4, 8),
              HasSubstr("leave one out"));
  const auto none = MakeSchedule("1f1b", {{"in_flight", "S - 1 - s"}}, 4, 8);
  ASSERT_TRUE(none.ok());
  EXPECT_THAT(std::string(CheckSchedule(WithoutTerms(*none)).message()),
              HasSubstr("the limit of stage 3 on rank 3 is 0"));
}

// The chain of four layers on four ranks whose strict 1F1B patterns have a period of 8 within 4, 2, 2, 1
// activations (F = B = 3, 2, 2, 2); pairs of micro-batches reach 6.
TEST(InFlight, LimitsOnOldWeights_AreAcceptedAndReachTheWorkBound) {
  const Parameters parameters = {
      {"ranks", "4"}, {"compute", "s"}, {"staleness", "S - 1 - s"}, {"limit", "s == 0 ? 4 : s == 3 ? 1 : 2"}};
  const auto schedule = MakeSchedule("custom", parameters, 4, 1);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  ASSERT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
  SimulationOptions options;
  for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
    options.duration[static_cast<int>(kind)] = {3, 2, 2, 2};
  }
  for (const int steps : {2, 100, 2000}) {
    options.steps = steps;
    const auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_DOUBLE_EQ(run->period, 6) << steps << " steps";
    for (size_t r = 0; r < 4; ++r) EXPECT_LE(run->ranks[r].peak_activations, (std::vector{4, 2, 2, 1}[r]));
  }
}

// The ends of the last steps are nearer: nothing new enters.
TEST(Period, RunsThatDoNotDrain_AreMeasuredBeforeTheFinalDrain) {
  const auto schedule = MakeSchedule("pipedream", {}, 4, 1);
  SimulationOptions options;
  for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
    options.duration[static_cast<int>(kind)] = {3, 2, 2, 2};
  }
  std::vector<double> periods;
  for (const int steps : {2, 5, 8, 100, 101, 1000}) {
    options.steps = steps;
    periods.push_back(Simulate(Graph(WithoutTerms(*schedule)), options)->period);
    EXPECT_GE(periods.back(), 6) << steps << " steps: the work of the first stage";
    EXPECT_NEAR(periods.back(), 6.4, 1e-6) << steps << " steps";
  }
  options.steps = 1;
  const auto one = Simulate(Graph(WithoutTerms(*schedule)), options);
  EXPECT_EQ(one->period, one->makespan);
}

}  // namespace
}  // namespace weft::schedule_tie_rule_test
