// Exports the coordinator's metrics: most from the core's probe; times of jobs, claims and calls as they are
// heard.
//
// Series are grouped by what they are about. Each group adds its series at 0, and sets them from the probe.
// Loop's thread only.
#ifndef WEFT_COORDINATOR_SHELL_COORDINATOR_METRICS_H_
#define WEFT_COORDINATOR_SHELL_COORDINATOR_METRICS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/metrics/metrics.h"
#include "coordinator/core/coordinator_core.h"
#include "coordinator/shell/session_table.h"

namespace weft {

class CoordinatorMetrics {
 public:
  // Adds every series, at 0.
  explicit CoordinatorMetrics(Metrics* metrics);

  // Exports the probe, at most every 50 ms: between two, next_deadline says when the last one is due.
  void Update(int64_t now, const CoordinatorCore& core, const SessionCounts& sessions);
  int64_t next_deadline() const { return due_; }

  // Takes jobs that are done.
  void Hear(const JobsEnded& jobs);
  // Takes the time from the start of a turn of the loop until the jobs were sent that its messages could
  // claim.
  void HearClaims(int64_t ns);
  // Takes a call of the run API that is answered; how long that took, unless it is a stream.
  void HearCall(const std::string& method, absl::StatusCode code, std::optional<int64_t> ns);

 private:
  struct StepSeries {
    explicit StepSeries(Metrics* m);
    void Export(int64_t now, const Probe& probe);
    Gauge epoch, loss, gradient_norm, last_step, wait;
    Counter steps, non_finite, running;
  };
  struct RunSeries {
    explicit RunSeries(Metrics* m);
    void Export(const Probe& probe);
    std::vector<Gauge> runs;                  // by state
    std::vector<Counter> ended;               // by final state
    std::vector<Counter> restarts, recovery;  // by cause, by phase
    Counter quarantined;
    Histogram queue_wait;
  };
  struct JobSeries {
    explicit JobSeries(Metrics* m);
    void Export(const Probe& probe);
    std::vector<Gauge> jobs;         // blocked, ready, claimed, done
    std::vector<Counter> completed;  // by kind
    std::vector<Histogram> times;    // by kind
    Counter grants, duplicates;
    Histogram claims;
  };
  struct CheckpointSeries {
    explicit CheckpointSeries(Metrics* m);
    void Export(const Probe& probe);
    Gauge overdue;
    Counter failures;
    Histogram times;
  };
  struct WorkerSeries {
    explicit WorkerSeries(Metrics* m);
    void Export(const Probe& probe, const SessionCounts& sessions);
    std::vector<Gauge> workers;  // free, busy, ending, broken
    Gauge chosen_last;
    Counter lost, leases, fenced, violations, received, sent, resumed;
  };

  Metrics* const metrics_;
  StepSeries steps_;
  RunSeries runs_;
  JobSeries jobs_;
  CheckpointSeries checkpoints_;
  WorkerSeries workers_;
  Histogram calls_;
  int64_t exported_ = 0;
  int64_t due_ = INT64_MAX;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_COORDINATOR_METRICS_H_
