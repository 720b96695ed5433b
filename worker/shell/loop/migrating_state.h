// Moves the state of a job's stage where that migrates: takes it in before the job computes, and passes it on
// afterwards.
//
// Called on the thread that does the rank's task, without locks. A rank that is to compute a stage whose
// state it does not have breaks an invariant of the run (schedules/sync/state_route.h): the process ends,
// with the name of the job. Failure otherwise: the status of the compute.
#ifndef WEFT_WORKER_SHELL_LOOP_MIGRATING_STATE_H_
#define WEFT_WORKER_SHELL_LOOP_MIGRATING_STATE_H_

#include "absl/status/status.h"
#include "worker/shell/compute/rank_weights.h"
#include "worker/shell/loop/job_runner.h"

namespace weft {

// The state begins here, or is among the task's inputs, which then hold it no more, or has stayed. Requires
// task->start.has_state, as the next.
absl::Status ReceiveState(RankWeights& compute, JobTask* task);

// Drops versions that no later stop reads; gives the state away in `state` if it leaves the rank.
absl::Status PassStateOn(RankWeights& compute, const StartEffect& start, Tensor* state);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_MIGRATING_STATE_H_
