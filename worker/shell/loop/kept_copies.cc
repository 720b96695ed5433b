#include "worker/shell/loop/kept_copies.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "worker/shell/checkpoint/packed_snapshot.h"

namespace weft {

void KeptCopies::BeginRun(uint64_t run) {
  std::map<Key, Copy> dropped;  // freed behind the lock
  MutexLock lock(mutex_);
  if (run == run_) return;
  run_ = run;
  dropped.swap(copies_);
  bytes_ = peak_bytes_ = 0;
}

void KeptCopies::Add(uint64_t run, const Key& key, Copy copy) {
  MutexLock lock(mutex_);
  if (run != run_) return;
  const auto [added, is_new] = copies_.emplace(key, std::move(copy));
  if (!is_new || !added->second.arrived) return;
  bytes_ += static_cast<int64_t>(added->second.tensor.bytes);
  peak_bytes_ = std::max(peak_bytes_, bytes_);
}

absl::Status KeptCopies::Put(uint64_t run, uint64_t epoch, const StageSnapshot& snapshot) {
  absl::StatusOr<Tensor> packed = PackSnapshot(snapshot, memory_);
  if (!packed.ok()) return packed.status();
  Add(run, {epoch, static_cast<int>(snapshot.version), {snapshot.layout.stage, snapshot.part}},
      {*std::move(packed), /*arrived=*/false});
  return absl::OkStatus();
}

void KeptCopies::Put(uint64_t run, const Key& key, Tensor copy) {
  Add(run, key, {std::move(copy), /*arrived=*/true});
}

absl::StatusOr<Tensor> KeptCopies::Find(uint64_t run, const Key& key) const {
  MutexLock lock(mutex_);
  const auto found = copies_.find(key);
  if (run == run_ && found != copies_.end()) return found->second.tensor;
  return absl::NotFoundError(
      absl::StrFormat("this process does not keep part %d of stage %d of step %d in memory", key.part.part,
                      key.part.stage, key.step));
}

void KeptCopies::Drop(uint64_t run, uint64_t epoch, int step) {
  std::map<Key, Copy> dropped;  // freed behind the lock
  MutexLock lock(mutex_);
  if (run != run_) return;
  if (epoch == 0) run_ = 0;  // the run is over: what its ranks still save is not kept
  for (auto it = copies_.begin(); it != copies_.end();) {
    const auto next = std::next(it);
    if (it->first.epoch != epoch || it->first.step < step) {
      if (it->second.arrived) bytes_ -= static_cast<int64_t>(it->second.tensor.bytes);
      dropped.insert(copies_.extract(it));
    }
    it = next;
  }
}

void KeptCopies::AddTo(RankReport* report) const {
  MutexLock lock(mutex_);
  report->live_bytes["copies"] = bytes_;
  report->peak_bytes["copies"] = peak_bytes_;
}

int64_t KeptCopies::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

int64_t KeptCopies::peak_bytes() const {
  MutexLock lock(mutex_);
  return peak_bytes_;
}

}  // namespace weft
