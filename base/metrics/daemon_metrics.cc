#include "base/metrics/daemon_metrics.h"

#include <string>
#include <utility>

namespace weft {

DaemonMetrics::DaemonMetrics(Metrics* m, Source source, const SecurityFlags& security)
    : source_(std::move(source)),
      dumps_(m->AddCounter("weft_flight_dumps_total", "Dumps of the flight recorder.")) {
  if (!security.tls.empty()) certificates_.emplace(m, security.tls);
  for (int level = 0; level < kLogSeverities; ++level) {
    const std::string name(LogSeverityName(static_cast<LogSeverity>(level)));
    messages_.push_back(m->AddCounter("weft_log_messages_total",
                                      "Events of the log, also those that --log-level leaves out.",
                                      {{"level", name}}));
  }
  m->AddGauge("weft_insecure", "1 if this process was started with --insecure.")
      .Set(security.insecure ? 1 : 0);
  if (source_.reload == nullptr) return;
  reload_taken_ = m->AddGauge("weft_config_last_reload_successful",
                              "1 if the configuration was taken when it was read last.");
  reload_time_ = m->AddGauge("weft_config_last_reload_success_timestamp_seconds",
                             "When the configuration was taken last, at the start or at SIGHUP, since 1970.");
}

void DaemonMetrics::Refresh() {
  if (certificates_.has_value()) certificates_->Refresh();
  for (int level = 0; level < kLogSeverities; ++level)
    messages_[level].RaiseTo(static_cast<double>(source_.log->events(static_cast<LogSeverity>(level))));
  dumps_.RaiseTo(static_cast<double>(source_.dumps()));
  if (source_.reload == nullptr) return;
  reload_taken_->Set(source_.reload->taken() ? 1 : 0);
  reload_time_->Set(source_.reload->taken_unix_seconds());
}

}  // namespace weft
