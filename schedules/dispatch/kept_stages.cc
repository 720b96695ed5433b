#include "schedules/dispatch/kept_stages.h"

#include <algorithm>

namespace weft {
namespace {

// Counts one stage: its entry for each rank. A schedule that is not checked yet may name ranks that are none;
// they are left out.
class StageCount {
 public:
  StageCount(const Graph& graph, int steps, int stage)
      : graph_(graph), steps_(steps), stage_(stage), entries_(graph.schedule().ranks, KeptStage{stage}) {}

  // The holders; or the ranks of the state's route, each of which has it for the time of a job.
  void CountHolders();
  void CountVisits();
  // Gradients, and sums that are handed on, leave their jobs, and wait while those of later steps are made.
  void CountHandedOut();
  void CountFetched();
  void AppendTo(std::vector<std::vector<KeptStage>>* kept) const;

 private:
  KeptStage* At(Rank rank) {
    return rank < 0 || rank >= static_cast<Rank>(entries_.size()) ? nullptr : &entries_[rank];
  }
  int Versions(const Kept& kept) const { return 1 + std::min(kept.versions - 1, steps_); }

  const Graph& graph_;
  const int steps_, stage_;
  std::vector<KeptStage> entries_;  // by rank
};

void StageCount::CountHolders() {
  const Protocol& protocol = graph_.sync(stage_);
  for (int m = 0; m < protocol.size(); ++m) {
    KeptStage* entry = At(protocol.holder(m).rank);
    if (entry == nullptr) continue;
    Kept kept = protocol.KeptBy(graph_, m);
    kept.versions = Versions(kept);
    kept.sums = std::min(kept.sums, steps_);
    entry->kept = kept;
  }
}

void StageCount::CountVisits() {
  Kept state;
  state.versions = Versions(graph_.sync(stage_).KeptBy(graph_, 0));
  int visited = 0;
  for (int b = 0; b < graph_.schedule().microbatches; ++b) {
    for (const JobKind kind : {JobKind::kForward, graph_.final_backward()}) {
      KeptStage* entry = At(graph_.RankOf(Job::Compute(0, stage_, b, kind)));
      if (entry == nullptr) continue;
      visited += entry->kept.has_value() ? 0 : 1;
      entry->kept = state;
    }
  }
  for (KeptStage& entry : entries_) entry.visits = visited > 1 && entry.kept.has_value();
}

void StageCount::CountHandedOut() {
  const Schedule& schedule = graph_.schedule();
  const Protocol& protocol = graph_.sync(stage_);
  if (!protocol.gradients_leave() && !protocol.passes_sums()) return;
  for (int step = 0; step < schedule.period; ++step) {
    std::vector<int> of_step(schedule.ranks, 0);
    for (int b = 0; b < schedule.microbatches; ++b) {
      const Rank rank = graph_.RankOf(Job::Compute(step, stage_, b, graph_.final_backward()));
      KeptStage* entry = At(rank);
      if (entry == nullptr) continue;
      of_step[rank] += std::min(1 + schedule.StalenessOf(stage_, b), steps_);
      entry->handed_out = std::max(entry->handed_out, of_step[rank]);
    }
  }
}

void StageCount::CountFetched() {
  const Schedule& schedule = graph_.schedule();
  for (int step = 0; step < schedule.period; ++step) {
    for (int b = 0; b < schedule.microbatches; ++b) {
      for (const JobKind kind : {JobKind::kForward, graph_.input_backward()}) {
        const Job job = Job::Compute(step, stage_, b, kind);
        if (!graph_.FetchesWeights(job)) continue;
        if (KeptStage* entry = At(graph_.RankOf(job)); entry != nullptr) entry->fetches = true;
      }
    }
  }
}

void StageCount::AppendTo(std::vector<std::vector<KeptStage>>* kept) const {
  for (size_t rank = 0; rank < entries_.size(); ++rank) {
    const KeptStage& entry = entries_[rank];
    if (entry.kept.has_value() || entry.handed_out > 0 || entry.fetches) (*kept)[rank].push_back(entry);
  }
}

}  // namespace

std::vector<std::vector<KeptStage>> KeptByRanks(const Graph& graph, int steps) {
  std::vector<std::vector<KeptStage>> kept(graph.schedule().ranks);
  const bool travels = graph.sync(0).layout() == Layout::kTravelling;
  for (int stage = 0; stage < graph.schedule().stages; ++stage) {
    StageCount count(graph, steps, stage);
    if (travels) {
      count.CountVisits();
    } else {
      count.CountHolders();
      count.CountFetched();
    }
    count.CountHandedOut();
    count.AppendTo(&kept);
  }
  return kept;
}

}  // namespace weft
