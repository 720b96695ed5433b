#include "schedules/simulator/rank_account.h"

namespace weft {

RankTimes::RankTimes(SimulationResult* result, bool record)
    : result_(result), record_(record), states_(result->ranks.size()) {}

// The input that it waited for had been made when it was sent: from then on it was on its way.
void RankTimes::EndIdle(double now, Rank rank) {
  State& state = states_[rank];
  double start = std::max(state.idle_since, state.busy_until);
  const bool waited = state.cause == IdleCause::kDependency || state.cause == IdleCause::kReduce;
  if (waited && state.awaited_since < now) {
    const double sent = std::max(start, state.awaited_since);
    Add(rank, state.cause, start, sent);
    Add(rank, IdleCause::kTransfer, sent, now);
    start = now;
  }
  Add(rank, state.cause, start, now);
  state.idle_since = now;
  state.awaited_since = kNothingCame;
}

void RankTimes::Add(Rank rank, IdleCause cause, double start, double end) {
  if (end <= start) return;
  result_->ranks[rank].idle_by_cause[static_cast<int>(cause)] += end - start;
  if (record_) result_->idle.push_back({rank, cause, start, end});
}

}  // namespace weft
