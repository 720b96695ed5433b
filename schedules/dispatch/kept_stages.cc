#include "schedules/dispatch/kept_stages.h"

#include <algorithm>
#include <utility>

#include "schedules/sync/given_tensors.h"

namespace weft {
namespace {

// Counts stage after stage. A schedule that is not checked yet may name ranks outside of it; they are left
// out.
class KeptCount {
 public:
  KeptCount(const Graph& graph, int steps)
      : graph_(graph), steps_(steps), kept_(graph.schedule().ranks), of_step_(graph.schedule().ranks, 0) {}

  // Count the holders of a stage; or the ranks to which its state travels, each of which has it for the time
  // of a job.
  void CountHolders(int stage);
  void CountStops(int stage);
  // Counts gradients, and sums that are handed on: they leave their jobs, and wait while those of later steps
  // are made.
  void CountHandedOut(int stage);
  void CountFetched(int stage);
  std::vector<std::vector<KeptOfStage>> Take() && { return std::move(kept_); }

 private:
  bool IsRank(Rank rank) const { return rank >= 0 && rank < static_cast<Rank>(kept_.size()); }
  // Returns the rank's entry of the stage, which is the last that is counted.
  KeptOfStage& At(Rank rank, int stage) {
    std::vector<KeptOfStage>& stages = kept_[rank];
    if (stages.empty() || stages.back().stage != stage) stages.push_back({stage});
    return stages.back();
  }
  int Versions(const Kept& kept) const { return 1 + std::min(kept.versions - 1, steps_); }

  const Graph& graph_;
  const int steps_;
  std::vector<std::vector<KeptOfStage>> kept_;  // by rank
  std::vector<int> of_step_;                    // by rank: gradients of one step; 0 between steps
};

void KeptCount::CountHolders(int stage) {
  const Protocol& protocol = graph_.protocol(stage);
  for (int m = 0; m < protocol.size(); ++m) {
    const Rank rank = protocol.holder(m).rank;
    if (!IsRank(rank)) continue;
    Kept kept = protocol.KeptBy(graph_, m);
    kept.versions = Versions(kept);
    kept.sums = std::min(kept.sums, steps_);
    kept.sums_leaving = std::min(kept.sums_leaving, steps_ - kept.sums);
    KeptOfStage& entry = At(rank, stage);
    entry.kept = kept;
    entry.part = m;
  }
}

void KeptCount::CountStops(int stage) {
  Kept state;
  state.versions = Versions(graph_.protocol(stage).KeptBy(graph_, 0));
  std::vector<Rank> stops;
  for (int b = 0; b < graph_.schedule().microbatches; ++b) {
    for (const JobKind kind : {JobKind::kForward, graph_.final_backward()}) {
      const Rank rank = graph_.RankOf(Job::Compute(0, stage, b, kind));
      if (!IsRank(rank) || At(rank, stage).kept.has_value()) continue;
      At(rank, stage).kept = state;
      stops.push_back(rank);
    }
  }
  for (const Rank rank : stops) At(rank, stage).goes_on = stops.size() > 1;
}

void KeptCount::CountHandedOut(int stage) {
  const Schedule& schedule = graph_.schedule();
  const Protocol& protocol = graph_.protocol(stage);
  if (!protocol.gradients_leave() && !protocol.passes_sums()) return;
  for (int step = 0; step < schedule.period; ++step) {
    std::vector<Rank> handing;
    for (int b = 0; b < schedule.microbatches; ++b) {
      const Rank rank = graph_.RankOf(Job::Compute(step, stage, b, graph_.final_backward()));
      if (!IsRank(rank)) continue;
      if (of_step_[rank] == 0) handing.push_back(rank);
      of_step_[rank] += std::min(1 + schedule.StalenessOf(stage, b), steps_);
    }
    for (const Rank rank : handing) {
      KeptOfStage& entry = At(rank, stage);
      int& waiting = protocol.gradients_leave() ? entry.handed_out : entry.handed_on;
      waiting = std::max(waiting, of_step_[rank]);
      of_step_[rank] = 0;
      if (!protocol.passes_sums()) continue;
      const std::optional<int> in_turn = SumsInTurn(graph_, stage, rank, steps_);
      entry.handed_on = std::max(entry.handed_on, in_turn.value_or(0));
      entry.handed_on_in_turn = in_turn.value_or(entry.handed_on);
    }
  }
}

void KeptCount::CountFetched(int stage) {
  const Schedule& schedule = graph_.schedule();
  for (int step = 0; step < schedule.period; ++step) {
    for (int b = 0; b < schedule.microbatches; ++b) {
      for (const JobKind kind : {JobKind::kForward, graph_.input_backward()}) {
        const Job job = Job::Compute(step, stage, b, kind);
        if (!graph_.FetchesWeights(job)) continue;
        if (const Rank rank = graph_.RankOf(job); IsRank(rank)) At(rank, stage).fetches = true;
      }
    }
  }
}

}  // namespace

std::vector<std::vector<KeptOfStage>> KeptByRanks(const Graph& graph, int steps) {
  KeptCount count(graph, steps);
  const bool travels = graph.protocol(0).layout() == Layout::kTravelling;
  for (int stage = 0; stage < graph.schedule().stages; ++stage) {
    if (travels) {
      count.CountStops(stage);
    } else {
      count.CountHolders(stage);
      count.CountFetched(stage);
    }
    count.CountHandedOut(stage);
  }
  return std::move(count).Take();
}

}  // namespace weft
