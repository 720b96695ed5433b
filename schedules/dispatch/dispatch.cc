#include "schedules/dispatch/dispatch.h"

#include <algorithm>
#include <utility>

namespace weft {

ReadyJobs::ReadyJobs(std::vector<std::optional<int>> limits, std::optional<int64_t> first_place,
                     std::optional<Tickets> tickets)
    : heaps_(first_place.has_value() ? 2 : 1),
      first_limited_(static_cast<int>(heaps_.size())),
      heap_of_stage_(limits.size(), kUnlimited),
      tickets_(std::move(tickets)),
      admits_in_turn_(tickets_.has_value()),
      replays_(first_place.has_value()),
      place_(first_place.value_or(0)) {
  for (size_t s = 0; s < limits.size(); ++s) {
    if (!limits[s].has_value()) continue;
    heap_of_stage_[s] = static_cast<int>(heaps_.size());
    heaps_.emplace_back().limit = *limits[s];
  }
}

void ReadyJobs::Claim(int64_t job, int stage) {
  if (!IsLimited(stage)) return;
  if (claimed_.empty()) claimed_.resize(heap_of_stage_.size());
  admits_in_turn_ = true;
  claimed_[stage].push_back(job);
}

// Keeps a claimed forward until those that were claimed before it are here.
void ReadyJobs::AddInTurn(const Waiting& arrived, int stage) {
  if (!IsLimited(stage) || claimed_.empty() || claimed_[stage].empty()) return Enter(arrived);
  early_.emplace(arrived.entry.job, arrived);
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
  if (!tickets_.has_value() || tickets_->Reach(arrived.ticket)) return Push(arrived.entry, arrived.heap);
  waiting_.push_back(arrived);
  std::push_heap(waiting_.begin(), waiting_.end());
}

void ReadyJobs::AdmitWaiting() {
  while (!waiting_.empty() && tickets_->Reach(waiting_.front().ticket)) {
    std::pop_heap(waiting_.begin(), waiting_.end());
    Push(waiting_.back().entry, waiting_.back().heap);
    waiting_.pop_back();
  }
}

std::optional<int64_t> ReadyJobs::NextOverlapped() const {
  if (!replays_) return std::nullopt;
  const MinHeap<Entry>& entries = heaps_[kOverlapped].entries;
  if (entries.empty() || !HasItsTurn(entries.top())) return std::nullopt;
  return entries.top().job;
}

std::optional<int64_t> ReadyJobs::TakeOverlapped() {
  if (!NextOverlapped().has_value()) return std::nullopt;
  return TakeFrom(kOverlapped);
}

void ReadyJobs::ReturnTicket(int stage) {
  tickets_->Return(stage);
  AdmitWaiting();
}

void ReadyJobs::ReleaseGradient(int stage) {
  tickets_->ReturnGradient(stage);
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
  for (const Heap& heap : heaps_) {
    if (heap.entries.empty() || !HasItsTurn(heap.entries.top()) || Admits(heap)) continue;
    if (first != nullptr && heap.entries.top().priority >= first->priority) continue;
    first = &heap.entries.top();
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
