#include "schedules/sync/given_tensors.h"

#include <algorithm>
#include <optional>

namespace weft {
namespace {

// Returns the rank's first backward of the stage in a step, at this micro-batch or behind it.
std::optional<Job> FirstBackward(const Graph& graph, int step, int stage, Rank rank, int microbatch) {
  Job job = Job::Compute(step, stage, microbatch, graph.final_backward());
  for (; job.microbatch < graph.schedule().microbatches; ++job.microbatch) {
    if (graph.RankOf(job) == rank) return job;
  }
  return std::nullopt;
}

// Returns the most staleness of the rank's own micro-batches of the stage.
int StalenessOfRank(const Graph& graph, int stage, Rank rank) {
  int most = 0;
  for (int b = 0; b < graph.schedule().microbatches; ++b) {
    if (graph.RankOf(Job::Compute(0, stage, b, graph.final_backward())) == rank)
      most = std::max(most, graph.schedule().StalenessOf(stage, b));
  }
  return most;
}

// Returns the rank's backwards of the stage that wait for the taker of this one's running sum. Those of a
// step come one after the other. A step that reads old weights may run before one that comes earlier, but not
// before the one whose sum made these weights: so none comes before all of these.
std::vector<Job> BackwardsBehind(const Graph& graph, const Job& backward) {
  const Rank rank = graph.RankOf(backward);
  const auto first = [&](int step, int microbatch) {
    return FirstBackward(graph, step, backward.stage, rank, microbatch);
  };
  if (const auto next = first(backward.step, backward.microbatch + 2); next.has_value()) return {*next};
  const int stale = StalenessOfRank(graph, backward.stage, rank);
  std::vector<Job> jobs;
  for (int step = backward.step + 1 + stale; step <= backward.step + 1 + 2 * stale; ++step) {
    if (const auto next = first(step, 0); next.has_value()) jobs.push_back(*next);
  }
  return jobs;
}

// Returns true if, within a budget, backwards of the stage wait for running sums.
bool AwaitsSums(const Graph& graph, int stage) {
  return graph.protocol(stage).passes_sums() && graph.schedule().period == 1;
}

}  // namespace

bool AwaitsVersions(const Graph& graph, int stage, const Kept& kept) {
  if (kept.leaving == 0 || graph.protocol(stage).layout() == Layout::kTravelling) return false;
  const int stale = graph.schedule().MaxStaleness(stage);
  return stale <= 1 || kept.versions > stale;
}

std::optional<int> SumsInTurn(const Graph& graph, int stage, Rank rank, int steps) {
  const Schedule& schedule = graph.schedule();
  if (!AwaitsSums(graph, stage)) return std::nullopt;
  int of_step = 1;
  bool follows = false;  // the micro-batch before is on the rank, too
  for (int b = 0; b < schedule.microbatches; ++b) {
    const bool own = graph.RankOf(Job::Compute(0, stage, b, graph.final_backward())) == rank;
    // A backward that takes the rank's own sum has it beside the one that it makes.
    if (own && follows) of_step = 2;
    follows = own;
  }
  return std::min(1 + StalenessOfRank(graph, stage, rank), steps) * of_step;
}

GivenTensors::GivenTensors(const Graph& graph) {
  if (!graph.terms().memory.has_value()) return;
  for (int stage = 0; stage < graph.schedule().stages; ++stage) {
    std::vector<int>& of_stage = most_.emplace_back();
    for (int member = 0; member < graph.protocol(stage).size(); ++member) {
      const Kept kept = graph.protocol(stage).KeptBy(graph, member);
      of_stage.push_back(AwaitsVersions(graph, stage, kept) ? kept.versions : 0);
    }
  }
}

std::vector<Job> GivenTensors::JobsBehind(const Graph& graph, const Edge& edge) const {
  const Job& from = edge.from;
  if (most_.empty()) return {};
  if (edge.tensor == TensorKind::kWeights && from.kind == JobKind::kUpdate) {
    const int most = most_[from.stage][from.member];
    if (most > 0) return {graph.protocol(from.stage).UpdateTo(edge.version + most, from.member)};
  }
  const bool is_sum = edge.tensor == TensorKind::kGradientSum && HasMicrobatch(from.kind);
  return is_sum && AwaitsSums(graph, from.stage) ? BackwardsBehind(graph, from) : std::vector<Job>();
}

}  // namespace weft
