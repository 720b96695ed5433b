// Puts a pipeline into the terms in which the planner orders its jobs (planner/split_order.h), and an order
// into a schedule: rows of actions, with split backwards.
//
// The planner counts whole ticks, and knows one time for the transfers between two stages. The caller lets
// the simulator, which knows more, predict the schedule. Pure.
#ifndef WEFT_COORDINATOR_REPLANNING_PIPELINE_ORDER_H_
#define WEFT_COORDINATOR_REPLANNING_PIPELINE_ORDER_H_

#include <vector>

#include "planner/split_order.h"
#include "schedules/families/candidates.h"
#include "schedules/simulator/simulate.h"

namespace weft {

// The name of a schedule with a planned order: that of the file that its rows could be in.
inline constexpr char kPlannedOrder[] = "planned_order";

// Returns the pipeline of so many stages, one a rank. `room`: bytes of each rank for activations; empty for
// no limit.
SplitPipeline SplitPipelineOf(const SimulationOptions& costs, int stages, int microbatches,
                              const std::vector<double>& room);

Candidate OrderedCandidate(const SplitOrder& order);

}  // namespace weft

#endif  // WEFT_COORDINATOR_REPLANNING_PIPELINE_ORDER_H_
