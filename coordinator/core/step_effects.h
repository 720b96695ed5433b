// Collects what one Step of the coordinator's core does, and what of it is to be stored.
//
// The core's state machines (worker_sessions.h, run_queue.h, run.h, run_checkpoints.h) decide; none of them
// has the others' state. Each gets this value, reads the time of the Step from it, and appends its effects in
// the order in which it decides. Counters are totals since the start (probe.h).
#ifndef WEFT_COORDINATOR_CORE_STEP_EFFECTS_H_
#define WEFT_COORDINATOR_CORE_STEP_EFFECTS_H_

#include <cstdint>
#include <utility>

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
    for (RunInfo& info : effects.runs) {
      if (info.id == run.id && info.state == run.state) {
        info = run;
        return;
      }
    }
    effects.runs.push_back(run);
  }
  // Has the run's figures stored; the last of a Step count.
  void Keep(RunFigures figures) {
    for (RunFigures& kept : effects.records.figures) {
      if (kept.info.id != figures.info.id) continue;
      kept = std::move(figures);
      return;
    }
    effects.records.figures.push_back(std::move(figures));
  }
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_STEP_EFFECTS_H_
