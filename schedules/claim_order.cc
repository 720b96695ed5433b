#include "schedules/claim_order.h"

#include "schedules/simulate.h"

namespace weft {

absl::StatusOr<std::vector<std::vector<std::vector<Job>>>> ClaimOrder(const Graph& graph) {
  SimulationOptions nominal;
  nominal.duration[static_cast<int>(JobKind::kBackward)] = {2};
  nominal.steps = graph.schedule().period;
  nominal.record_jobs = true;
  nominal.admits_as_claimed = false;
  const absl::StatusOr<SimulationResult> run = Simulate(graph, nominal);
  if (!run.ok()) return run.status();
  std::vector<std::vector<std::vector<Job>>> order(graph.schedule().period);
  for (auto& of_step : order) of_step.resize(graph.schedule().ranks);
  for (const SimulatedJob& j : run->jobs) order[j.job.step][j.rank].push_back(j.job);
  return order;
}

}  // namespace weft
