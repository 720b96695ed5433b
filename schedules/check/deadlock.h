// Proves that a schedule's limits on live activations can never stop it, whatever the durations of jobs and
// transfers, or names the jobs that could wait for each other.
//
// Sound: what is accepted cannot deadlock under the rule of dispatch.h, in any order in which inputs arrive.
// docs/design/deadlock.md has the argument. Four cases:
//   - Fixed orders: exact. The activations alive where a forward's turn comes follow from the order alone.
//   - Stages that are no chain: free if the nominal run of claim_order.h ends, since forwards of a limited
//     stage are then admitted in its order.
//   - Every micro-batch's staleness is least on the first stage (as where there is none) and no `precedes`:
//     always free. What an activation waits for is admission on later stages only.
//   - Otherwise the forwards of as many steps as can be under way together are looked at. One may be blocked
//     if enough others, which need not come after it, may be stuck on its place; one may be stuck if its
//     backwards need one that may be blocked. What no such reasoning keeps is free.
// Pure. O(jobs), in the last case O(forwards^2 / 64 * edges), with a bound on their number.
#ifndef WEFT_SCHEDULES_CHECK_DEADLOCK_H_
#define WEFT_SCHEDULES_CHECK_DEADLOCK_H_

#include <memory>

#include "absl/status/status.h"
#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"

namespace weft {

// InvalidArgument for a schedule that may deadlock, naming the jobs of a circle of waits, their ranks and
// limits; also where there are too many forwards to look at. Requires limits of at least one where a stage is
// computed, sound orders and an acyclic graph (check.h). `tables` are the graph's; null to make them.
absl::Status ProveDeadlockFree(const Graph& graph, std::shared_ptr<const StepTables> tables = nullptr);

}  // namespace weft

#endif  // WEFT_SCHEDULES_CHECK_DEADLOCK_H_
