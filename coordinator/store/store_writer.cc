#include "coordinator/store/store_writer.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/metrics/metrics.h"
#include "base/monotonic_clock.h"
#include "base/threads.h"

namespace weft {
namespace {

constexpr int64_t kTryAgainNs = 500'000'000;  // a store that is full
constexpr int64_t kLookNs = 2'000'000'000;    // interval of looks for room, while there is none

}  // namespace

struct StoreWriter::Series {
  explicit Series(Metrics* m)
      : commits(m->AddCounter("weft_store_commits_total",
                              "Commits of the store, each with a write to the disk.")),
        records(m->AddCounter("weft_store_batches_total",
                              "Steps of the coordinator whose records were committed; more than the commits "
                              "where several were committed together.")),
        failures(m->AddCounter("weft_store_failures_total",
                               "Commits that failed; those for which there was no room are tried again.")),
        full(m->AddGauge("weft_store_full", "1 while the store has no room for new runs.")),
        seconds(m->AddHistogram("weft_store_commit_seconds", "Time of a commit until it is on the disk.",
                                ExponentialBounds(0.0001, 2, 16))) {}
  Counter commits, records, failures;
  Gauge full;
  Histogram seconds;
};

StoreWriter::StoreWriter(std::unique_ptr<Store> store, StoreWriterOptions options)
    : store_(std::move(store)),
      options_(std::move(options)),
      series_(options_.metrics == nullptr ? nullptr : std::make_unique<Series>(options_.metrics)) {
  CheckRoom();
  thread_ = StartThread([this] { Run(); });
}

StoreWriter::~StoreWriter() { Stop(); }

void StoreWriter::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    wake_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void StoreWriter::Write(Records records, std::function<void()> durable) {
  MutexLock lock(mu_);
  if (over_) return;
  waiting_.records.push_back(std::move(records));
  waiting_.durable.push_back(std::move(durable));
  wake_.Signal();
}

absl::Status StoreWriter::Room() const {
  MutexLock lock(mu_);
  return room_;
}

bool StoreWriter::Take(Waiting* taken) {
  MutexLock lock(mu_);
  while (waiting_.records.empty()) {
    if (stopping_) return false;
    if (room_.ok()) {
      wake_.Wait(mu_);
    } else if (wake_.WaitWithTimeout(mu_, kLookNs)) {
      break;
    }
  }
  *taken = std::exchange(waiting_, {});
  return true;
}

void StoreWriter::CheckRoom() {
  absl::Status room = store_->Room();
  bool changed = false;
  {
    MutexLock lock(mu_);
    changed = room.ok() != room_.ok();
    room_ = room;
  }
  if (series_ != nullptr) series_->full.Set(room.ok() ? 0 : 1);
  if (!changed || !options_.log) return;
  options_.log(room.ok() ? "the store has room again; runs are taken in"
                         : absl::StrCat(room.message(), "; until then no run is taken in"));
}

// Commits, again and again while there is no room.
absl::Status StoreWriter::Commit(const std::vector<Records>& batch) {
  while (true) {
    const int64_t start = MonotonicNow();
    absl::Status committed = store_->Commit(batch);
    if (series_ != nullptr) {
      series_->seconds.Observe(static_cast<double>(MonotonicNow() - start) * 1e-9);
      committed.ok() ? series_->commits.Add() : series_->failures.Add();
    }
    if (!absl::IsResourceExhausted(committed)) return committed;
    if (options_.log)
      options_.log(absl::StrCat("the store is full, and what the runs do waits: ", committed.message()));
    MutexLock lock(mu_);
    room_ = committed;
    if (stopping_) return committed;
    wake_.WaitWithTimeout(mu_, kTryAgainNs);
  }
}

void StoreWriter::Run() {
  Waiting taken;
  while (Take(&taken)) {
    const absl::Status committed = taken.records.empty() ? absl::OkStatus() : Commit(taken.records);
    if (!committed.ok()) {
      {
        MutexLock lock(mu_);
        over_ = true;
        waiting_ = {};
      }
      if (!absl::IsResourceExhausted(committed) && options_.failed) options_.failed(committed);
      return;
    }
    if (series_ != nullptr) series_->records.Add(static_cast<double>(taken.records.size()));
    for (const std::function<void()>& durable : taken.durable) {
      if (durable) durable();
    }
    taken = {};
    CheckRoom();
  }
}

}  // namespace weft
