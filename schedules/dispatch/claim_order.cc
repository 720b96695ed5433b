#include "schedules/dispatch/claim_order.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "schedules/simulator/simulation.h"
#include "schedules/sync/state_route.h"

namespace weft {

namespace {

// The order of the route: no run of one step shows it, since jobs wait for some of the next step too.
std::vector<std::vector<Job>> OrderOfRoute(const Graph& graph) {
  const Schedule& s = graph.schedule();
  std::vector<std::vector<std::pair<int64_t, Job>>> of_rank(s.ranks);
  for (int i = 0; i < graph.jobs_per_step(); ++i) {
    const Job job = graph.JobAt(0, i);
    of_rank[graph.RankOf(job)].push_back({graph.route()->PlaceOf(job), job});
  }
  std::vector<std::vector<Job>> order(s.ranks);
  for (Rank rank = 0; rank < s.ranks; ++rank) {
    std::sort(of_rank[rank].begin(), of_rank[rank].end());
    for (const auto& [place, job] : of_rank[rank]) order[rank].push_back(job);
  }
  return order;
}

// The least staleness of every micro-batch is that of its first stage, so that a micro-batch that has begun
// waits for no further version.
bool WaitsForVersionsAtTheStartOnly(const Schedule& s) {
  if (!s.staleness) return true;
  for (int b = 0; b < s.microbatches; ++b) {
    for (int stage = 1; stage < s.stages; ++stage) {
      if (s.staleness(stage, b) < s.staleness(0, b)) return false;
    }
  }
  return true;
}

// Returns true if backwards wait for those of earlier micro-batches, of which a rank may not have admitted
// its own.
bool PassesSums(const Graph& graph) {
  for (int stage = 0; stage < graph.schedule().stages; ++stage) {
    if (graph.protocol(stage).passes_sums()) return true;
  }
  return false;
}

}  // namespace

bool NeedsClaimOrder(const Graph& graph, const std::optional<ActivationMemory>& memory) {
  const Schedule& s = graph.schedule();
  if (!s.limit || graph.replays()) return false;
  const bool budget = memory.has_value() || graph.terms().memory.has_value();
  return !graph.is_chain() || s.precedes || budget || PassesSums(graph) || !WaitsForVersionsAtTheStartOnly(s);
}

absl::StatusOr<std::vector<std::vector<std::vector<Job>>>> ClaimOrder(
    const Graph& graph, std::shared_ptr<const StepTables> tables,
    const std::optional<ActivationMemory>& memory) {
  if (graph.route() != nullptr) return std::vector<std::vector<std::vector<Job>>>{OrderOfRoute(graph)};
  SimulationOptions nominal;
  nominal.duration[static_cast<int>(JobKind::kBackward)] = {2};
  nominal.steps = graph.schedule().period;
  nominal.record_jobs = true;
  // Forwards are admitted as they come: the order in which they are admitted otherwise is this run's.
  SimulatedAdmission admission;
  admission.memory = memory;
  const absl::StatusOr<SimulationResult> run =
      Simulation(graph, nominal, std::move(admission), std::move(tables)).Run();
  if (!run.ok()) return run.status();
  std::vector<std::vector<std::vector<Job>>> order(graph.schedule().period);
  for (auto& of_step : order) of_step.resize(graph.schedule().ranks);
  for (const SimulatedJob& j : run->jobs) order[j.job.step][j.rank].push_back(j.job);
  return order;
}

}  // namespace weft
