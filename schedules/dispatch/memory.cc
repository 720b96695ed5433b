#include "schedules/dispatch/memory.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_format.h"
#include "schedules/byte_text.h"
#include "schedules/dispatch/kept_stages.h"

namespace weft {
namespace {

// Returns the bytes of what a holder keeps. `state` has one sum of gradients; where sums are whole until they
// are scattered, the rest of them is in the second figure.
std::pair<double, double> BytesOf(const Kept& kept, double weight, double state) {
  const double parts = kept.parts;
  const double own = kept.versions * weight + kept.waiting * weight + (kept.optimizer ? state : 0);
  return {own / parts, kept.whole_sums ? kept.sums * weight * (1 - 1 / parts) : 0};
}

}  // namespace

std::vector<double> HeldBytes(const Graph& graph, const StageBytes& bytes) {
  std::vector<double> held;
  const bool migrating = graph.protocol(0).layout() == Layout::kTravelling;
  const bool keeps_fetched = graph.schedule().keeps_fetched;
  for (const std::vector<KeptOfStage>& stages : KeptByRanks(graph)) {
    double of_holders = 0, fetched = 0, of_visits = 0, before = 0;
    for (const KeptOfStage& stage : stages) {
      const double weight = OfStage(bytes.weight, stage.stage);
      if (stage.fetches) fetched = keeps_fetched ? fetched + weight : std::max(fetched, weight);
      if (!stage.kept.has_value()) continue;
      const auto [state, whole_sums] = BytesOf(*stage.kept, weight, OfStage(bytes.state, stage.stage));
      of_holders += state;
      of_holders += whole_sums;
      // The state that the rank computes with is there, and the next one may have come already.
      of_visits = std::max(of_visits, before + state);
      before = state;
    }
    held.push_back(migrating ? of_visits : of_holders + fetched);
  }
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
