#include "worker/shell/loop/rank_reports.h"

#include <algorithm>
#include <string>
#include <utility>

namespace weft {
namespace {

template <typename Array>
void AddEach(const Array& other, Array* totals) {
  for (size_t i = 0; i < other.size(); ++i) (*totals)[i] += other[i];
}

double Seconds(int64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

void AddTimes(const RankClock& clock, RankReport* r) {
  for (int k = 0; k < kJobKinds; ++k) {
    const auto kind = static_cast<JobKind>(k);
    r->busy_seconds[std::string(JobKindName(kind))] = Seconds(clock.busy(kind));
  }
  for (int c = 0; c < kIdleCauses; ++c) {
    const auto cause = static_cast<IdleCause>(c);
    r->idle_seconds[std::string(IdleCauseName(cause))] = Seconds(clock.idle(cause));
  }
  r->wall_seconds = Seconds(clock.wall());
}

void AddMemory(const RankCompute& compute, RankReport* r) {
  const BytesByClass live = compute.live_bytes(), peak = compute.peak_bytes();
  for (int m = 0; m < kMemoryClasses; ++m) {
    const std::string name(MemoryClassName(static_cast<MemoryClass>(m)));
    r->live_bytes[name] = live[m];
    r->peak_bytes[name] = peak[m];
  }
  r->most_bytes = compute.most_bytes();
}

}  // namespace

std::vector<RankReport> ReportRanks(int64_t now, bool prepared, WorkerCore& core, RankSeats& seats,
                                    const std::function<std::map<std::string, double>()>& gpu_figures) {
  std::vector<RankReport> reports;
  for (const Rank rank : core.ranks()) {
    const Seat& seat = *seats.Of(rank);
    RankReport r;
    r.rank = rank;
    AddTimes(core.ClockAt(now, rank), &r);
    if (prepared) AddMemory(*seat.compute, &r);
    for (int k = 0; k < kTensorKinds; ++k) {
      const std::string name(TensorKindName(static_cast<TensorKind>(k)));
      r.bytes_sent[name] = static_cast<int64_t>(seat.bytes_sent[k]);
      r.bytes_received[name] = static_cast<int64_t>(seat.bytes_received[k]);
    }
    r.activation_bytes = seat.activation_bytes;
    for (const auto& [job, bytes] : seat.job_bytes) r.job_bytes.push_back({job.first, job.second, bytes});
    r.peak_activations = core.peak_activations(rank);
    r.peak_weight_versions = core.peak_weight_versions(rank);
    if (gpu_figures) r.gpu = gpu_figures();
    reports.push_back(std::move(r));
  }
  return reports;
}

void AddSpans(const WorkerCore& core, std::vector<RankReport>* reports) {
  for (RankReport& report : *reports) {
    report.idle_spans = core.idle_spans(report.rank);
    report.transfer_spans = core.transfer_spans(report.rank);
  }
}

void Add(const WorkerSnapshot& other, WorkerSnapshot* totals) {
  totals->runs += other.runs;
  AddEach(other.busy_seconds, &totals->busy_seconds);
  AddEach(other.idle_seconds, &totals->idle_seconds);
  AddEach(other.live_bytes, &totals->live_bytes);
  AddEach(other.peak_bytes, &totals->peak_bytes);
  AddEach(other.jobs, &totals->jobs);
  AddEach(other.bytes_sent, &totals->bytes_sent);
  AddEach(other.bytes_received, &totals->bytes_received);
  totals->weight_versions = std::max(totals->weight_versions, other.weight_versions);
  totals->peak_weight_versions = std::max(totals->peak_weight_versions, other.peak_weight_versions);
  totals->transport.tensors_sent += other.transport.tensors_sent;
  totals->transport.tensors_received += other.transport.tensors_received;
  totals->transport.bytes_sent += other.transport.bytes_sent;
  totals->transport.bytes_received += other.transport.bytes_received;
  totals->transport.bytes_in_place += other.transport.bytes_in_place;
  totals->transport.dropped_messages += other.transport.dropped_messages;
  totals->transport.asked_again += other.transport.asked_again;
  totals->transport.sent_again += other.transport.sent_again;
  totals->checkpoints.bytes += other.checkpoints.bytes;
  totals->checkpoints.ns += other.checkpoints.ns;
  totals->checkpoints.failures += other.checkpoints.failures;
  totals->paths.insert(totals->paths.end(), other.paths.begin(), other.paths.end());
  totals->bytes_held += other.bytes_held;
  totals->stale_grants += other.stale_grants;
  totals->failures += other.failures;
  totals->silent_links += other.silent_links;
}

void AddRun(int64_t now, bool prepared, WorkerCore& core, RankSeats& seats, WorkerSnapshot* totals) {
  for (const Rank rank : core.ranks()) {
    const Seat& seat = *seats.Of(rank);
    const RankClock& clock = core.ClockAt(now, rank);
    for (int k = 0; k < kJobKinds; ++k)
      totals->busy_seconds[k] += Seconds(clock.busy(static_cast<JobKind>(k)));
    for (int c = 0; c < kIdleCauses; ++c)
      totals->idle_seconds[c] += Seconds(clock.idle(static_cast<IdleCause>(c)));
    totals->weight_versions = std::max(totals->weight_versions, core.weight_versions(rank));
    totals->peak_weight_versions = std::max(totals->peak_weight_versions, core.peak_weight_versions(rank));
    for (int k = 0; k < kTensorKinds; ++k) {
      totals->bytes_sent[k] += seat.bytes_sent[k];
      totals->bytes_received[k] += seat.bytes_received[k];
    }
    if (!prepared) continue;
    const BytesByClass live = seat.compute->live_bytes(), peak = seat.compute->peak_bytes();
    for (int m = 0; m < kMemoryClasses; ++m) {
      totals->live_bytes[m] += live[m];
      totals->peak_bytes[m] += peak[m];
    }
  }
}

}  // namespace weft
