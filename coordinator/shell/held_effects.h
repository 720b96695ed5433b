// Holds, in order, what waits for records to be durable, and says whether messages may go ahead of it.
//
// Messages go ahead while little waits. Behind a store that stands still they wait too: runs then stop for
// want of jobs, and what waits does not grow without bound. A message that was kept back goes before those
// made later, so none goes ahead while one waits.
//
// Pure; one thread.
#ifndef WEFT_COORDINATOR_SHELL_HELD_EFFECTS_H_
#define WEFT_COORDINATOR_SHELL_HELD_EFFECTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

namespace weft {

class HeldEffects {
 public:
  // `most`: the size of all that is held from which on no message goes ahead.
  explicit HeldEffects(size_t most) : most_(most) {}

  bool empty() const { return held_.empty(); }
  bool MayGoAhead() const { return kept_back_ == 0 && size_ < most_; }

  struct Held {
    uint64_t records = 0;  // number of the last records that it waits for
    std::function<void()> carry_out;
    size_t size = 1;
    bool keeps_back = false;  // true if it has messages that would have gone ahead
  };
  void Hold(Held held) {
    size_ += held.size;
    kept_back_ += held.keeps_back ? 1 : 0;
    held_.push_back(std::move(held));
  }

  // Carries out what waited for these records or earlier ones. That may hold more.
  void Release(uint64_t durable) {
    while (!held_.empty() && held_.front().records <= durable) {
      const Held held = std::move(held_.front());
      held_.pop_front();
      held.carry_out();
      size_ -= held.size;
      kept_back_ -= held.keeps_back ? 1 : 0;
    }
  }

 private:
  const size_t most_;
  std::deque<Held> held_;
  size_t size_ = 0, kept_back_ = 0;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_HELD_EFFECTS_H_
