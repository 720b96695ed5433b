#include "worker/shell/metrics/worker_metrics.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/metrics/certificate_metrics.h"
#include "base/metrics/metrics.h"
#include "base/metrics/metrics_server.h"
#include "base/mutex.h"
#include "base/release.h"

namespace weft {
namespace {

class Exported final : public WorkerMetrics {
 public:
  Exported(std::string host, Source source, GpuMonitor* gpu)
      : host_(std::move(host)),
        source_(std::move(source)),
        gpu_(gpu),
        running_(metrics_.AddGauge("weft_worker_busy_with_run", "Runs that this process works on.")),
        sent_(metrics_.AddCounter("weft_transfers_total", "Tensors moved between processes.",
                                  {{"direction", "sent"}})),
        received_(metrics_.AddCounter("weft_transfers_total", "Tensors moved between processes.",
                                      {{"direction", "received"}})),
        in_place_(metrics_.AddCounter("weft_transfer_in_place_bytes_total",
                                      "Bytes that were received by reading them in the producer's memory.")),
        held_(metrics_.AddGauge("weft_transfer_held_bytes",
                                "Bytes offered to other processes and not yet released by them.")),
        dropped_(metrics_.AddCounter("weft_transfer_dropped_messages_total",
                                     "Messages of another epoch, or malformed ones.")),
        stale_(metrics_.AddCounter("weft_fenced_total",
                                   "Grants and ids of groups of another attempt; they changed nothing.")),
        versions_(
            metrics_.AddGauge("weft_weight_versions",
                              "Most versions of one stage's weights that a rank of this process holds.")),
        peak_versions_(metrics_.AddGauge("weft_weight_versions_peak",
                                         "Largest value of weft_weight_versions in this run.")),
        silent_(metrics_.AddGauge("weft_silent_links",
                                  "Data links on which a tensor is awaited and that answer no question.")),
        failures_(
            metrics_.AddCounter("weft_worker_failures_total", "Runs that this process reported as failed.")),
        dumps_(metrics_.AddCounter("weft_flight_dumps_total", "Dumps of the flight recorder.")) {
    metrics_
        .AddGauge("weft_build_info", "1, with the version of this program.",
                  {{"version", std::string(Release())}})
        .Set(1);
    for (int k = 0; k < kJobKinds; ++k) {
      const std::string kind(JobKindName(static_cast<JobKind>(k)));
      busy_.push_back(metrics_.AddCounter("weft_busy_seconds_total",
                                          "Time that ranks computed, by kind of job.", {{"kind", kind}}));
      jobs_.push_back(
          metrics_.AddCounter("weft_worker_jobs_total", "Jobs computed, by kind.", {{"kind", kind}}));
    }
    for (int c = 0; c < kIdleCauses; ++c) {
      idle_.push_back(
          metrics_.AddCounter("weft_idle_seconds_total", "Time that ranks were idle, by cause.",
                              {{"cause", std::string(IdleCauseName(static_cast<IdleCause>(c)))}}));
    }
    for (int m = 0; m < kMemoryClasses; ++m) {
      const Metrics::Labels labels = {{"class", std::string(MemoryClassName(static_cast<MemoryClass>(m)))}};
      live_.push_back(metrics_.AddGauge("weft_memory_bytes",
                                        "Bytes alive in the ranks of this process, by class.", labels));
      peak_.push_back(metrics_.AddGauge(
          "weft_memory_peak_bytes",
          "Sum over the ranks of each rank's most bytes alive in this run, by class.", labels));
    }
    for (int k = 0; k < kTensorKinds; ++k) {
      const std::string tensor(TensorKindName(static_cast<TensorKind>(k)));
      const char* help = "Bytes sent from rank to rank, also within one process, by kind of tensor.";
      bytes_sent_.push_back(metrics_.AddCounter("weft_transfer_bytes_total", help,
                                                {{"direction", "sent"}, {"tensor", tensor}}));
      bytes_received_.push_back(metrics_.AddCounter("weft_transfer_bytes_total", help,
                                                    {{"direction", "received"}, {"tensor", tensor}}));
    }
  }

  absl::Status Serve(const std::string& address, const MetricsReaders& readers) {
    certificates_ = RefreshCertificateMetrics(&metrics_, readers.security.tls);
    auto server = MetricsServer::Start(address, &metrics_, readers, source_.problem, [this] { Refresh(); });
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    return absl::OkStatus();
  }

  std::string address() const override { return absl::StrCat(host_, ":", server_->port()); }

 private:
  void Refresh() {
    if (certificates_) certificates_();
    const WorkerSnapshot s = source_.snapshot();
    running_.Set(s.runs);
    sent_.RaiseTo(static_cast<double>(s.transport.tensors_sent));
    received_.RaiseTo(static_cast<double>(s.transport.tensors_received));
    in_place_.RaiseTo(static_cast<double>(s.transport.bytes_in_place));
    held_.Set(static_cast<double>(s.bytes_held));
    dropped_.RaiseTo(static_cast<double>(s.transport.dropped_messages));
    stale_.RaiseTo(static_cast<double>(s.stale_grants));
    silent_.Set(s.silent_links);
    failures_.RaiseTo(static_cast<double>(s.failures));
    dumps_.RaiseTo(static_cast<double>(source_.dumps()));
    versions_.Set(s.weight_versions);
    peak_versions_.Set(s.peak_weight_versions);
    for (int k = 0; k < kJobKinds; ++k) {
      busy_[k].RaiseTo(s.busy_seconds[k]);
      jobs_[k].RaiseTo(static_cast<double>(s.jobs[k]));
    }
    for (int c = 0; c < kIdleCauses; ++c) idle_[c].RaiseTo(s.idle_seconds[c]);
    for (int m = 0; m < kMemoryClasses; ++m) {
      live_[m].Set(static_cast<double>(s.live_bytes[m]));
      peak_[m].Set(static_cast<double>(s.peak_bytes[m]));
    }
    ShowPaths(s.paths);
    for (int k = 0; k < kTensorKinds; ++k) {
      bytes_sent_[k].RaiseTo(static_cast<double>(s.bytes_sent[k]));
      bytes_received_[k].RaiseTo(static_cast<double>(s.bytes_received[k]));
    }
    if (gpu_ != nullptr) RefreshGpu();
  }

  // Refreshes the GPU's figures. A figure that the GPU has had once has a series from then on.
  void RefreshGpu() {
    MutexLock lock(series_mutex_);
    for (const auto& [name, value] : gpu_->Latest()) {
      const auto [gauge, is_new] = gpu_gauges_.try_emplace(name);
      if (is_new) {
        gauge->second = metrics_.AddGauge(absl::StrCat("weft_gpu_", name),
                                          "As NVML reports it for the GPU of this process.");
      }
      gauge->second->Set(value);
    }
  }

  // Shows 1 for present paths, 0 for former ones.
  void ShowPaths(const std::vector<PeerPath>& paths) {
    MutexLock lock(series_mutex_);
    for (auto& [labels, gauge] : paths_) gauge.Set(0);
    for (const PeerPath& p : paths) {
      const Metrics::Labels labels = {{"peer", absl::StrCat(p.peer)},
                                      {"place", p.place == MemoryPlace::kHost ? "host" : "device"},
                                      {"path", p.path}};
      auto known = paths_.find(labels);
      if (known == paths_.end()) {
        known = paths_
                    .emplace(labels, metrics_.AddGauge("weft_transfer_path_info",
                                                       "1 for the path that tensors of that memory take to "
                                                       "the process with that number; 0 for an earlier path.",
                                                       labels))
                    .first;
      }
      known->second.Set(1);
    }
  }

  const std::string host_;
  const Source source_;
  GpuMonitor* const gpu_;
  Metrics metrics_;
  Gauge running_;
  Counter sent_, received_, in_place_;
  Gauge held_;
  Counter dropped_, stale_;
  Gauge versions_, peak_versions_, silent_;
  Counter failures_, dumps_;
  std::vector<Counter> busy_, jobs_, idle_;
  std::vector<Gauge> live_, peak_;
  std::vector<Counter> bytes_sent_, bytes_received_;
  Mutex series_mutex_;
  std::map<std::string, std::optional<Gauge>> gpu_gauges_ ABSL_GUARDED_BY(series_mutex_);
  std::map<Metrics::Labels, Gauge> paths_ ABSL_GUARDED_BY(series_mutex_);
  std::function<void()> certificates_;     // refreshes their figures; null without any
  std::unique_ptr<MetricsServer> server_;  // last: stops before the objects that it serves end
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerMetrics>> WorkerMetrics::Start(const std::string& address,
                                                                    const MetricsReaders& readers,
                                                                    Source source, GpuMonitor* gpu) {
  if (address.empty()) return std::unique_ptr<WorkerMetrics>();
  auto exported = std::make_unique<Exported>(address.substr(0, address.rfind(':')), std::move(source), gpu);
  if (absl::Status s = exported->Serve(address, readers); !s.ok()) return s;
  return exported;
}

}  // namespace weft
