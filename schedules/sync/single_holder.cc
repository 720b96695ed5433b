// One rank holds the stage: it sums the gradients of all micro-batches, and its update makes the next
// version. Jobs on other ranks fetch the weights and send their gradients.
#include "schedules/sync/single_holder.h"

namespace weft {

SingleHolder::SingleHolder(const Schedule& schedule, int stage) : Protocol(schedule, stage) {
  holders_.front().saves = true;
}

void SingleHolder::AddPredecessors(const Graph& graph, const Job& job, Edges* edges) const {
  if (HasMicrobatch(job.kind)) return AddWeights(graph, job, edges);
  AddGradients(graph, job, edges);
  AddUpdateBefore(job, edges);
}

}  // namespace weft
