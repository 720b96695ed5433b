// Describes a pipeline with split backwards, and orders of its jobs: the problem that zero_bubble_order.h
// answers by a rule and split_order_search.h by a search.
//
// Stage s of a chain is on rank s. For each micro-batch a rank runs a forward (F), a backward_input (I),
// which hands the gradient on, and a backward_weight (W), which nobody waits for, so that it can fill time in
// which the rank would idle. Jobs of one kind run in the order of the micro-batches. So an order is a word
// over F, I and W for each rank, with as many of each as there are micro-batches.
//
// Steps follow each other without a drain: a rank begins the next step when it has updated its weights. Times
// are whole ticks. Pure.
#ifndef WEFT_PLANNER_SPLIT_ORDER_H_
#define WEFT_PLANNER_SPLIT_ORDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft {

struct SplitStage {
  int64_t forward = 1, backward_input = 1, backward_weight = 1, update = 0;  // ticks
  // Bytes that a micro-batch has on the rank from its forward on. All but `weight_bytes` go with its
  // backward_input, those with its backward_weight.
  int64_t activation_bytes = 1, weight_bytes = 1;
  int64_t room = 0;  // most bytes of the rank; 0: no limit
};

struct SplitPipeline {
  std::vector<SplitStage> stages;
  std::vector<int64_t> transfer;  // ticks between stage s and the next, in either direction
  int microbatches = 1;

  // Returns the ticks of a rank's jobs in a step: no period is shorter.
  int64_t WorkOf(size_t stage) const;
  int64_t MostWork() const;
};

using SplitOrder = std::vector<std::string>;  // by rank

// Returns true if the word has every job once, each behind those that it needs on its rank, and the rank has
// room for it.
bool IsSound(const SplitPipeline& pipeline, size_t stage, const std::string& word);

struct SplitTimes {
  // Longest time of a rank from the first start to the last end of one step, all ranks being ready at once.
  int64_t span = 0;
  // Longest time of a rank from the end of that step to the end of the next. No steady state is slower, and
  // it is at most the span.
  int64_t period = 0;
  int64_t total = 0;  // the sum of these times over the ranks, which tells orders of one period apart
};

// Computes the times of orders again and again, without allocating.
class SplitClock {
 public:
  // The pipeline must outlive it.
  explicit SplitClock(const SplitPipeline& pipeline);

  // Returns nothing for orders that deadlock. Requires that each word is sound.
  std::optional<SplitTimes> TimesOf(const SplitOrder& order);

 private:
  struct RankState {
    size_t next = 0;  // place in its word
    int forwards = 0, inputs = 0;
    int64_t clock = 0, begin = 0;
  };

  bool RunStep(const SplitOrder& order);
  bool Advance(size_t rank, const std::string& word);

  const SplitPipeline& pipeline_;
  const size_t batches_;
  std::vector<RankState> ranks_;
  std::vector<int64_t> forward_end_, input_end_;  // by rank and micro-batch
  std::vector<int64_t> before_;                   // ends of the step before
};

}  // namespace weft

#endif  // WEFT_PLANNER_SPLIT_ORDER_H_
