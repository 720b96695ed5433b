// Gives the bytes, at a simulation's costs, of what a rank keeps whatever it computes (kept_stages.h), and
// those that its budget leaves for activations.
//
// A rank needs its versions of the weights of each stage that it holds, the stage's further state (gradients,
// moments of the optimizer; where holders relay, the home alone has it), and room for one fetched copy of the
// largest stage that it computes with another rank's weights; of each such stage where copies are kept for
// later micro-batches. Where the state of stages
// migrates it holds two at a time, the one that it computes and the one that has come for its next job;
// states that wait for a rank that is late are not counted. The rest of the budget admits forwards. Pure.
// Failure: FailedPrecondition for a schedule that cannot fit, naming stage, micro-batch, rank and bytes.
#ifndef WEFT_SCHEDULES_DISPATCH_MEMORY_H_
#define WEFT_SCHEDULES_DISPATCH_MEMORY_H_

#include <vector>

#include "absl/status/statusor.h"
#include "schedules/graph/graph.h"

namespace weft {

// Returns one stage's value. `values` is by stage: of size 1 (for every stage) or S.
inline double OfStage(const std::vector<double>& values, int stage) {
  return values.size() == 1 ? values[0] : values[stage];
}

// Bytes by stage, as OfStage takes them.
struct StageBytes {
  const std::vector<double>& activation;  // of a micro-batch, from its forward to the end of its backward
  const std::vector<double>& weight;
  const std::vector<double>& state;
};

// Returns, by rank, the bytes that it holds apart from activations.
std::vector<double> HeldBytes(const Graph& graph, const StageBytes& bytes);

// Returns the bytes that `memory` leaves each rank for activations. Fails if some rank has no room
// for what it holds beside a single activation of any stage that it computes.
absl::StatusOr<ActivationMemory> MemoryForActivations(const Graph& graph, const StageBytes& bytes,
                                                      double memory);

}  // namespace weft

#endif  // WEFT_SCHEDULES_DISPATCH_MEMORY_H_
