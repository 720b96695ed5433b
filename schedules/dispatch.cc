#include "schedules/dispatch.h"

#include <algorithm>
#include <utility>

namespace weft {

ReadyJobs::ReadyJobs(std::vector<std::optional<int>> limits, std::optional<int64_t> first_place)
    : heaps_(2),
      heap_of_stage_(limits.size(), kUnlimited),
      stage_of_heap_(2, -1),
      limits_(std::move(limits)),
      replays_(first_place.has_value()),
      place_(first_place.value_or(0)) {
  for (size_t s = 0; s < limits_.size(); ++s) {
    if (!limits_[s].has_value()) continue;
    heap_of_stage_[s] = static_cast<int>(heaps_.size());
    stage_of_heap_.push_back(static_cast<int>(s));
    heaps_.emplace_back();
  }
}

void ReadyJobs::SetBudget(double budget, std::vector<double> bytes) {
  budget_ = budget;
  bytes_ = std::move(bytes);
  limits_.resize(bytes_.size());
  heap_of_stage_.resize(bytes_.size(), kUnlimited);
  for (size_t s = 0; s < bytes_.size(); ++s) {
    if (heap_of_stage_[s] != kUnlimited) continue;
    heap_of_stage_[s] = static_cast<int>(heaps_.size());
    stage_of_heap_.push_back(static_cast<int>(s));
    heaps_.emplace_back();
  }
}

void ReadyJobs::Add(int64_t priority, int64_t job, int stage, bool admits, bool beside) {
  const bool limited = admits && stage < static_cast<int>(heap_of_stage_.size());
  auto& heap = heaps_[beside && replays_ ? kBeside : limited ? heap_of_stage_[stage] : kUnlimited];
  heap.push_back({priority, job, stage, admits, beside});
  std::push_heap(heap.begin(), heap.end());
  ++size_;
}

bool ReadyJobs::Admits(int heap) const {
  const int stage = stage_of_heap_[heap];
  if (stage < 0) return true;
  if (limits_[stage].has_value() && live(stage) >= *limits_[stage]) return false;
  return bytes_.empty() || live_bytes_ + bytes_[stage] <= budget_;
}

int ReadyJobs::Choose() const {
  int best = -1;
  for (size_t h = 0; h < heaps_.size(); ++h) {
    if (heaps_[h].empty() || !HasItsTurn(heaps_[h].front()) || !Admits(static_cast<int>(h))) continue;
    if (best < 0 || heaps_[h].front().priority < heaps_[best].front().priority) best = static_cast<int>(h);
  }
  return best;
}

std::optional<int64_t> ReadyJobs::Next() const {
  const int choice = size_ == 0 ? -1 : Choose();
  if (choice < 0) return std::nullopt;
  return heaps_[choice].front().job;
}

std::optional<int64_t> ReadyJobs::Take() {
  const int choice = size_ == 0 ? -1 : Choose();
  if (choice < 0) return std::nullopt;
  return TakeFrom(choice);
}

std::optional<int64_t> ReadyJobs::NextBeside() const {
  const auto& heap = heaps_[kBeside];
  if (heap.empty() || !HasItsTurn(heap.front())) return std::nullopt;
  return heap.front().job;
}

std::optional<int64_t> ReadyJobs::TakeBeside() {
  if (!NextBeside().has_value()) return std::nullopt;
  return TakeFrom(kBeside);
}

int64_t ReadyJobs::TakeFrom(int choice) {
  auto& heap = heaps_[choice];
  std::pop_heap(heap.begin(), heap.end());
  const Entry entry = heap.back();
  heap.pop_back();
  --size_;
  if (replays_ && entry.priority >= 0) ++place_;
  if (entry.admits) {
    if (entry.stage >= static_cast<int>(live_.size())) live_.resize(entry.stage + 1, 0);
    ++live_[entry.stage];
    if (!bytes_.empty()) live_bytes_ += bytes_[entry.stage];
  }
  return entry.job;
}

void ReadyJobs::Release(int stage) {
  --live_[stage];
  if (!bytes_.empty()) live_bytes_ -= bytes_[stage];
}

std::optional<int64_t> ReadyJobs::HeldBack() const {
  if (size_ == 0 || Choose() >= 0) return std::nullopt;
  const Entry* first = nullptr;
  for (size_t h = 0; h < heaps_.size(); ++h) {
    if (heaps_[h].empty() || !HasItsTurn(heaps_[h].front()) || Admits(static_cast<int>(h))) continue;
    if (first == nullptr || heaps_[h].front().priority < first->priority) first = &heaps_[h].front();
  }
  return first == nullptr ? std::nullopt : std::optional<int64_t>(first->job);
}

}  // namespace weft
