#include "worker/shell/metrics/worker_metrics.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/metrics/metrics.h"
#include "base/metrics/metrics_server.h"
#include "base/mutex.h"
#include "base/release.h"

namespace weft {
namespace {

// The series of what moves between processes.
struct TransferSeries {
  explicit TransferSeries(Metrics* m)
      : in_place(m->AddCounter("weft_transfer_in_place_bytes_total",
                               "Bytes that were received by reading them in the producer's memory.")),
        dropped(m->AddCounter("weft_transfer_dropped_messages_total",
                              "Messages of another epoch, or malformed ones.")),
        held(m->AddGauge("weft_transfer_held_bytes",
                         "Bytes offered to other processes and not yet released by them.")),
        silent(m->AddGauge("weft_silent_links",
                           "Data links on which a tensor is awaited and that answer no question.")) {
    for (const char* direction : {"sent", "received"}) {
      const Metrics::Labels labels = {{"direction", direction}};
      tensors.push_back(m->AddCounter("weft_transfers_total", "Tensors moved between processes.", labels));
      bytes.push_back(m->AddCounter("weft_transfer_process_bytes_total",
                                    "Bytes of tensors moved between processes.", labels));
      retries.push_back(m->AddCounter("weft_transfer_retries_total",
                                      "Tensors that were sent again because they had not arrived, and "
                                      "questions for tensors that were late.",
                                      labels));
    }
  }

  void Set(const WorkerSnapshot& s) {
    const TransportCounters& c = s.transport;
    tensors[0].RaiseTo(static_cast<double>(c.tensors_sent));
    tensors[1].RaiseTo(static_cast<double>(c.tensors_received));
    bytes[0].RaiseTo(static_cast<double>(c.bytes_sent));
    bytes[1].RaiseTo(static_cast<double>(c.bytes_received));
    retries[0].RaiseTo(static_cast<double>(c.sent_again));
    retries[1].RaiseTo(static_cast<double>(c.asked_again));
    in_place.RaiseTo(static_cast<double>(c.bytes_in_place));
    dropped.RaiseTo(static_cast<double>(c.dropped_messages));
    held.Set(static_cast<double>(s.bytes_held));
    silent.Set(s.silent_links);
  }

  std::vector<Counter> tensors, bytes, retries;  // sent, received
  Counter in_place, dropped;
  Gauge held, silent;
};

// The series of what is written to checkpoints.
struct CheckpointSeries {
  explicit CheckpointSeries(Metrics* m)
      : bytes(m->AddCounter("weft_checkpoint_written_bytes_total",
                            "Bytes of snapshots that were written to checkpoints.")),
        seconds(
            m->AddCounter("weft_checkpoint_write_seconds_total",
                          "Time that threads wrote snapshots, up to two at a time, beside the training.")),
        failures(m->AddCounter("weft_checkpoint_write_failures_total",
                               "Pieces of snapshots that could not be written.")) {}

  void Set(const SnapshotWrites& writes) {
    bytes.RaiseTo(static_cast<double>(writes.bytes));
    seconds.RaiseTo(1e-9 * static_cast<double>(writes.ns));
    failures.RaiseTo(static_cast<double>(writes.failures));
  }

  Counter bytes, seconds, failures;
};

class Exported final : public WorkerMetrics {
 public:
  Exported(std::string host, Source source, GpuMonitor* gpu)
      : host_(std::move(host)),
        source_(std::move(source)),
        gpu_(gpu),
        running_(metrics_.AddGauge("weft_worker_busy_with_run", "Runs that this process works on.")),
        stale_(metrics_.AddCounter("weft_fenced_total",
                                   "Grants and ids of groups of another attempt; they changed nothing.")),
        versions_(
            metrics_.AddGauge("weft_weight_versions",
                              "Most versions of one stage's weights that a rank of this process holds.")),
        peak_versions_(metrics_.AddGauge("weft_weight_versions_peak",
                                         "Largest value of weft_weight_versions in this run.")),
        failures_(
            metrics_.AddCounter("weft_worker_failures_total", "Runs that this process reported as failed.")),
        transfers_(&metrics_),
        checkpoints_(&metrics_) {
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
    daemon_.emplace(&metrics_, source_.daemon, readers.security);
    auto server = MetricsServer::Start(address, &metrics_, readers, source_.problem, [this] { Refresh(); });
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    return absl::OkStatus();
  }

  std::string address() const override { return absl::StrCat(host_, ":", server_->port()); }

 private:
  void Refresh() {
    daemon_->Refresh();
    const WorkerSnapshot s = source_.snapshot();
    running_.Set(s.runs);
    transfers_.Set(s);
    checkpoints_.Set(s.checkpoints);
    stale_.RaiseTo(static_cast<double>(s.stale_grants));
    failures_.RaiseTo(static_cast<double>(s.failures));
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
  Counter stale_;
  Gauge versions_, peak_versions_;
  Counter failures_;
  TransferSeries transfers_;
  CheckpointSeries checkpoints_;
  std::vector<Counter> busy_, jobs_, idle_;
  std::vector<Gauge> live_, peak_;
  std::vector<Counter> bytes_sent_, bytes_received_;
  Mutex series_mutex_;
  std::map<std::string, std::optional<Gauge>> gpu_gauges_ ABSL_GUARDED_BY(series_mutex_);
  std::map<Metrics::Labels, Gauge> paths_ ABSL_GUARDED_BY(series_mutex_);
  std::optional<DaemonMetrics> daemon_;    // once it serves
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
