#include "planner/plan.h"

#include <utility>

#include "planner/pattern_check.h"

namespace weft {
namespace {

// Returns the lengths of the runs of equal ranks.
std::vector<int> RunsOf(const Placement& placement) {
  std::vector<int> runs;
  for (size_t l = 0; l < placement.size(); ++l) {
    if (l > 0 && placement[l] == placement[l - 1]) {
      ++runs.back();
    } else {
      runs.push_back(1);
    }
  }
  return runs;
}

Placement RanksOfRuns(const Placement& placement, const std::vector<int>& runs) {
  Placement ranks;
  size_t layer = 0;
  for (const int layers : runs) {
    ranks.push_back(placement[layer]);
    layer += layers;
  }
  return ranks;
}

}  // namespace

PlannedChain JoinedChain(const PlannedChain& chain, const std::vector<int>& stage_layers) {
  PlannedChain joined = chain;
  joined.layers.clear();
  size_t next = 0;
  for (const int layers : stage_layers) {
    ChainLayer stage;
    for (int i = 0; i < layers; ++i, ++next) {
      const ChainLayer& layer = chain.layers[next];
      stage.forward += layer.forward;
      stage.backward += layer.backward;
      stage.kept += layer.kept;
      stage.resident += layer.resident;
      stage.sync += layer.sync;
      stage.output = layer.output;
      stage.copied = layer.copied;
      stage.transfer = layer.transfer;
      stage.transfer_between = layer.transfer_between;
    }
    joined.layers.push_back(stage);
  }
  return joined;
}

std::optional<Plan> FindPlan(const PlannedChain& chain, const PlacementSearchOptions& options) {
  PlacementSearchResult found = FindPlacement(chain, options);
  if (!found.best.has_value()) return std::nullopt;
  Plan plan;
  plan.batches = options.batches;
  plan.lower_bound = found.lower_bound;
  plan.stage_layers.assign(chain.size(), 1);
  plan.rank_of_stage = found.best->placement;
  plan.placed = std::move(found.best->placed);
  plan.pattern = std::move(found.best->pattern);
  const std::vector<int> runs = RunsOf(plan.rank_of_stage);
  const Placement ranks = RanksOfRuns(plan.rank_of_stage, runs);
  ChainPattern joined = PlaceChain(JoinedChain(chain, runs), ranks, options.batches);
  LeastPeriod as_good = FindLeastPeriod(joined.problem, options.limits, plan.pattern.period + 1);
  if (as_good.pattern.has_value()) {
    plan.stage_layers = runs;
    plan.rank_of_stage = ranks;
    plan.placed = std::move(joined);
    plan.pattern = *std::move(as_good.pattern);
  }
  plan.peak_bytes = PatternPeaks(plan.placed.problem, plan.pattern);
  return plan;
}

}  // namespace weft
