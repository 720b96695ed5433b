#include "schedules/dispatch/memory.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "schedules/byte_text.h"

namespace weft {
namespace {

// Returns, by rank, the bytes of the states of two stages that it computes one after the other: one is there,
// and the next may have come already.
std::vector<double> RouteBytes(const Graph& graph, const StageBytes& bytes) {
  const Schedule& s = graph.schedule();
  std::vector<std::vector<double>> states(s.ranks);
  for (int stage = 0; stage < s.stages; ++stage) {
    const double state = graph.sync(stage).KeptBy(graph, 0).versions * OfStage(bytes.weight, stage) +
                         OfStage(bytes.state, stage);
    std::vector<bool> computes(s.ranks, false);
    for (int b = 0; b < s.microbatches; ++b) {
      computes[graph.RankOf(Job::Compute(0, stage, b, JobKind::kForward))] = true;
      computes[graph.RankOf(Job::Compute(0, stage, b, graph.final_backward()))] = true;
    }
    for (Rank rank = 0; rank < s.ranks; ++rank) {
      if (computes[rank]) states[rank].push_back(state);
    }
  }
  std::vector<double> held(s.ranks, 0);
  for (Rank rank = 0; rank < s.ranks; ++rank) {
    const std::vector<double>& mine = states[rank];
    for (size_t i = 0; i < mine.size(); ++i)
      held[rank] = std::max(held[rank], mine[i] + (i + 1 < mine.size() ? mine[i + 1] : 0));
  }
  return held;
}

}  // namespace

std::vector<double> HeldBytes(const Graph& graph, const StageBytes& bytes) {
  if (graph.sync(0).layout() == Layout::kTravelling) return RouteBytes(graph, bytes);
  const Schedule& s = graph.schedule();
  std::vector<double> held(s.ranks, 0), fetched(s.ranks, 0);
  for (int stage = 0; stage < s.stages; ++stage) {
    const double weight = OfStage(bytes.weight, stage);
    const Protocol& protocol = graph.sync(stage);
    for (int m = 0; m < protocol.size(); ++m) {
      const Kept kept = protocol.KeptBy(graph, m);
      const double state = kept.optimizer ? OfStage(bytes.state, stage) : 0;
      double& mine = held[protocol.holder(m).rank];
      mine += (kept.versions * weight + kept.waiting * weight + state) / kept.parts;
      if (kept.whole_sums) mine += kept.sums * weight * (1 - 1 / static_cast<double>(kept.parts));
    }
    for (int step = 0; step < s.period; ++step) {
      for (int b = 0; b < s.microbatches; ++b) {
        for (JobKind kind : {JobKind::kForward, graph.input_backward()}) {
          const Job job = Job::Compute(step, stage, b, kind);
          if (!graph.FetchesWeights(job)) continue;
          double& most = fetched[graph.RankOf(job)];
          most = std::max(most, weight);
        }
      }
    }
  }
  for (Rank rank = 0; rank < s.ranks; ++rank) held[rank] += fetched[rank];
  return held;
}

absl::StatusOr<ActivationMemory> MemoryForActivations(const Graph& graph, const StageBytes& bytes,
                                                      double memory) {
  const Schedule& s = graph.schedule();
  const std::vector<double> held = HeldBytes(graph, bytes);
  std::vector<double> budgets;
  for (Rank rank = 0; rank < s.ranks; ++rank) {
    budgets.push_back(memory - held[rank]);
    if (budgets.back() >= 0) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "does not fit: rank %d holds %s of weights and their state, before any activation; its memory is %s",
        rank, FormatBytes(held[rank]), FormatBytes(memory)));
  }
  for (int stage = 0; stage < s.stages; ++stage) {
    for (int b = 0; b < s.microbatches; ++b) {
      for (int step = 0; step < s.period; ++step) {
        const Rank rank = graph.RankOf(Job::Compute(step, stage, b, JobKind::kForward));
        if (OfStage(bytes.activation, stage) <= budgets[rank]) continue;
        return absl::FailedPreconditionError(absl::StrFormat(
            "does not fit: stage %d, micro-batch %d needs %s of activations on rank %d, which "
            "has %s of its %s left beside the weights",
            stage, b, FormatBytes(OfStage(bytes.activation, stage)), rank, FormatBytes(budgets[rank]),
            FormatBytes(memory)));
      }
    }
  }
  ActivationMemory activations;
  constexpr double kMax = 1e18;  // sums of a few stay within 64 bits
  for (const double budget : budgets) {
    activations.budget.push_back(static_cast<int64_t>(std::floor(std::min(budget, kMax))));
  }
  for (int stage = 0; stage < s.stages; ++stage) {
    activations.activation_bytes.push_back(
        static_cast<int64_t>(std::ceil(std::min(OfStage(bytes.activation, stage), kMax))));
  }
  return activations;
}

}  // namespace weft
