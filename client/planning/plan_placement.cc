#include "client/planning/plan_placement.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "run/model_layers.h"
#include "run/run_memory.h"
#include "run/run_schedule.h"
#include "run/schedule_spec.h"
#include "schedules/dispatch/memory.h"
#include "schedules/families/leading_stages.h"
#include "schedules/graph/graph.h"
#include "schedules/simulator/simulate.h"

namespace weft {
namespace {

std::vector<PlacedStage> StagesOf(const PlanChoice& choice, const Graph& graph) {
  const std::vector<std::string> policies = SplitActivations(choice.schedule);
  std::vector<PlacedStage> stages;
  const int leading = graph.schedule().stages - choice.stages();  // tied parameters, beside the first stage
  int next = 0;
  for (int s = 0; s < choice.stages(); ++s) {
    std::set<Rank> ranks;
    for (int b = 0; b < choice.microbatches; ++b) {
      for (const JobKind kind : {JobKind::kForward, graph.final_backward()})
        ranks.insert(graph.RankOf(Job::Compute(0, leading + s, b, kind)));
    }
    stages.push_back({next,
                      choice.layers_of_stage[s],
                      {ranks.begin(), ranks.end()},
                      policies.size() == 1 ? policies[0] : policies.at(s)});
    next += choice.layers_of_stage[s];
  }
  return stages;
}

// Returns the sums of the stages' bytes by rank, of stages that have one rank each.
std::vector<double> OfRanks(const std::vector<double>& of_stages, const std::vector<PlacedStage>& stages,
                            size_t ranks) {
  std::vector<double> sums(ranks, 0);
  for (size_t s = 0; s < stages.size(); ++s) sums[stages[s].ranks.front()] += of_stages[s];
  return sums;
}

}  // namespace

absl::StatusOr<PlanPlacement> PlacementOfRun(const RunSpec& run, const PlanChoice& choice,
                                             const std::vector<double>& held_bytes,
                                             const std::vector<double>& peak_bytes) {
  RunSpec planned = RunUnder(run, choice);
  planned.memory = 0;
  const auto schedule = ScheduleOf(planned);
  if (!schedule.ok()) return schedule.status();
  PlanPlacement placement;
  placement.stages = StagesOf(choice, Graph(*schedule));
  for (const LayerCount& layer : CountLayers(run.model)) placement.layer_names.push_back(layer.name);
  std::vector<double> weights, gradients, optimizer, activations, buffers, received;
  const RunMemory counted = CountRun(planned, *schedule);
  for (size_t r = 0; r < counted.ranks.size(); ++r) {
    const RankMemory& rank = counted.ranks[r];
    // Within a budget updates wait until weights are back, and gradients that leave the rank may have less
    // room than they could take.
    const int64_t leaving = run.memory > 0 ? rank.leaving : 0;
    weights.push_back(static_cast<double>(rank.weights - leaving));
    gradients.push_back(static_cast<double>(rank.gradients + leaving - rank.beside_activations()) +
                        held_bytes[r]);
    optimizer.push_back(static_cast<double>(rank.optimizer));
    activations.push_back(peak_bytes[r] - held_bytes[r]);
    buffers.push_back(static_cast<double>(rank.work + rank.waiting));
    received.push_back(static_cast<double>(rank.received));
  }
  placement.bytes = {{"weights", weights},         {"gradients", gradients}, {"optimizer", optimizer},
                     {"activations", activations}, {"buffers", buffers},     {"received", received}};
  return placement;
}

absl::StatusOr<PlanPlacement> PlacementOfProfile(const Profile& profile, const PlanChoice& choice, bool alone,
                                                 const std::vector<double>& held_bytes,
                                                 const std::vector<double>& peak_bytes) {
  auto schedule = MakeSchedule(choice.schedule, choice.stages(), choice.microbatches);
  if (!schedule.ok()) return schedule.status();
  SimulationOptions costs;
  const std::vector<int> layers = profile.of_stages ? std::vector<int>() : choice.layers_of_stage;
  if (absl::Status applied = ApplyToSchedule(profile, layers, &*schedule, &costs); !applied.ok())
    return applied;
  const Graph graph(*schedule);
  if (alone) {
    const int all = schedule->scheme.stages;
    costs = JoinLeadingStages(all - choice.stages(), all, costs);
  }
  PlanPlacement placement;
  placement.stages = StagesOf(choice, graph);
  const std::vector<double> none = {0};
  std::vector<double> weights, state, activations, copies;
  if (alone) {
    weights = OfRanks(costs.weight, placement.stages, held_bytes.size());
    state = OfRanks(costs.state, placement.stages, held_bytes.size());
  } else {
    weights = HeldBytes(graph, {none, costs.weight, none});
  }
  for (size_t r = 0; r < weights.size(); ++r) {
    if (!alone) state.push_back(held_bytes[r] - weights[r]);
    copies.push_back(held_bytes[r] - weights[r] - state[r]);
    activations.push_back(peak_bytes[r] - held_bytes[r]);
  }
  placement.bytes = {{"weights", weights}, {"state", state}, {"activations", activations}};
  if (alone) placement.bytes.emplace_back("copies", copies);
  return placement;
}

}  // namespace weft
