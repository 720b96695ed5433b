// Implements WorkerLoop's reports of its ranks, to the coordinator and in metrics.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/shell/loop/worker_loop.h"

namespace weft {
namespace {

void Add(const RankClock& clock, WorkerSnapshot* s) {
  for (int k = 0; k < kJobKinds; ++k)
    s->busy_seconds[k] += 1e-9 * static_cast<double>(clock.busy(static_cast<JobKind>(k)));
  for (int c = 0; c < kIdleCauses; ++c)
    s->idle_seconds[c] += 1e-9 * static_cast<double>(clock.idle(static_cast<IdleCause>(c)));
}

}  // namespace

std::vector<RankReport> WorkerLoop::Reports(int64_t now) {
  std::vector<RankReport> reports;
  for (Rank rank : core_.ranks()) {
    Slot* slot = SlotOf(rank);
    const RankClock& clock = core_.ClockAt(now, rank);
    RankReport r;
    r.rank = rank;
    for (int k = 0; k < kJobKinds; ++k) {
      const auto kind = static_cast<JobKind>(k);
      r.busy_seconds[std::string(JobKindName(kind))] = 1e-9 * static_cast<double>(clock.busy(kind));
    }
    for (int c = 0; c < kIdleCauses; ++c) {
      const auto cause = static_cast<IdleCause>(c);
      r.idle_seconds[std::string(IdleCauseName(cause))] = 1e-9 * static_cast<double>(clock.idle(cause));
    }
    // A rank that still prepares has no memory to show yet, and its thread is making its compute.
    if (prepared_) {
      const BytesByClass live = slot->compute->live_bytes(), peak = slot->compute->peak_bytes();
      for (int m = 0; m < kMemoryClasses; ++m) {
        const std::string name(MemoryClassName(static_cast<MemoryClass>(m)));
        r.live_bytes[name] = live[m];
        r.peak_bytes[name] = peak[m];
      }
    }
    for (int k = 0; k < kTensorKinds; ++k) {
      const std::string name(TensorKindName(static_cast<TensorKind>(k)));
      r.bytes_sent[name] = static_cast<int64_t>(slot->bytes_sent[k]);
      r.bytes_received[name] = static_cast<int64_t>(slot->bytes_received[k]);
    }
    r.left_bytes = slot->left_bytes;
    r.peak_activations = core_.peak_activations(rank);
    r.peak_weight_versions = core_.peak_weight_versions(rank);
    r.wall_seconds = 1e-9 * static_cast<double>(clock.wall());
    if (options_.gpu_figures) r.gpu = options_.gpu_figures();
    reports.push_back(std::move(r));
  }
  return reports;
}

void WorkerLoop::AddRunTo(int64_t now, WorkerSnapshot* s) {
  for (Rank rank : core_.ranks()) {
    Slot* slot = SlotOf(rank);
    Add(core_.ClockAt(now, rank), s);
    s->weight_versions = std::max(s->weight_versions, core_.weight_versions(rank));
    s->peak_weight_versions = std::max(s->peak_weight_versions, core_.peak_weight_versions(rank));
    for (int k = 0; k < kTensorKinds; ++k) {
      s->bytes_sent[k] += slot->bytes_sent[k];
      s->bytes_received[k] += slot->bytes_received[k];
    }
    if (!prepared_) continue;
    const BytesByClass live = slot->compute->live_bytes(), peak = slot->compute->peak_bytes();
    for (int m = 0; m < kMemoryClasses; ++m) {
      s->live_bytes[m] += live[m];
      s->peak_bytes[m] += peak[m];
    }
  }
}

std::string WorkerLoop::Problem() {
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t looked = looked_ns_, unseen = MonotonicNow() - looked;
  if (looked != 0 && unseen > 30 * kSecond)
    return absl::StrCat("the worker has taken no messages for ", unseen / kSecond, " s");
  MutexLock lock(mu_);
  return std::string(transport_.health().message());
}

WorkerSnapshot WorkerLoop::Snapshot() {
  MutexLock lock(mu_);
  WorkerSnapshot s = past_;
  s.has_run = core_.has_run();
  if (s.has_run) AddRunTo(MonotonicNow(), &s);
  s.transport = transport_.counters();
  s.paths = transport_.paths();
  s.bytes_held = transport_.bytes_held();
  s.silent_links = transport_.silent_links();
  s.stale_grants = core_.stale_grants();
  return s;
}

}  // namespace weft
