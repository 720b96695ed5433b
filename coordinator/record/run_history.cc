#include "coordinator/record/run_history.h"

#include <algorithm>
#include <utility>

namespace weft {

void RunHistory::OnLoss(int32_t step, double loss) {
  losses_.DropNewest([&](const LossPoint& p) { return p.step >= step; });
  losses_.Add({step, loss});
}

void RunHistory::OnValidation(const Validation& validation) {
  if (!validation.failure.empty()) return;
  validations_.DropNewest([&](const LossPoint& p) { return p.step >= validation.step; });
  validations_.Add({validation.step, validation.loss});
}

void RunHistory::OnReport(const std::vector<RankReport>& ranks) {
  double seconds = 0;
  for (const RankReport& r : ranks) {
    of_rank_[r.rank] = r.live_bytes;
    seconds = std::max(seconds, r.wall_seconds);
  }
  if (ranks.empty()) return;
  if (seconds < attempt_ - kSampleSeconds) attempt_began_ += std::exchange(attempt_, 0);
  attempt_ = std::max(attempt_, seconds);
  seconds = attempt_began_ + attempt_;
  if (!bytes_.values().empty() && seconds < bytes_.values().back().seconds + kSampleSeconds) return;
  LiveBytes sample{seconds, {}};
  for (const auto& [rank, bytes] : of_rank_) {
    for (const auto& [name, number] : bytes) sample.bytes[name] += static_cast<double>(number);
  }
  bytes_.Add(std::move(sample));
}

}  // namespace weft
