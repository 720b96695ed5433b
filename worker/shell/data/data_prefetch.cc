#include "worker/shell/data/data_prefetch.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/threads.h"

namespace weft {

DataPrefetch::DataPrefetch(Read read, OfStep of_step, int end)
    : read_(std::move(read)), of_step_(std::move(of_step)), end_(end) {}

DataPrefetch::~DataPrefetch() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    ends_ = true;
    thread = std::move(thread_);
    changed_.SignalAll();
  }
  if (thread.joinable()) thread.join();
}

absl::StatusOr<Tensor> DataPrefetch::Take(const DataPiece& piece) {
  {
    MutexLock lock(mutex_);
    if (!thread_.joinable()) {
      next_step_ = piece.step;
      absl::StatusOr<std::thread> thread = TryStartThread([this] { Run(); });
      // Without a thread every piece is read when it is asked for.
      if (thread.ok()) thread_ = *std::move(thread);
    }
    while (reading_ == piece) changed_.Wait(mutex_);
    const auto found = ready_.find(piece);
    if (found != ready_.end()) {
      absl::StatusOr<Tensor> tensor = std::move(found->second);
      ready_.erase(found);
      misses_ = 0;
      changed_.SignalAll();
      return tensor;
    }
    if (NoteMissed(piece)) ++misses_;
    DropStale(piece.step);
  }
  return read_(piece);
}

// Returns false for a piece that was asked for before.
bool DataPrefetch::NoteMissed(const DataPiece& piece) {
  if (piece.step >= next_step_) return asked_early_.insert(piece).second;
  const auto listed = std::find(expected_.begin(), expected_.end(), piece);
  if (listed == expected_.end()) return false;
  expected_.erase(listed);
  return true;
}

// Drops pieces that are ready for jobs that do not come, since they stand in the way of others. Steps overlap
// in some schedules, by few.
void DataPrefetch::DropStale(int step) {
  constexpr int kSteps = 8, kPatience = 2 * kDepth;
  if (misses_ > kPatience && !ready_.empty()) {
    ready_.erase(ready_.begin());
    misses_ = 0;
  }
  const auto stale = [step](const DataPiece& piece) { return piece.step < step - kSteps; };
  std::erase_if(ready_, [&](const auto& entry) { return stale(entry.first); });
  std::erase_if(expected_, stale);
  next_step_ = std::max(next_step_, step - kSteps);
  changed_.SignalAll();
}

// Returns the piece to read next; nothing while enough is ready, or where the run ends.
std::optional<DataPiece> DataPrefetch::Next() {
  if (static_cast<int>(ready_.size()) >= kDepth) return std::nullopt;
  while (expected_.empty() && next_step_ < end_) {
    for (const DataPiece& piece : of_step_(next_step_)) {
      if (asked_early_.erase(piece) == 0) expected_.push_back(piece);
    }
    const int listed = ++next_step_;
    std::erase_if(asked_early_, [listed](const DataPiece& piece) { return piece.step < listed; });
  }
  if (expected_.empty()) return std::nullopt;
  const DataPiece next = expected_.front();
  expected_.pop_front();
  return next;
}

void DataPrefetch::Run() {
  mutex_.Lock();
  while (!ends_) {
    reading_ = Next();
    if (!reading_.has_value()) {
      changed_.Wait(mutex_);
      continue;
    }
    const DataPiece piece = *reading_;
    mutex_.Unlock();
    absl::StatusOr<Tensor> tensor = read_(piece);
    mutex_.Lock();
    ready_.emplace(piece, std::move(tensor));
    reading_.reset();
    changed_.SignalAll();
  }
  mutex_.Unlock();
}

}  // namespace weft
