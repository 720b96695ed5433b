#include "worker/shell/cuda/copies_away.h"

#include <utility>

#include "absl/status/statusor.h"

namespace weft {

void CopiesAway::Add(std::shared_ptr<CudaFence> copied, std::shared_ptr<void> source, size_t bytes,
                     const c10::cuda::CUDAStream& stream) {
  constexpr size_t kAtOnce = 2, kBytesAtOnce = size_t{32} << 20;
  away_.push_back({std::move(copied), std::move(source), bytes});
  bytes_ += bytes;
  while (!away_.empty()) {
    const absl::StatusOr<bool> done = away_.front().copied->Reached();
    if (!done.ok()) return;  // the job's end will say so
    if (!*done) {
      if (away_.size() <= kAtOnce || bytes_ <= kBytesAtOnce) return;
      away_.front().copied->Precede(stream);
    }
    bytes_ -= away_.front().bytes;
    away_.pop_front();
  }
}

void CopiesAway::HoldRest(CudaHolds& holds) {
  for (Away& away : away_) holds.Add(away.copied, {std::move(away.source)});
  away_.clear();
}

CudaHolds::Owners CopiesAway::TakeSources() {
  CudaHolds::Owners sources;
  for (Away& away : away_) sources.push_back(std::move(away.source));
  away_.clear();
  return sources;
}

}  // namespace weft
