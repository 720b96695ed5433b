// Plans the order of jobs of a pipeline: which forward, and which half of which backward, comes next on each
// rank. The families have rules for that, which suit equal stages; a search finds what suits unequal ones.
//
// A pipeline that a search found with one stage a rank gives the first cut. For it the planner finds an order
// (planner/split_order_search.h), which becomes a schedule of fixed rows, and is predicted as every choice
// is. Then layers move over cuts, with a new order each time, as long as the prediction becomes better: the
// best cut for one order is not that for another. Pure.
#ifndef WEFT_CLIENT_PLANNING_ORDER_SEARCH_H_
#define WEFT_CLIENT_PLANNING_ORDER_SEARCH_H_

#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "client/planning/plan_choice.h"
#include "schedules/simulator/simulate.h"

namespace weft {

// Returns times and bytes of the stages of a choice, also of one that lacks memory.
using StageCosts = std::function<absl::StatusOr<SimulationOptions>(const PlanChoice&)>;

struct OrderSearchOptions {
  double memory = 0;  // bytes of each rank; 0: no limit
  std::function<bool()> stop = [] { return false; };
};

// Returns true if stage s of the choice is on rank s alone and reads the newest weights.
bool IsPipeline(const PredictedChoice& choice);

// Returns nothing where no order fits. Requires a pipeline; it may lack memory itself, and is then predicted
// without a limit.
std::optional<PredictedChoice> SearchOrder(const PredictedChoice& pipeline, const StageCosts& costs,
                                           const PredictPlan& predict, const OrderSearchOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_PLANNING_ORDER_SEARCH_H_
