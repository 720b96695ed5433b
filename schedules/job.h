// Defines the words of Weft as types: job, kind, rank, stage, micro-batch, step.
//
// A job is the unit of work that a schedule places, a rank executes and the coordinator tracks. It names one
// stage, one step, and either one micro-batch (forward, backward and its halves) or one member of the stage's
// replica set (reduce, update).
//
// Invariants:
//   1. `microbatch` is >= 0 for compute kinds and -1 for reduce and update; `member` is 0 for compute kinds.
//   2. Jobs order by (step, stage, kind, microbatch, member); the order has no meaning for dispatch.
#ifndef WEFT_SCHEDULES_JOB_H_
#define WEFT_SCHEDULES_JOB_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

using Rank = int32_t;

enum class JobKind : uint8_t { kForward, kBackward, kBackwardInput, kBackwardWeight, kReduce, kUpdate };
inline constexpr int kJobKinds = 6;

// Returns "forward", "backward", "backward_input", "backward_weight", "reduce" or "update": as on the wire,
// in files and in metrics.
absl::string_view JobKindName(JobKind kind);
// Returns the kind of that name.
std::optional<JobKind> JobKindOfName(absl::string_view name);

// Returns true for the kinds that work on one micro-batch.
constexpr bool HasMicrobatch(JobKind kind) { return kind < JobKind::kReduce; }

struct Job {
  int32_t step = 0;
  int32_t stage = 0;
  int32_t microbatch = 0;
  int32_t member = 0;
  JobKind kind = JobKind::kForward;

  friend auto operator<=>(const Job&, const Job&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const Job& j) {
    return H::combine(std::move(h), j.step, j.stage, j.microbatch, j.member, j.kind);
  }

  static Job Compute(int32_t step, int32_t stage, int32_t microbatch, JobKind kind) {
    return {step, stage, microbatch, 0, kind};
  }
  static Job Reduce(int32_t step, int32_t stage, int32_t member) {
    return {step, stage, -1, member, JobKind::kReduce};
  }
  static Job Update(int32_t step, int32_t stage, int32_t member) {
    return {step, stage, -1, member, JobKind::kUpdate};
  }
};

// Returns "forward (step 3, stage 1, micro-batch 5)" or "update (step 3, stage 1, member 0)", for messages.
std::string Describe(const Job& job);

// The kind of value that travels along an edge of the job graph.
enum class TensorKind : uint8_t {
  kOrder,          // nothing: the edge only orders two jobs
  kActivation,     // output of a stage's forward, input of the next stage's
  kInputGradient,  // gradient of the loss with respect to a stage's input, made by its backward
  kWeights,        // all parameters of a stage at one version
  kGradient,       // gradient of all parameters of a stage from one micro-batch, or one member's slice of it
  kGradientSum,    // one member's slice of the gradient summed over the micro-batches
  kNorm,           // the exact sum of squares of gradients, of which their global norm is the root
  kState,          // all that the training keeps of a stage, on its route to the next job (state_route.h)
  kCopy,  // the saved state of a stage, or of a slice of it, for another process's memory: of no edge
};
inline constexpr int kTensorKinds = 9;

// Returns "order", "activation", "input_gradient", "weights", "gradient", "gradient_sum", "norm",
// "state" or "copy".
absl::string_view TensorKindName(TensorKind kind);

}  // namespace weft

#endif  // WEFT_SCHEDULES_JOB_H_
