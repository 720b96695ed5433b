// Says when the gradients that leave their jobs are taken: each when those of all earlier micro-batches of
// its step and stage have been made.
//
// A sum's bits depend on its order, so the jobs that sum take gradients in the order of micro-batches
// (worker/core/gradient_intake.h), and take what has come without waiting for anything else. A nominal run
// has no transfers, so there the gradient is taken when the last of them is made; simulations with transfers
// leave these out here. Pure. Not thread-safe.
#ifndef WEFT_SCHEDULES_DISPATCH_GRADIENT_TURNS_H_
#define WEFT_SCHEDULES_DISPATCH_GRADIENT_TURNS_H_

#include <map>
#include <utility>
#include <vector>

namespace weft {

class GradientTurns {
 public:
  explicit GradientTurns(int microbatches) : microbatches_(microbatches) {}

  // Notes that the gradient is made, once each. Calls `taken` with each micro-batch whose gradient is taken
  // now, in order.
  template <typename Taken>
  void Made(int step, int stage, int microbatch, Taken taken) {
    const auto it = sums_.try_emplace({step, stage}).first;
    Sum& sum = it->second;
    sum.made.resize(microbatches_, false);
    sum.made[microbatch] = true;
    while (sum.next < microbatches_ && sum.made[sum.next]) taken(sum.next++);
    if (sum.next == microbatches_) sums_.erase(it);
  }

 private:
  struct Sum {
    int next = 0;            // the micro-batch whose gradient is taken next
    std::vector<bool> made;  // by micro-batch
  };
  const int microbatches_;
  std::map<std::pair<int, int>, Sum> sums_;  // those that are not complete, by step and stage
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_DISPATCH_GRADIENT_TURNS_H_
