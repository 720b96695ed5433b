// Shows what every daemon has: lines of its log by level, dumps of its flight recorder, whether its last
// reload was taken, whether it does without TLS, and its certificates (certificate_metrics.h).
//
// Threads: Refresh by one at a time. All that it is made from outlives it.
#ifndef WEFT_BASE_METRICS_DAEMON_METRICS_H_
#define WEFT_BASE_METRICS_DAEMON_METRICS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/log/daemon_log.h"
#include "base/metrics/certificate_metrics.h"
#include "base/metrics/metrics.h"
#include "base/net/security_flags.h"
#include "base/settings/reload.h"

namespace weft {

class DaemonMetrics {
 public:
  struct Source {
    const DaemonLog* log = nullptr;
    const LastReload* reload = nullptr;  // null where it takes no reloads
    std::function<int64_t()> dumps;      // number of dumps of its last events
  };
  DaemonMetrics(Metrics* metrics, Source source, const SecurityFlags& security);

  // Reads the figures anew, before a scrape.
  void Refresh();

 private:
  const Source source_;
  std::optional<CertificateMetrics> certificates_;
  std::vector<Counter> messages_;  // by level
  Counter dumps_;
  std::optional<Gauge> reload_taken_, reload_time_;
};

}  // namespace weft

#endif  // WEFT_BASE_METRICS_DAEMON_METRICS_H_
