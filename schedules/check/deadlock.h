// Proves that a schedule's limits on live activations can never stop it, whatever the durations of jobs and
// transfers, or names the jobs that could wait for each other.
//
// It is sound: no accepted schedule can deadlock under the rule of dispatch.h, whatever the order of inputs.
// docs/design/deadlock.md has the argument. Three cases:
//   - Fixed orders: exact. The activations alive where a forward's turn comes follow from the order alone.
//   - A chain without a budget of bytes, in which micro-batches wait for each other nowhere but at the first
//     stage: always free. An activation waits only for admission on later stages.
//   - Otherwise (NeedsClaimOrder): free if the nominal run of claim_order.h ends, since forwards of a limited
//     stage are then admitted in its order.
// Pure. O(jobs of a period of steps).
#ifndef WEFT_SCHEDULES_CHECK_DEADLOCK_H_
#define WEFT_SCHEDULES_CHECK_DEADLOCK_H_

#include <memory>

#include "absl/status/status.h"
#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"

namespace weft {

// Returns InvalidArgument for a schedule whose limits stop it, naming the forward that is held back and its
// rank. Requires limits of at least one where a stage is computed, sound orders and an acyclic graph
// (check.h). `tables` are the graph's; null to make them.
absl::Status ProveDeadlockFree(const Graph& graph, std::shared_ptr<const StepTables> tables = nullptr);

}  // namespace weft

#endif  // WEFT_SCHEDULES_CHECK_DEADLOCK_H_
