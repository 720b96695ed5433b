// The family of planned patterns: it runs them with the period and the memory that they promise, and refuses
// what is no pattern.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_periodic_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Parameters = std::map<std::string, std::string>;

// Two batches a window, as published (Beaumont, Eyraud-Dubois, Shilova, HAL hal-02968802v1).
const Parameters& FourRanks() {
  static const auto* parameters = new Parameters{{"placement", "0+1+2+3"},
                                                 {"window", "12"},
                                                 {"forward", "0+3+5+7+6+19+21+23"},
                                                 {"backward", "15+13+11+9+33+29+27+25"}};
  return *parameters;
}
const Parameters& TwoRanks() {
  static const auto* parameters = new Parameters{
      {"placement", "0+1+0"}, {"window", "8"}, {"forward", "0+2+4+6+8+10"}, {"backward", "9+6+5+15+12+11"}};
  return *parameters;
}

Schedule MustMake(const Parameters& parameters, int stages, int microbatches) {
  const auto schedule = MakeSchedule("periodic", parameters, stages, microbatches);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
  return *schedule;
}

SimulationResult MustRun(const Schedule& schedule, const std::vector<double>& times,
                         const std::vector<double>& activation) {
  SimulationOptions options;
  options.duration[static_cast<int>(JobKind::kForward)] = times;
  options.duration[static_cast<int>(JobKind::kBackward)] = times;
  options.activation = activation;
  auto run = Simulate(Graph(WithoutTerms(schedule)), options);
  EXPECT_TRUE(run.ok()) << run.status();
  return *std::move(run);
}

// The time that each further micro-batch takes.
double PeriodOf(const Parameters& parameters, int stages, const std::vector<double>& times,
                const std::vector<double>& activation) {
  const double shorter = MustRun(MustMake(parameters, stages, 100), times, activation).makespan;
  const double longer = MustRun(MustMake(parameters, stages, 200), times, activation).makespan;
  return (longer - shorter) / 100;
}

TEST(Periodic, PatternOfFourRanks_TakesSixAMicrobatchWithFourTwoTwoOneActivations) {
  EXPECT_EQ(PeriodOf(FourRanks(), 4, {3, 2, 2, 2}, {1, 2, 2, 4}), 6);
  const SimulationResult run = MustRun(MustMake(FourRanks(), 4, 20), {3, 2, 2, 2}, {1, 2, 2, 4});
  std::vector<int> most;
  for (const RankStats& rank : run.ranks) {
    most.push_back(rank.peak_activations);
    EXPECT_EQ(rank.peak_activation_bytes, 4);
  }
  EXPECT_THAT(most, ElementsAre(4, 2, 2, 1));
}

TEST(Periodic, PatternOfTwoRanks_TakesFourAMicrobatchWithSixBytes) {
  EXPECT_EQ(PeriodOf(TwoRanks(), 3, {1, 2, 1}, {2, 3, 2}), 4);
  const SimulationResult run = MustRun(MustMake(TwoRanks(), 3, 20), {1, 2, 1}, {2, 3, 2});
  EXPECT_EQ(run.ranks[0].peak_activation_bytes, 6);
  EXPECT_EQ(run.ranks[1].peak_activation_bytes, 6);
}

TEST(Periodic, PatternUnderOtherTimes_KeepsItsActivations) {
  const SimulationResult run = MustRun(MustMake(TwoRanks(), 3, 21), {5, 1, 9}, {2, 3, 2});
  EXPECT_LE(run.ranks[0].peak_activation_bytes, 6);
  EXPECT_LE(run.ranks[1].peak_activation_bytes, 6);
}

TEST(Periodic, NoPattern_IsOneForwardOneBackward) {
  for (const int stages : {1, 2, 5}) {
    const SimulationResult periodic = MustRun(MustMake({}, stages, 7), {1}, {1});
    const auto other = MakeSchedule("1f1b", {}, stages, 7);
    const SimulationResult one_by_one = MustRun(*other, {1}, {1});
    EXPECT_EQ(periodic.makespan, one_by_one.makespan);
    for (int rank = 0; rank < stages; ++rank)
      EXPECT_EQ(periodic.ranks[rank].peak_activations, one_by_one.ranks[rank].peak_activations);
  }
}

TEST(Periodic, WhatIsNoPattern_IsRefusedWithTheParameter) {
  const auto message = [](Parameters changed, const Parameters& pattern = TwoRanks(), int stages = 3) {
    changed.insert(pattern.begin(), pattern.end());
    const auto schedule = MakeSchedule("periodic", changed, stages, 8);
    return std::string(schedule.status().message());
  };
  EXPECT_EQ(message({}), "");
  EXPECT_THAT(message({{"placement", "0+1"}}), HasSubstr("placement: names 2 ranks for 3 stages"));
  EXPECT_THAT(message({{"placement", "0+2+0"}}), HasSubstr("placement: leaves rank 1 without a stage"));
  EXPECT_THAT(message({{"placement", "0+9007199254740992+0"}}), HasSubstr("placement: leaves rank 1"));
  EXPECT_THAT(message({{"window", "0"}}), HasSubstr("window: '0'"));
  EXPECT_THAT(message({{"window", "9007199254740992"}}), HasSubstr("window: 8 windows"));
  EXPECT_THAT(message({{"window", "3+4"}}), HasSubstr("window: is one number"));
  EXPECT_THAT(message({{"forward", "0+2+4+6"}}), HasSubstr("forward: has 4 starts for 3 stages"));
  EXPECT_THAT(message({{"forward", "0+2+4"}}), HasSubstr("backward: has 6 starts, and forward has 3"));
  EXPECT_THAT(message({{"forward", "0+4+3+6+8+10"}}), HasSubstr("forward: stage 2 starts at 3"));
  EXPECT_THAT(message({{"backward", "9+6+3+15+12+11"}}), HasSubstr("backward: stage 2 starts at 3"));
  EXPECT_THAT(message({{"backward", "8+6+5+15+12+11"}}),
              HasSubstr("window: jobs of stage 0 and of stage 0 start"));
  EXPECT_THAT(std::string(MakeSchedule("periodic", {{"window", "4"}}, 3, 8).status().message()),
              HasSubstr("periodic needs `placement`"));
}

}  // namespace
}  // namespace weft::schedule_periodic_test
