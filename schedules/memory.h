// What a rank must hold whatever it computes, and what is left of its budget for activations.
//
// A rank keeps every version that it may need of the weights of each stage that it holds, the stage's further
// state (gradients, moments of the optimizer; where holders relay, the home alone has it), and room for one
// fetched copy of the largest stage that it computes with another rank's weights. Of stages whose state
// migrates it holds two at a time, the one that it computes and the one that has come for its next job; those
// that wait for a rank that is late are not counted. The rest of the budget admits forwards. Pure. Failure:
// FailedPrecondition for a schedule that cannot fit, naming stage, micro-batch, rank and bytes.
#ifndef WEFT_SCHEDULES_MEMORY_H_
#define WEFT_SCHEDULES_MEMORY_H_

#include <vector>

#include "absl/status/statusor.h"
#include "schedules/graph.h"

namespace weft {

// One stage's of values by stage: of size 1 (for every stage) or S.
inline double OfStage(const std::vector<double>& values, int stage) {
  return values.size() == 1 ? values[0] : values[stage];
}

// Bytes by stage, as OfStage takes them.
struct StageBytes {
  const std::vector<double>& activation;  // of a micro-batch, from its forward to the end of its backward
  const std::vector<double>& weight;
  const std::vector<double>& state;
};

// By rank, what it holds apart from activations.
std::vector<double> HeldBytes(const Graph& graph, const StageBytes& bytes);

// What `memory` leaves each rank for activations. Fails if that is not enough for one of each stage's.
absl::StatusOr<ActivationMemory> MemoryForActivations(const Graph& graph, const StageBytes& bytes,
                                                      double memory);

}  // namespace weft

#endif  // WEFT_SCHEDULES_MEMORY_H_
