// Counts what the coordinator's core does, for the export of metrics.
#ifndef WEFT_COORDINATOR_CORE_PROBE_H_
#define WEFT_COORDINATOR_CORE_PROBE_H_

#include <array>
#include <cstdint>
#include <optional>

#include "coordinator/core/duration_counts.h"
#include "coordinator/core/restart_cause.h"
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
  uint64_t non_finite_steps = 0;                    // steps given up for a number that is not finite
  uint64_t leases_expired = 0;                      // workers that were lost because they were silent
  uint64_t jobs_quarantined = 0;                    // jobs that ended each process which took them
  std::array<uint64_t, kRestartCauses> restarts{};  // runs that began again, by cause
  RecoveryTimes recovery_ns = {};                   // times of the restarts that led to a new step
  std::array<uint64_t, kRunStates> runs_ended{};    // by final state
  DurationCounts<100'000'000, 4, 10> queue_wait;    // from a run's submission until it runs: 0.1 s to 7 h
  DurationCounts<100'000'000, 2, 15> checkpoints;   // from a checkpoint's announcement until it is complete
  uint64_t failed_checkpoints = 0;
  int64_t running_ns = 0;  // time in which a run was running (running_time.h)

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
  int64_t step_wait_ns = 0;                  // time in which a run was running, since the last step ended
  int64_t running_since_ns = 0;     // time from which on running_ns and step_wait_ns grow; 0: they do not
  int64_t workers_chosen_last = 0;  // workers with which a run failed
  // Age of the newest checkpoint of a running run that is late with the next one (RunCheckpoints::Count), the
  // largest of all such runs; 0 if none is late.
  int64_t checkpoint_overdue_ns = 0;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_PROBE_H_
