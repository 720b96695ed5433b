// Turns a profile into the planner's chain, and a plan into the schedule that runs it and the file that says
// it.
//
// The planner counts in ticks. A tick is chosen so that times which are simple fractions of each other, as
// people write them, stay exact; measured times are rounded up to a millionth of the longest layer. A plan
// file is YAML with the keys `schedule` and `stages` of a run file, so it can stand in one (schedule: {file:
// plan.yaml}), and be simulated. What else it says is for its readers.
#ifndef WEFT_CLIENT_FILES_PLAN_FILE_H_
#define WEFT_CLIENT_FILES_PLAN_FILE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/files/profile.h"
#include "nlohmann/json_fwd.hpp"
#include "planner/chain.h"
#include "planner/pipedream.h"
#include "planner/plan.h"
#include "run/run_spec.h"

namespace weft {

// A chain with the length of its ticks.
struct TickedChain {
  PlannedChain chain;
  double ticks_per_unit = 1;  // of the profile's time

  double TimeOf(double ticks) const { return ticks / ticks_per_unit; }
};

// `memory` is of each rank, 0 for no limit. InvalidArgument for a profile whose layers cannot be planned.
absl::StatusOr<TickedChain> ChainOf(const Profile& profile, int ranks, double memory);

// Returns `periodic` with the plan's pattern.
ScheduleSpec ScheduleOfPlan(const Plan& plan);

// A plan's prediction, in the units of its profile.
struct PlanReport {
  std::string source;  // the file that was planned for, or its profile
  std::string unit;    // of times; empty for any
  int layers = 0;
  Plan plan;
  ContiguousPlan pipedream;  // the baseline
  double ticks_per_unit = 1;
  double step = 0;                 // predicted time of a step
  int microbatches = 0;            // of that step; 0 for a window that neither fills nor drains
  std::vector<double> peak_bytes;  // by rank
};

nlohmann::ordered_json PlanJson(const PlanReport& report);
std::string PlanYaml(const PlanReport& report);
std::string PlanTable(const PlanReport& report);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_PLAN_FILE_H_
