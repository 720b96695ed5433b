#include "worker/shell/cuda/cuda_holds.h"

#include <utility>

namespace weft {

void CudaHolds::Add(std::shared_ptr<CudaFence> until, Owners owners) {
  if (owners.empty()) return;
  const cudaStream_t stream = until->stream().stream();
  MutexLock lock(mutex_);
  held_[stream].push_back({std::move(until), std::move(owners)});
}

void CudaHolds::Trim() {
  std::vector<Held> done;  // released outside the lock: owners may do anything
  MutexLock lock(mutex_);
  for (auto& [stream, queue] : held_) {
    while (!queue.empty()) {
      const absl::StatusOr<bool> reached = queue.front().until->Reached();
      if (!reached.ok() || !*reached) break;
      done.push_back(std::move(queue.front()));
      queue.pop_front();
    }
  }
}

absl::StatusOr<bool> CopiedFence::Reached() {
  absl::StatusOr<bool> reached = copied_->Reached();
  if (reached.ok() && *reached) {
    if (const std::shared_ptr<CudaHolds> holds = holds_.lock()) holds->Trim();
  }
  return reached;
}

}  // namespace weft
