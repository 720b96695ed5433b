// Checks and simulates a family's schedule, or says why there is none.
#ifndef WEFT_TESTS_UNIT_SIMULATED_FAMILY_H_
#define WEFT_TESTS_UNIT_SIMULATED_FAMILY_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/without_terms.h"

namespace weft {

using Parameters = std::map<std::string, std::string>;

// Times of a forward, a fused backward, and its halves.
struct Times {
  double forward = 1, backward = 2, input = 1, weight = 1;
};

inline SimulationResult MustSimulate(const std::string& name, const Parameters& parameters, int stages,
                                     int microbatches, const Times& times = {}, int steps = 1) {
  SCOPED_TRACE(absl::StrCat(name, " S=", stages, " B=", microbatches));
  auto schedule = MakeSchedule(name, parameters, stages, microbatches);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
  SimulationOptions options;
  options.steps = steps;
  options.duration[static_cast<int>(JobKind::kForward)] = {times.forward};
  options.duration[static_cast<int>(JobKind::kBackward)] = {times.backward};
  options.duration[static_cast<int>(JobKind::kBackwardInput)] = {times.input};
  options.duration[static_cast<int>(JobKind::kBackwardWeight)] = {times.weight};
  auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
  EXPECT_TRUE(run.ok()) << run.status();
  return *std::move(run);
}

inline std::string Refusal(const std::string& name, const Parameters& parameters, int stages,
                           int microbatches) {
  const auto schedule = MakeSchedule(name, parameters, stages, microbatches);
  EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(schedule.status().message());
}

inline int MaxActivations(const SimulationResult& run) {
  int most = 0;
  for (const RankStats& r : run.ranks) most = std::max(most, r.peak_activations);
  return most;
}

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_SIMULATED_FAMILY_H_
