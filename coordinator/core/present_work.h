// Answers what workers and ranks do at this moment: the jobs that each worker has in hand, and why a run that
// has not ended does not get on. It only reads from the core.
//
// Pure. An answer looks at one window of steps for each rank that it speaks of.
#ifndef WEFT_COORDINATOR_CORE_PRESENT_WORK_H_
#define WEFT_COORDINATOR_CORE_PRESENT_WORK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/coordinator_core.h"
#include "proto/session/run_waits.h"
#include "proto/session/worker_info.h"

namespace weft {

// Returns the workers by process number, with the job that each of their ranks has in hand.
std::vector<WorkerInfo> ListWorkersWithJobs(const CoordinatorCore& core, int64_t now);

// Returns what a run waits for. NotFound, as CoordinatorCore::GetRun.
absl::StatusOr<RunWaits> WaitsOf(const CoordinatorCore& core, int64_t now, uint64_t run);

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_PRESENT_WORK_H_
