// Counts the memory of a run: how much of its budget each rank's weights, gradients, optimizer and work take,
// and how much remains for activations.
//
// The counts are bytes of a rank's own arena, by the layers' shapes:
//
//   - for each held stage, every version of the weights that its readers may need (without a budget, one
//     more where other ranks read them), the gradient's sum for each step under way (one alone where steps go
//     one after the other; one more where other holders take it), and the optimizer's state;
//   - gradients that come before those of earlier micro-batches, which are summed first (early_gradients.h);
//   - each micro-batch's gradient that travels, as often as there are steps whose gradients may wait
//     together; within a budget, a forward has room for it, and waits for room until it has been taken;
//   - the temporary memory of the job that needs most, and the gradients of inputs that other ranks have not
//     taken yet;
//   - where states migrate, the state of every stage whose route has a stop on the rank, as the next ranks
//     may all be late, and the largest again, to hand it on;
//   - the activations that every forward keeps until its backward.
//
// Tensors from ranks that share no memory with their reader come on top (received_copies.h). The counts are
// upper bounds (a test compares them with what the compute measures), so that admission by them is safe. The
// temporary memory of jobs is bounded by formulas, or, in a run with measured buffers, by these
// (stage_buffers.h).
// Pure.
#ifndef WEFT_RUN_RUN_MEMORY_H_
#define WEFT_RUN_RUN_MEMORY_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "run/run_spec.h"
#include "schedules/run_terms.h"
#include "schedules/sync/protocol.h"

namespace weft {

// Returns how many copies of the weights' size the optimizer keeps: momentum, or AdamW's two moments.
int OptimizerBuffers(const OptimizerSpec& optimizer);

struct StageMemory {
  // Bytes of the flat buffer of the weights; also of their gradient, and of each buffer of the optimizer.
  int64_t parameters = 0;
  int64_t narrowed = 0;   // bytes of the copy that layers compute with, beside each version of the weights
  int64_t constants = 0;  // bytes of tensors that every rank that computes the stage has once
  int64_t activation_bytes = 0;  // bytes that a forward keeps until its backward, by the run's `activations`
  // Additional bytes that it may keep on a GPU. A budget has room for them, whatever the device.
  int64_t gpu_activations = 0;
  int64_t sure_activations = 0;  // those that it keeps at least: of an exported model no number is known
  // Additional bytes that the first half of a split backward keeps until the second; and of them those of
  // buffers, without regard to activations that it frees.
  int64_t between = 0, between_buffers = 0;
  // Bytes that one job takes while it runs, beyond what stays and less what it frees; and of them those of
  // buffers.
  int64_t work = 0, buffers = 0;
  int64_t split_work = 0, split_buffers = 0;  // likewise where backwards are split
  int64_t forward_work = 0;                   // bytes that a forward takes, likewise
  // Bytes that are there at the end of a backward, when its activations have gone and the gradient of its
  // weights is put together to leave the rank: of buffers, without that.
  int64_t end_work = 0;
  // Likewise where the backward is on another rank than the forward, and makes the activations again.
  int64_t remade_work = 0, once_work = 0;
  int64_t output = 0;     // bytes of the tensor that it gives to the next stage
  int64_t offloaded = 0;  // bytes that a forward under `offload` moves to the host, and its backward back
};
StageMemory CountStage(const RunSpec& run, int stage);
// Returns the bytes of slice `part` of `parts` of a stage's flat buffer.
int64_t SliceBytes(const StageMemory& stage, int part, int parts);
// Returns the bytes of a gradient sum that the stage's holder number `part` makes: of the whole, or its
// slice.
int64_t SumBytes(const StageMemory& stage, const Kept& kept, int part);

// Bytes that a rank needs besides the activations of forwards.
struct RankMemory {
  // Bytes at most.
  int64_t weights = 0, gradients = 0, optimizer = 0;
  // The part of the weights that is there whatever jobs last: no version beside another.
  int64_t certain_weights = 0;
  int64_t constants = 0;  // the part of both that belongs to no version
  // The part of the gradients that leaves the rank and may wait to be taken, however late the takers are.
  // Within a budget forwards have room for it.
  int64_t handed_out = 0;
  // The parts of the weights, and of running sums, that may wait likewise. Within a budget jobs wait until
  // these are back, so there is no room for them.
  int64_t leaving = 0, passed = 0;
  int64_t held() const { return weights + gradients + optimizer; }
  // Bytes of the job that needs most, and, in overlapped pairs, of a forward beside it; and likewise of
  // buffers alone, without regard to activations that it frees.
  int64_t work = 0, buffers = 0;
  int work_stage = 0;  // stage of that job
  // Bytes of gradients of inputs that ranks with the stages before may not have taken yet.
  int64_t waiting = 0;
  int64_t received = 0;  // copies of tensors from other ranks, but for those of `RunMemory::forwards`
  int64_t beside_activations() const { return held() + work + waiting + received; }
  // Returns the bytes for which a budget has room besides that of forwards.
  int64_t beside_forwards() const { return beside_activations() - handed_out - leaving - passed; }
  // Returns the bytes besides activations in a run within this budget (0: without one) where activations take
  // so many at a time: gradients that leave may have what room is left.
  double BesideActivations(int64_t budget, double activations) const {
    const auto most = static_cast<double>(beside_activations());
    if (budget == 0) return most;
    return std::min(most - static_cast<double>(leaving + passed), static_cast<double>(budget) - activations);
  }
};
struct RunMemory {
  std::vector<RankMemory> ranks;
  // Bytes of a micro-batch of each stage, without a budget. `returned_bytes` are empty without measured
  // buffers, where the work of jobs has room for them.
  ActivationMemory forwards;
  std::vector<int64_t> gpu_activations;  // by stage; see StageMemory

  // Returns the bytes of a micro-batch, by stage, from its forward to the end of its backward, whatever the
  // device: those for which a budget has room.
  std::vector<double> BytesOfForwards() const;
};
// Counts each stage of the run.
std::vector<StageMemory> CountStages(const RunSpec& run);
// Counts the run under a schedule of its sizes, whatever its budget. Every check whether a run fits uses
// these counts. A run that may reduce by collectives is counted with them or without, as it needs more.
RunMemory CountRun(const RunSpec& run, const RunSchedule& schedule);

// Sets `schedule->terms.memory` from the run's budget; does nothing without one. InvalidArgument with
// kPathPayload `memory`, naming rank, stage, micro-batch and bytes, if the run cannot fit.
absl::Status SetMemory(const RunSpec& run, RunSchedule* schedule);

}  // namespace weft

#endif  // WEFT_RUN_RUN_MEMORY_H_
