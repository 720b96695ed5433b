// Collects what one Step of the coordinator's core does, and what of it is to be stored.
//
// The core's state machines (worker_sessions.h, run_queue.h, run.h, run_checkpoints.h) decide; none of them
// has the others' state. Each gets this value, reads the time of the Step from it, and appends its effects in
// the order in which it decides. Counters are totals since the start (probe.h).
#ifndef WEFT_COORDINATOR_CORE_STEP_EFFECTS_H_
#define WEFT_COORDINATOR_CORE_STEP_EFFECTS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "coordinator/core/events.h"
#include "coordinator/core/probe.h"

namespace weft {

struct StepEffects {
  int64_t now = 0;
  Effects effects;
  Probe counts;

  void Send(SessionId session, FromCoordinator message) {
    ++counts.messages_sent;
    effects.messages.push_back({session, std::move(message)});
  }
  // Reports the run's new state. A run has one entry for each of its states in a Step: the last counts.
  void Changed(const RunInfo& run) {
    const auto [place, added] = changed_.try_emplace({run.id, run.state}, effects.runs.size());
    if (!added && place->second < effects.runs.size()) {
      RunInfo& info = effects.runs[place->second];
      if (info.id == run.id && info.state == run.state) {
        info = run;
        return;
      }
    }
    place->second = effects.runs.size();
    effects.runs.push_back(run);
  }
  // Has the run's figures stored; the last of a Step count.
  void Keep(RunFigures figures) {
    std::vector<RunFigures>& kept = effects.records.figures;
    const auto [place, added] = kept_.try_emplace(figures.info.id, kept.size());
    if (!added && place->second < kept.size() && kept[place->second].info.id == figures.info.id) {
      kept[place->second] = std::move(figures);
      return;
    }
    place->second = kept.size();
    kept.push_back(std::move(figures));
  }
  // Returns the effects of the Step, and begins the next.
  Effects Take() {
    changed_.clear();
    kept_.clear();
    return std::exchange(effects, {});
  }

 private:
  // Places in `effects`; one that is not true any more counts for nothing.
  absl::flat_hash_map<std::pair<uint64_t, RunState>, size_t> changed_;
  absl::flat_hash_map<uint64_t, size_t> kept_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_STEP_EFFECTS_H_
