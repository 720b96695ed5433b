#include "schedules/dispatch/dispatch.h"

#include <algorithm>
#include <utility>

namespace weft {

ReadyJobs::ReadyJobs(std::vector<std::optional<int>> limits, std::optional<int64_t> first_place,
                     std::optional<Tickets> tickets)
    : heaps_(2),
      heap_of_stage_(limits.size(), kUnlimited),
      stage_of_heap_(2, -1),
      limits_(std::move(limits)),
      tickets_(std::move(tickets)),
      replays_(first_place.has_value()),
      place_(first_place.value_or(0)) {
  for (size_t s = 0; s < limits_.size(); ++s) {
    if (!limits_[s].has_value()) continue;
    heap_of_stage_[s] = static_cast<int>(heaps_.size());
    stage_of_heap_.push_back(static_cast<int>(s));
    heaps_.emplace_back();
  }
}

void ReadyJobs::Claim(int64_t job, int stage) {
  if (!IsLimited(stage)) return;
  if (claimed_.empty()) claimed_.resize(limits_.size());
  claimed_[stage].push_back(job);
}

void ReadyJobs::Add(int64_t priority, int64_t job, int stage, bool admits, int64_t ticket, bool overlapped) {
  const Waiting arrived{ticket, {priority, job, stage, admits, overlapped}};
  if (!admits || claimed_.empty() || !IsLimited(stage) || claimed_[stage].empty()) return Enter(arrived);
  early_.emplace(job, arrived);
  std::deque<int64_t>& line = claimed_[stage];
  for (; !line.empty(); line.pop_front()) {
    const auto next = early_.find(line.front());
    if (next == early_.end()) return;
    Enter(next->second);
    early_.erase(next);
  }
}

void ReadyJobs::Enter(const Waiting& arrived) {
  ++size_;
  choice_ = kUnknown;
  if (!arrived.entry.admits || !tickets_.has_value() || tickets_->Reach(arrived.ticket)) {
    return Push(arrived.entry);
  }
  waiting_.push_back(arrived);
  std::push_heap(waiting_.begin(), waiting_.end());
}

void ReadyJobs::Push(const Entry& entry) {
  const bool limited = entry.admits && entry.stage < static_cast<int>(heap_of_stage_.size());
  auto& heap = heaps_[entry.overlapped && replays_ ? kOverlapped
                      : limited                    ? heap_of_stage_[entry.stage]
                                                   : kUnlimited];
  heap.push_back(entry);
  if (heap.size() > 1) std::push_heap(heap.begin(), heap.end());
}

void ReadyJobs::AdmitWaiting() {
  while (!waiting_.empty() && tickets_->Reach(waiting_.front().ticket)) {
    std::pop_heap(waiting_.begin(), waiting_.end());
    Push(waiting_.back().entry);
    waiting_.pop_back();
  }
}

bool ReadyJobs::Admits(int heap) const {
  return stage_of_heap_[heap] < 0 || live(stage_of_heap_[heap]) < *limits_[stage_of_heap_[heap]];
}

int ReadyJobs::Choose() const {
  int best = -1;
  for (size_t h = 0; h < heaps_.size(); ++h) {
    if (heaps_[h].empty() || !HasItsTurn(heaps_[h].front()) || !Admits(static_cast<int>(h))) continue;
    if (best < 0 || heaps_[h].front().priority < heaps_[best].front().priority) best = static_cast<int>(h);
  }
  return best;
}

std::optional<int64_t> ReadyJobs::NextOverlapped() const {
  const auto& heap = heaps_[kOverlapped];
  if (heap.empty() || !HasItsTurn(heap.front())) return std::nullopt;
  return heap.front().job;
}

std::optional<int64_t> ReadyJobs::TakeOverlapped() {
  if (!NextOverlapped().has_value()) return std::nullopt;
  return TakeFrom(kOverlapped);
}

int64_t ReadyJobs::TakeFrom(int choice) {
  auto& heap = heaps_[choice];
  if (heap.size() > 1) std::pop_heap(heap.begin(), heap.end());
  const Entry entry = heap.back();
  heap.pop_back();
  --size_;
  choice_ = size_ == 0 ? -1 : kUnknown;
  if (replays_ && entry.priority >= 0) ++place_;
  if (entry.admits) {
    if (entry.stage >= static_cast<int>(live_.size())) live_.resize(entry.stage + 1, 0);
    ++live_[entry.stage];
  }
  return entry.job;
}

void ReadyJobs::Release(int stage) {
  --live_[stage];
  choice_ = size_ == 0 ? -1 : kUnknown;
  if (!tickets_.has_value()) return;
  tickets_->Return(stage);
  AdmitWaiting();
}

void ReadyJobs::Measure(int stage, int64_t bytes) {
  tickets_->Measure(stage, bytes);
  choice_ = kUnknown;
  AdmitWaiting();
}

const ReadyJobs::Entry* ReadyJobs::FindHeldBack(bool* for_ticket) const {
  if (size_ == 0 || Choice() >= 0) return nullptr;
  const Entry* first = nullptr;
  for (const Waiting& w : waiting_) {
    if (HasItsTurn(w.entry) && (first == nullptr || w.entry.priority < first->priority)) first = &w.entry;
  }
  *for_ticket = first != nullptr;
  for (size_t h = 0; h < heaps_.size(); ++h) {
    if (heaps_[h].empty() || !HasItsTurn(heaps_[h].front()) || Admits(static_cast<int>(h))) continue;
    if (first != nullptr && heaps_[h].front().priority >= first->priority) continue;
    first = &heaps_[h].front();
    *for_ticket = false;
  }
  return first;
}

std::optional<int64_t> ReadyJobs::HeldBack() const {
  bool for_ticket = false;
  const Entry* held = FindHeldBack(&for_ticket);
  return held == nullptr ? std::nullopt : std::optional<int64_t>(held->job);
}

std::optional<IdleCause> ReadyJobs::HeldBackBy() const {
  bool for_ticket = false;
  if (FindHeldBack(&for_ticket) == nullptr) return std::nullopt;
  return for_ticket ? IdleCause::kMemory : IdleCause::kLimit;
}

}  // namespace weft
