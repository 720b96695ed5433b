// Decides which ready job of one rank starts next. The same code decides in the worker and in the simulator.
//
// Ready jobs wait in heaps by priority: one for jobs that are always admissible, one for the second halves of
// overlapped pairs, and one for the forwards of each stage whose number of live activations on this rank is
// limited. Take returns the admissible job with the smallest priority. That is the greedy rule. Under strict
// replay the priorities of compute jobs are their places in the rank's fixed order, counted on over all
// steps, and only the one whose place has come may go; jobs with negative priorities (reduce and update)
// stand outside the order and go first in both modes. An order may pair a forward with what follows it: then
// TakeOverlapped gives the follower while the forward is in flight. A rank that computes one job at a time
// calls Take alone: then the two run one after the other.
//
// Forwards of a limited stage may be claimed; then they are admitted in the order of claims, whatever the
// order in which they become ready.
//
// If the rank has a budget of bytes, a forward is ready only with its ticket (admission.h), in both modes.
//
// Invariants: a job is added once and taken at most once; the activations of a limited stage never exceed its
// limit, nor those of all stages the budget, if there is one. Not thread-safe; owned by the core of one rank.
#ifndef WEFT_SCHEDULES_DISPATCH_DISPATCH_H_
#define WEFT_SCHEDULES_DISPATCH_DISPATCH_H_

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "schedules/dispatch/admission.h"
#include "schedules/dispatch/min_heap.h"
#include "schedules/timeline.h"

namespace weft {

class ReadyJobs {
 public:
  // `limits[s]`: most activations of stage s alive on this rank; absent means no limit. May be shorter than
  // the number of stages.
  // `first_place`: strict replay from this place of the order on; absent means the greedy rule.
  // `tickets`: the budget of bytes; absent means none.
  explicit ReadyJobs(std::vector<std::optional<int>> limits = {},
                     std::optional<int64_t> first_place = std::nullopt,
                     std::optional<Tickets> tickets = std::nullopt);

  // Announces a forward that will be added: if its stage is limited, those that are claimed after it are
  // admitted after it.
  void Claim(int64_t job, int stage);

  // `job` is the caller's number for it. `admits`: the job is a forward, which brings an activation of
  // `stage` to life; with a budget of bytes, `ticket` is its number in the order of admission. `overlapped`:
  // under strict replay, it may run beside the forward before it.
  void Add(int64_t priority, int64_t job, int stage, bool admits, int64_t ticket = -1,
           bool overlapped = false) {
    const Entry entry{priority, job};
    const int heap = overlapped && replays_ ? kOverlapped : admits ? HeapOfStage(stage) : kUnlimited;
    if (admits && admits_in_turn_) return AddInTurn({ticket, entry, heap}, stage);
    ++size_;
    Push(entry, heap);
  }

  // Returns the job that Take would take, or nothing.
  std::optional<int64_t> Next() const {
    const int choice = Choice();
    if (choice < 0) return std::nullopt;
    return heaps_[choice].entries.top().job;
  }
  // Takes the job to start, or nothing. An admitted forward counts as alive from here.
  std::optional<int64_t> Take() {
    const int choice = Choice();
    if (choice < 0) return std::nullopt;
    return TakeFrom(choice);
  }

  // Return, while one job, a forward that Take gave, is in flight, the next of the order if it is here and
  // may run beside that forward.
  std::optional<int64_t> NextOverlapped() const;
  std::optional<int64_t> TakeOverlapped();

  // Notes that the activation of a micro-batch on `stage` is gone. If the ticket has room for its gradient,
  // that is out until ReleaseGradient.
  void Release(int stage) {
    if (IsLimited(stage)) {
      --heaps_[HeapOfStage(stage)].live;
      choice_ = size_ == 0 ? -1 : kUnknown;
    }
    if (tickets_.has_value()) ReturnTicket(stage);
  }
  // Notes that all ranks that sum the gradient of a micro-batch have taken it. Requires that tickets have
  // room for gradients of the stage.
  void ReleaseGradient(int stage);

  // Takes the measured activation bytes of a forward of the stage. Requires a budget of bytes.
  void Measure(int stage, int64_t bytes);
  const std::optional<Tickets>& tickets() const { return tickets_; }
  // Returns true if the forward with this ticket may start as far as the budget of bytes is concerned,
  // whether it has been added or not.
  bool HasTicket(int64_t ticket) { return !tickets_.has_value() || tickets_->Reach(ticket); }

  bool empty() const { return size_ == 0; }
  // Returns the job that would start if admission did not hold it back, where there are ready jobs and none
  // may start.
  std::optional<int64_t> HeldBack() const;
  bool held_back() const { return HeldBack().has_value(); }
  // Returns the cause that holds it back: kLimit, or kMemory for the budget of bytes.
  std::optional<IdleCause> HeldBackBy() const;

 private:
  struct Entry {
    int64_t priority;
    int64_t job;
    bool IsBefore(const Entry& o) const { return priority < o.priority; }
  };
  struct Waiting {
    int64_t ticket;
    Entry entry;
    int heap;
    bool operator<(const Waiting& o) const { return ticket > o.ticket; }  // min-heap
  };
  struct Heap {
    MinHeap<Entry> entries;
    int32_t limit = std::numeric_limits<int32_t>::max();  // of the stage whose forwards are here
    int32_t live = 0;                                     // activations of that stage, if it is limited
  };
  bool IsLimited(int stage) const { return HeapOfStage(stage) != kUnlimited; }
  int HeapOfStage(int stage) const {
    return stage < static_cast<int>(heap_of_stage_.size()) ? heap_of_stage_[stage] : kUnlimited;
  }
  void AddInTurn(const Waiting& arrived, int stage);
  void Enter(const Waiting& arrived);
  void Push(const Entry& entry, int heap) {
    heaps_[heap].entries.Add(entry);
    choice_ = kUnknown;
  }
  void ReturnTicket(int stage);
  void AdmitWaiting();
  // Returns the index of the heap whose top starts next, -1 for none; kept until something changes.
  int Choice() const {
    if (choice_ == kUnknown) choice_ = Choose();
    return choice_;
  }
  // Returns that index: of the admissible entry with the smallest priority.
  int Choose() const {
    const Heap* best = nullptr;
    for (const Heap& heap : heaps_) {
      if (heap.entries.empty() || !Admits(heap)) continue;
      const Entry& top = heap.entries.top();
      if (best != nullptr && top.priority >= best->entries.top().priority) continue;
      if (HasItsTurn(top)) best = &heap;
    }
    return best == nullptr ? -1 : static_cast<int>(best - heaps_.data());
  }
  static bool Admits(const Heap& heap) { return heap.live < heap.limit; }
  // Returns the entry of HeldBack, and whether it waits for its ticket.
  const Entry* FindHeldBack(bool* for_ticket) const;
  int64_t TakeFrom(int choice) {
    Heap& heap = heaps_[choice];
    const Entry entry = heap.entries.Take();
    choice_ = --size_ == 0 ? -1 : kUnknown;
    if (replays_ && entry.priority >= 0) ++place_;
    if (choice >= first_limited_) ++heap.live;
    return entry.job;
  }
  // Returns true if the order, if there is one, has come to the entry.
  bool HasItsTurn(const Entry& entry) const {
    return !replays_ || entry.priority < 0 || entry.priority == place_;
  }

  static constexpr int kUnlimited = 0, kOverlapped = 1;  // the first heaps; the second under replay only
  static constexpr int kUnknown = -2;

  std::vector<Heap> heaps_;         // those above, then one for each limited stage
  int first_limited_;               // index in heaps_
  std::vector<int> heap_of_stage_;  // kUnlimited for stages without a limit
  std::optional<Tickets> tickets_;
  // Claimed forwards that have not come to their turn, by limited stage. Empty until one is claimed, since
  // an empty queue takes half a kilobyte, and there are as many as stages.
  std::vector<std::deque<int64_t>> claimed_;
  absl::flat_hash_map<int64_t, Waiting> early_;  // those of them that are here
  std::vector<Waiting> waiting_;                 // forwards without their ticket
  int64_t size_ = 0;
  mutable int choice_ = -1;
  bool admits_in_turn_;  // forwards have claims, or need tickets
  bool replays_ = false;
  int64_t place_ = 0;  // of the next compute job, under strict replay
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_DISPATCH_DISPATCH_H_
