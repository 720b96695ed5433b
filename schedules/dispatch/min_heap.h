// Keeps entries so that the smallest is at the top: a binary heap. Entries compare by `a.IsBefore(b)`. The
// order of entries of which neither is before the other depends only on what was added and taken, not on the
// standard library. An entry moves as a value, so that it can stay in registers. Not thread-safe; no
// allocation in steady state.
#ifndef WEFT_SCHEDULES_DISPATCH_MIN_HEAP_H_
#define WEFT_SCHEDULES_DISPATCH_MIN_HEAP_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/base/attributes.h"

namespace weft {

template <typename Entry>
class MinHeap {
 public:
  bool empty() const { return size_ == 0; }
  const Entry& top() const { return room_[0]; }

  void Add(const Entry entry) {
    if (size_ == capacity_) Grow();
    Rise(size_++, entry);
  }
  // Takes the top out. Requires that there is one.
  Entry Take() {
    const Entry top = room_[0], last = room_[--size_];
    // The place that is free sinks to the bottom, from where the last entry has little to rise.
    size_t free = 0;
    for (size_t child = 1; child < size_; child = 2 * free + 1) {
      if (child + 1 < size_ && !room_[child].IsBefore(room_[child + 1])) ++child;
      room_[free] = room_[child];
      free = child;
    }
    Rise(free, last);
    return top;
  }

 private:
  // Puts the entry at the free place, or above it.
  void Rise(size_t free, const Entry entry) {
    for (; free > 0 && entry.IsBefore(room_[(free - 1) / 2]); free = (free - 1) / 2)
      room_[free] = room_[(free - 1) / 2];
    room_[free] = entry;
  }
  // Is kept out of the callers' code, which is then shorter.
  ABSL_ATTRIBUTE_NOINLINE void Grow() {
    capacity_ = std::max<size_t>(4, 2 * capacity_);
    auto room = std::make_unique<Entry[]>(capacity_);
    std::copy(room_.get(), room_.get() + size_, room.get());
    room_ = std::move(room);
  }

  std::unique_ptr<Entry[]> room_;  // the first `size_` are entries
  size_t size_ = 0, capacity_ = 0;
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_DISPATCH_MIN_HEAP_H_
