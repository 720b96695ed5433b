// Finds the order in which ranks claim their jobs: that of a nominal run, in which a backward takes twice
// the time of a forward.
//
// Every job's predecessors come earlier in the order of start times over all ranks, so ranks that claim their
// jobs in this order, and admit the forwards of limited stages in it, cannot starve each other: the first job
// that has not ended can always run. Where a state migrates, jobs are claimed in the order of its route
// instead, with which the waits for all inputs agree. Pure. Failure: that of the simulation, where the
// nominal run itself cannot end.
#ifndef WEFT_SCHEDULES_DISPATCH_CLAIM_ORDER_H_
#define WEFT_SCHEDULES_DISPATCH_CLAIM_ORDER_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"

namespace weft {

// Returns true if limited forwards must be admitted in the order of claims, because micro-batches that are
// admitted otherwise could wait for each other without end: where stages are no chain, where `precedes` says
// so, where a micro-batch that has begun waits for a newer version of a later stage, where its backward waits
// for the running sum of an older one, and where it waits for room in a budget of bytes, which an older one
// has to give back.
// `memory`: the budget; absent: the run's own, if it has one.
bool NeedsClaimOrder(const Graph& graph, const std::optional<ActivationMemory>& memory = std::nullopt);

// Returns, by [step of the period][rank], the rank's jobs of that step. A job's predecessors are in its step
// or before, so the steps follow one another.
// `tables` are the graph's; null to make them. `memory`: as above.
absl::StatusOr<std::vector<std::vector<std::vector<Job>>>> ClaimOrder(
    const Graph& graph, std::shared_ptr<const StepTables> tables = nullptr,
    const std::optional<ActivationMemory>& memory = std::nullopt);

}  // namespace weft

#endif  // WEFT_SCHEDULES_DISPATCH_CLAIM_ORDER_H_
