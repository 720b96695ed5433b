// Counts what the coordinator's core does, for the export of metrics.
#ifndef WEFT_COORDINATOR_CORE_PROBE_H_
#define WEFT_COORDINATOR_CORE_PROBE_H_

#include <array>
#include <cstdint>
#include <optional>

#include "coordinator/core/work_queue.h"
#include "proto/session/run_info.h"
#include "schedules/job.h"

namespace weft {

struct Probe {
  // Totals since the start.
  std::array<uint64_t, kJobKinds> completions{};
  uint64_t duplicate_completions = 0;
  uint64_t fenced = 0;  // messages of a stale token or of a run that is over: they changed nothing
  uint64_t violations = 0;
  uint64_t grants = 0;  // jobs
  uint64_t steps = 0;
  uint64_t surveys = 0;  // Steps of the core in which all workers were looked at
  uint64_t messages_received = 0, messages_sent = 0;
  uint64_t workers_lost = 0;
  uint64_t non_finite_steps = 0;                  // steps given up for a number that is not finite
  uint64_t restarts = 0;                          // runs that began again behind a loss
  RecoveryTimes recovery_ns = {};                 // times of the restarts that led to a new step
  std::array<uint64_t, kRunStates> runs_ended{};  // by final state

  // Present values.
  uint64_t epoch = 0;
  JobCounts jobs;
  std::array<int64_t, kRunStates> runs{};
  // Workers by state. ending: of an aborted run; broken: the session may still be resumed.
  int64_t workers_free = 0, workers_busy = 0, workers_ending = 0, workers_broken = 0;
  double loss = 0;
  bool has_loss = false;
  std::optional<double> gradient_norm = {};  // norm of the last step of a run that clips
  int64_t last_step_ns = 0;                  // time when the last step was seen to end; 0: never
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_PROBE_H_
