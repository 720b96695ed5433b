// Serves the /metrics of a worker process: memory by class, busy time by kind, idle time by cause, transfers,
// and the state of the GPU where there is one.
//
// Figures are read at each request, so that serving costs nothing in between.
#ifndef WEFT_WORKER_SHELL_METRICS_WORKER_METRICS_H_
#define WEFT_WORKER_SHELL_METRICS_WORKER_METRICS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/metrics/daemon_metrics.h"
#include "base/metrics/metrics_server.h"
#include "worker/shell/loop/rank_reports.h"
#include "worker/shell/metrics/gpu_monitor.h"

namespace weft {

class WorkerMetrics {
 public:
  virtual ~WorkerMetrics() = default;

  // The functions that return the figures, and the reason why the process is of no use, called from any
  // thread; and what every daemon shows.
  struct Source {
    std::function<WorkerSnapshot()> snapshot;
    std::function<std::string()> problem;
    DaemonMetrics::Source daemon;
  };
  // Serves on `address` (HOST:PORT; port 0 for any) to the readers; null for an empty address. `gpu`, which
  // may be null, and what `source` asks outlive it.
  static absl::StatusOr<std::unique_ptr<WorkerMetrics>> Start(const std::string& address,
                                                              const MetricsReaders& readers, Source source,
                                                              GpuMonitor* gpu);

  // Returns HOST:PORT with the real port.
  virtual std::string address() const = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_METRICS_WORKER_METRICS_H_
