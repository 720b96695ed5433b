#include "schedules/sync/saving.h"

#include "schedules/sync/protocol.h"

namespace weft {

bool Saves(const Graph& graph, const Job& update) {
  return graph.route() != nullptr || graph.protocol(update.stage).holder(update.member).saves;
}

std::vector<Job> SavingUpdates(const Graph& graph, int step) {
  std::vector<Job> updates;
  for (int index = graph.compute_jobs(); index < graph.jobs_per_step(); ++index) {
    const Job job = graph.JobAt(step - 1, index);
    if (job.kind == JobKind::kUpdate && Saves(graph, job)) updates.push_back(job);
  }
  return updates;
}

int SliceSavedBehind(const Graph& graph, const Job& update) {
  return graph.protocol(update.stage).layout() == Layout::kSliced ? update.member : 0;
}

int32_t SnapshotLead(const Graph& graph) {
  const Schedule& schedule = graph.schedule();
  const int most = schedule.MaxStaleness();
  if (most <= 1) return 1;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    for (int b = 1; b < schedule.microbatches; ++b) {
      if (schedule.StalenessOf(stage, b) != schedule.StalenessOf(stage, 0)) return most;
    }
  }
  return schedule.period == 1 ? 1 : most;
}

}  // namespace weft
