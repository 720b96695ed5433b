#include "worker/shell/cuda/pending_host_copies.h"

#include <utility>

#include "absl/status/statusor.h"

namespace weft {

void PendingHostCopies::Add(std::shared_ptr<CudaFence> copied, std::shared_ptr<void> source, size_t bytes,
                            const c10::cuda::CUDAStream& stream) {
  constexpr size_t kAtOnce = 2, kBytesAtOnce = size_t{32} << 20;
  pending_.push_back({std::move(copied), std::move(source), bytes});
  bytes_ += bytes;
  while (!pending_.empty()) {
    const absl::StatusOr<bool> done = pending_.front().copied->Reached();
    if (!done.ok()) return;  // the job's end will say so
    if (!*done) {
      if (pending_.size() <= kAtOnce || bytes_ <= kBytesAtOnce) return;
      pending_.front().copied->Precede(stream);
    }
    bytes_ -= pending_.front().bytes;
    pending_.pop_front();
  }
}

void PendingHostCopies::HoldRest(CudaHolds& holds) {
  for (Copy& copy : pending_) holds.Add(copy.copied, {std::move(copy.source)});
  pending_.clear();
}

CudaHolds::Owners PendingHostCopies::TakeSources() {
  CudaHolds::Owners sources;
  for (Copy& copy : pending_) sources.push_back(std::move(copy.source));
  pending_.clear();
  return sources;
}

}  // namespace weft
