// Decides whether the holders of a run's stages can sum gradients by collectives of their devices, as
// `reduction: fast` wishes, and says in words why not.
//
// Collectives need a device for each rank: each rank on a process of its own, all devices of one kind, no two
// ranks on the same one, and the same library of collectives everywhere. Otherwise the sums are made in order
// by messages, which works anywhere. Decided once a run, when its processes are chosen. Pure.
#ifndef WEFT_COORDINATOR_CORE_REDUCTION_H_
#define WEFT_COORDINATOR_CORE_REDUCTION_H_

#include <string>
#include <vector>

#include "coordinator/core/run_plan.h"
#include "coordinator/core/worker_table.h"

namespace weft {

struct Reduction {
  ReductionMode mode = ReductionMode::kOrdered;
  std::string sentence;  // empty where the run file asks for the order
};

// Chooses the reduction. `workers`: the processes of the run, in its order.
Reduction ChooseReduction(const RunPlan& plan, const std::vector<Worker*>& workers);

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_REDUCTION_H_
