// Plans a run or a profile: the planned pattern, the planned order or the family of schedules that takes a
// step in the least predicted time and fits (docs/guide/plan.md).
//
// Patterns are found by the planner's exact search (planner/), families by predicting them (family_search.h),
// orders of a pipeline's jobs by search (order_search.h); all are predicted by the simulator, which decides
// between them. Reads the clock for the time limit.
#ifndef WEFT_CLIENT_PLANNING_MAKE_PLAN_H_
#define WEFT_CLIENT_PLANNING_MAKE_PLAN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/planning/plan_file.h"
#include "client/planning/plan_source.h"

namespace weft {

// Request of --schedule.
struct WantedPlan {
  std::vector<int> batches;  // patterns with windows of so many micro-batches; empty for no patterns
  bool contiguous = false;   // of these, only stages of neighbouring layers, one a rank
  bool families = false;     // also the families of schedules
  std::string family;        // only this one; empty for all
  bool orders = false;       // also pipelines with an order of their own
};

// Takes auto, order, periodic[,k=K][,contiguous], or a family as `weft simulate` takes it. InvalidArgument,
// which begins with the flag.
absl::StatusOr<WantedPlan> ParseWantedPlan(const std::string& text);

struct PlanLimits {
  int ranks = 1;
  double seconds = 10;             // of search; then the best found counts
  bool vary_microbatches = false;  // divisors of the batch, from a quarter to four times the run's
};

// Returns ResourceExhausted where nothing fits, with a memory with which a plan is found, if the time
// suffices to find one; OutOfRange where the flags ask for what these layers do not allow; InvalidArgument
// for what cannot be planned.
absl::StatusOr<PlanReport> MakePlan(const PlanSource& source, const WantedPlan& wanted,
                                    const PlanLimits& limits);

}  // namespace weft

#endif  // WEFT_CLIENT_PLANNING_MAKE_PLAN_H_
