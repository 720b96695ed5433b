// Exports the coordinator's metrics from the core's probe. Loop's thread only.
#ifndef WEFT_COORDINATOR_SHELL_COORDINATOR_METRICS_H_
#define WEFT_COORDINATOR_SHELL_COORDINATOR_METRICS_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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

 private:
  void Export(const Probe& probe, const SessionCounts& sessions);

  Gauge epoch_, loss_, gradient_norm_, last_step_;
  Counter steps_, fenced_, duplicates_, violations_, grants_, received_, sent_, lost_, restarts_, non_finite_,
      resumed_;
  std::vector<Gauge> jobs_;         // blocked, ready, claimed, done
  std::vector<Counter> completed_;  // by kind
  std::vector<Counter> recovery_;   // by phase
  std::vector<Gauge> runs_;         // by state
  std::vector<Counter> ended_;      // finished, failed, cancelled
  std::vector<Gauge> workers_;      // free, busy, broken
  int64_t exported_ = 0;
  int64_t due_ = INT64_MAX;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_COORDINATOR_METRICS_H_
