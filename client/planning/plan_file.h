// Turns a profile into the planner's chain, a pattern into the schedule that runs it, and a plan into the
// file that says it.
//
// The planner counts in ticks. A tick is chosen so that times which are simple fractions of each other, as
// people write them, stay exact; measured times are rounded up to a millionth of the longest layer. A plan
// file is YAML with keys of a run file: `schedule`, `stages`, and `microbatches` where it chose them for a
// run, and `buffers` where a profile measured them. So it can take their place in one (schedule: {file:
// plan.yaml}, or --plan), and be simulated. Its key
// `plan` says for what it was made and what is predicted.
#ifndef WEFT_CLIENT_PLANNING_PLAN_FILE_H_
#define WEFT_CLIENT_PLANNING_PLAN_FILE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/files/profile.h"
#include "client/planning/plan_choice.h"
#include "client/planning/plan_placement.h"
#include "nlohmann/json_fwd.hpp"
#include "planner/chain.h"
#include "planner/pipedream.h"
#include "planner/plan.h"
#include "run/network_spec.h"
#include "run/run_spec.h"
#include "schedules/drawing/drawing.h"

namespace weft {

// A chain with the length of its ticks.
struct TickedChain {
  PlannedChain chain;
  double ticks_per_unit = 1;  // of the profile's time

  double TimeOf(double ticks) const { return ticks / ticks_per_unit; }
};

// `memory` is of each rank, 0 for no limit; `network` may be null. InvalidArgument for a profile whose layers
// cannot be planned, or a network of other ranks.
absl::StatusOr<TickedChain> ChainOf(const Profile& profile, int ranks, double memory,
                                    const NetworkSpec* network = nullptr);

// Returns true if a transfer of the plan takes longer than is counted, so that its period is too short.
bool HasCappedTransfer(const PlannedChain& chain, const Plan& plan);

// Returns `periodic` with the plan's pattern.
ScheduleSpec ScheduleOfPlan(const Plan& plan);

// A plan and its prediction, in the units of its profile.
struct PlanReport {
  std::string source;                 // the file that was planned for, or its profile
  std::string profile, profile_hash;  // file that was measured, and its hash; empty where FLOPs were counted
  std::optional<MeasuredBuffers> buffers;  // of the run's jobs, by which the plan fits
  bool of_run = true;                      // false for a plan of a profile alone, which knows no reduction
  int timed_ranks = 0;                     // ranks that were busy when jobs were timed; 0 where not known
  std::string unit;                        // of times; empty for any
  double weight_bytes = 0;                 // of the run's model; 0 for a plan of a profile alone
  int ranks = 1;
  PlanChoice choice;
  std::optional<Plan> pattern;                 // if the choice is a planned pattern
  double ticks_per_unit = 1;                   // of the pattern
  double step = 0;                             // predicted time of a step
  double step_bound = 0;                       // no step is shorter; 0 where that is not known
  int microbatches = 0;                        // of that step; 0 for a window that neither fills nor drains
  std::vector<double> held_bytes, peak_bytes;  // by rank
  PlanPlacement placement;
  double memory = 0;         // of each rank, that the plan fits; 0 for no limit
  ContiguousPlan pipedream;  // the baseline
  double pipedream_period = 0;
  std::vector<PredictedChoice> others;  // the best of the other schedules, fastest first
  bool stopped = false;                 // the time was over before all was tried
};

nlohmann::ordered_json PlanJson(const PlanReport& report);
std::string PlanYaml(const PlanReport& report);
// Returns what the file says in the place of these keys of a run: `schedule`, `stages`, `microbatches` and
// `buffers`.
nlohmann::json PlanKeys(const PlanReport& report);
// Returns what a person wants to know of it, the most important first.
std::string PlanTable(const PlanReport& report, const TextStyle& style = {});
// Says in one line what was chosen and why.
std::string PlanLine(const PlanReport& report);

}  // namespace weft

#endif  // WEFT_CLIENT_PLANNING_PLAN_FILE_H_
