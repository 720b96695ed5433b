// The memory budget of a run: what each rank's weights, gradients, optimizer and work take of it, counted,
// and what is left for activations.
//
// Counted are the bytes that a rank's own arena holds, by the layers' shapes: for each held stage every
// version of the weights that its readers may need (and one more where others read them while an update
// writes), the gradient's sum for each step under way and the optimizer's state; for each micro-batch whose
// gradient travels, that gradient, as often as there are steps whose gradients may wait together; the
// temporary memory of the job that needs most; where states migrate, that of every stage that a rank visits,
// as the next visitors may all be late, and that of the largest again, to hand it on; and for every forward
// what it leaves until its backward. What is received from other machines is not: it lies in the transport's
// memory. The counts are upper bounds (a test compares them with what the compute measures), so that
// admission by them is safe. Pure.
#ifndef WEFT_PROTO_RUN_RUN_MEMORY_H_
#define WEFT_PROTO_RUN_RUN_MEMORY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/run/run_spec.h"
#include "schedules/schedule.h"

namespace weft {

// Copies of the weights' size that the optimizer keeps: momentum, or AdamW's two moments.
int OptimizerBuffers(const OptimizerSpec& optimizer);

struct StageMemory {
  int64_t parameters = 0;    // of the weights; also of their gradient, and of each buffer of the optimizer
  int64_t narrowed = 0;      // of the copy that layers compute with, beside each version of the weights
  int64_t left = 0;          // by a forward until its backward, by the run's `activations`
  int64_t between = 0;       // by the first half of a split backward until the second, besides
  int64_t work = 0;          // by one job while it runs, beyond what stays
  int64_t forward_work = 0;  // by a forward alone, likewise
};
StageMemory CountStage(const RunSpec& run, int stage);

// What a rank needs besides what forwards leave.
struct RankMemory {
  int64_t held = 0;    // weights, gradients, optimizer
  int64_t work = 0;    // of the job that needs most, and, in overlapped pairs, of a forward beside it
  int work_stage = 0;  // its stage
};
struct RunMemory {
  std::vector<RankMemory> ranks;
  std::vector<int64_t> left;  // by stage: by a micro-batch, from its forward to the end of its backward
};
// Of the run under a schedule of its sizes, whatever its budget. Who says whether a run fits says it by this.
// Of one that may reduce by collectives, as it needs more: with them or without.
RunMemory CountRun(const RunSpec& run, const Schedule& schedule);

// Sets `schedule->memory` from the run's budget; without one it does nothing. InvalidArgument with
// kPathPayload `memory`, naming rank, stage, micro-batch and bytes, if the run cannot fit.
absl::Status SetMemory(const RunSpec& run, Schedule* schedule);

}  // namespace weft

#endif  // WEFT_PROTO_RUN_RUN_MEMORY_H_
