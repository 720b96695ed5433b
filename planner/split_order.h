// Orders the jobs of a pipeline whose backwards are split, so that a step takes the least time: the gradient
// of a stage's input goes on at once, and that of its weights fills the gaps.
//
// Stage s is on rank s. A micro-batch goes forward through all stages and backward through them in the other
// order; its second half (weight) may wait, and the activations with it. `alive` bounds how many
// micro-batches a stage may have between the start of their forward and the end of their second half.
//
// The search starts from published orders (the heuristic of zero bubble pipeline parallelism, arXiv
// 2401.10241) and from list scheduling with several rules, and takes the best. Then it moves jobs within the
// blocks of the critical path, and shakes the order where nothing helps. So the result is never worse than
// the heuristic. Deterministic; pure.
#ifndef WEFT_PLANNER_SPLIT_ORDER_H_
#define WEFT_PLANNER_SPLIT_ORDER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace weft {

struct SplitStage {
  int64_t forward = 0, input = 0, weight = 0;  // ticks of the three jobs; not 0
  int alive = 1;                               // most micro-batches whose activations are there
};

struct SplitPipeline {
  std::vector<SplitStage> stages;
  int microbatches = 1;
  int64_t transfer = 0;  // ticks from the end of a job to the start of the next stage's
};

enum class SplitKind : uint8_t { kForward, kInput, kWeight };
struct SplitJob {
  SplitKind kind;
  int microbatch;
};
using SplitOrder = std::vector<std::vector<SplitJob>>;  // of each stage

struct OrderedSplit {
  SplitOrder order;
  int64_t ticks = 0;        // from the first start to the last end
  int64_t lower_bound = 0;  // no order takes less
};

struct SplitSearchLimits {
  int shakes = 200;  // without an improvement
  std::function<bool()> stop = [] { return false; };
};

// Requires at least one stage and one micro-batch, and bounds of at least 1.
OrderedSplit FindSplitOrder(const SplitPipeline& pipeline, const SplitSearchLimits& limits = {});

// Returns the best order of zero bubble's heuristic, over all its options.
OrderedSplit ZeroBubbleOrder(const SplitPipeline& pipeline);

// Returns the ticks of a step under the order; nothing if it deadlocks, misses a job or exceeds a bound.
std::optional<int64_t> TicksOf(const SplitPipeline& pipeline, const SplitOrder& order);

}  // namespace weft

#endif  // WEFT_PLANNER_SPLIT_ORDER_H_
