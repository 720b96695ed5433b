#include "schedules/simulator/rank_account.h"

namespace weft {

RankTimes::RankTimes(SimulationResult* result, bool record)
    : result_(result), record_(record), states_(result->ranks.size()) {}

// Ends the idle time of the rank for its cause, and lets another begin.
void RankTimes::EndIdle(double now, Rank rank) {
  AddIdle(now, rank);
  states_[rank].idle_since = now;
  states_[rank].awaited_since = kNothingCame;
}

// The input that it waited for had been made when it was sent: from then on it was on its way.
void RankTimes::AddIdle(double now, Rank rank) {
  const State& state = states_[rank];
  double start = std::max(state.idle_since, state.busy_until);
  const bool waited = state.cause == IdleCause::kDependency || state.cause == IdleCause::kReduce;
  if (waited && state.awaited_since < now) {
    const double sent = std::max(start, state.awaited_since);
    Add(rank, state.cause, start, sent);
    Add(rank, IdleCause::kTransfer, sent, now);
    start = now;
  }
  Add(rank, state.cause, start, now);
}

void RankTimes::Finish(double now) {
  for (Rank rank = 0; rank < static_cast<Rank>(states_.size()); ++rank) {
    EndIdle(now, rank);
    result_->ranks[rank].busy = states_[rank].busy;
  }
}

void RankTimes::Add(Rank rank, IdleCause cause, double start, double end) {
  if (end <= start) return;
  result_->ranks[rank].idle_by_cause[static_cast<int>(cause)] += end - start;
  if (record_) result_->idle.push_back({rank, cause, start, end});
}

void AliveActivations::Finish() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    result_->ranks[rank].peak_activations = ranks_[rank].peak;
    result_->ranks[rank].peak_activation_bytes = ranks_[rank].peak_bytes;
  }
  result_->peak_live_activations = all_.peak;
  result_->peak_live_bytes = all_.peak_bytes;
}

}  // namespace weft
