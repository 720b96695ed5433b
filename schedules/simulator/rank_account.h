// Keeps accounts of the ranks in a simulation, besides their ready jobs: their time, busy or idle for a
// cause, and the activations that are alive on them. Both write what they have found into the ranks'
// RankStats at the end. Private to the simulator. One thread.
#ifndef WEFT_SCHEDULES_SIMULATOR_RANK_ACCOUNT_H_
#define WEFT_SCHEDULES_SIMULATOR_RANK_ACCOUNT_H_

#include <algorithm>
#include <limits>
#include <vector>

#include "schedules/simulator/simulate.h"
#include "schedules/timeline.h"

namespace weft {

// Divides the time of each rank: every instant is busy, or idle for one cause.
class RankTimes {
 public:
  // Refers to `result`, whose ranks are there. Idle intervals are recorded there too if `record`.
  RankTimes(SimulationResult* result, bool record);

  // Makes the rank, on which nothing runs, idle for `cause` from now on.
  void BeIdle(double now, Rank rank, IdleCause cause) {
    const State& state = states_[rank];
    if (cause == state.cause && state.awaited_since == kNothingCame) return;
    EndIdle(now, rank);
    states_[rank].cause = cause;
  }
  // Counts a job that runs on the rank, on which nothing runs, from now to `end`.
  void BeBusy(double now, Rank rank, double end) {
    State& state = states_[rank];
    if (now > state.busy_until) AddIdle(now, rank);
    state.awaited_since = kNothingCame;
    state.busy += end - now;
    state.busy_until = end;
  }
  // Counts a job that runs beside another from now to `end`.
  void BeBusyBeside(double now, Rank rank, double end) {
    State& state = states_[rank];
    if (end <= state.busy_until) return;
    state.busy += end - std::max(now, state.busy_until);
    state.busy_until = end;
  }
  // Ends the account of all ranks.
  void Finish(double now);
  // Notes that the input which made a job of the idle rank ready now was sent then, and on its way since.
  void Arrived(Rank rank, double sent) {
    states_[rank].awaited_since = std::min(states_[rank].awaited_since, sent);
  }

 private:
  static constexpr double kNothingCame = std::numeric_limits<double>::infinity();
  struct State {
    double busy = 0;  // in all
    double busy_until = 0;
    double idle_since = 0;
    double awaited_since = kNothingCame;  // of this instant
    IdleCause cause = IdleCause::kDependency;
  };

  void EndIdle(double now, Rank rank);
  void AddIdle(double now, Rank rank);
  void Add(Rank rank, IdleCause cause, double start, double end);

  SimulationResult* const result_;
  const bool record_;
  std::vector<State> states_;
};

// Counts the activations that are alive, on each rank and over all of them.
class AliveActivations {
 public:
  // Refers to `result`, whose ranks are there.
  explicit AliveActivations(SimulationResult* result) : result_(result), ranks_(result->ranks.size()) {}

  void Begin(Rank rank, double bytes) {
    ranks_[rank].Begin(bytes);
    all_.Begin(bytes);
  }
  void End(Rank rank, double bytes) {
    Count& count = ranks_[rank];
    --count.activations;
    count.bytes -= bytes;
    --all_.activations;
    // Sums of differences do not come back to nothing exactly.
    all_.bytes = all_.activations == 0 ? 0 : all_.bytes - bytes;
  }
  int On(Rank rank) const { return ranks_[rank].activations; }
  // Writes the peaks into the result.
  void Finish();

 private:
  struct Count {
    int activations = 0, peak = 0;
    double bytes = 0, peak_bytes = 0;

    void Begin(double more) {
      peak = std::max(peak, ++activations);
      bytes += more;
      peak_bytes = std::max(peak_bytes, bytes);
    }
  };
  SimulationResult* const result_;
  std::vector<Count> ranks_;
  Count all_;
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_RANK_ACCOUNT_H_
