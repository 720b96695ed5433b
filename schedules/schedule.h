// A schedule is a value: a few pure functions and flags that say everything a parallel training scheme is.
//
// Decides which rank computes a job, which ranks hold the weights, which ready job goes first, how stale
// weights may be, and what may be admitted. Coordinator, worker, simulator and planner run any value of this
// type; none of them knows a scheme's name (docs/schedules/README.md). The terms of a run are separate:
// run_terms.h.
//
// Invariants, verified by CheckSchedule (check.h), not by construction:
//   1. compute and weights return ranks in [0, ranks). A stage's holders are all that weights names for it in
//      any step.
//   2. priority is unique among the compute jobs of one rank and step order respects it: smaller first. A
//      job's priority grows by the same number in every period of steps.
//   3. the graph with the `precedes` edges, and with the fixed orders, has no cycle.
//   4. a fixed order names each compute job of its rank once, and period is 1.
// Functions are called often and from any thread; they must be pure. Copying is cheap enough to pass by
// value.
#ifndef WEFT_SCHEDULES_SCHEDULE_H_
#define WEFT_SCHEDULES_SCHEDULE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "schedules/job.h"

namespace weft {

// Marks how an entry of a fixed order goes with those before it; a set of bits.
enum OrderMark : uint8_t {
  kInTurn = 0,  // it starts when the entry before it has ended
  // It may also start while the forward that stands before it, and before other such entries, is in flight:
  // an overlapped pair.
  kOverlapsForward = 1,
  // A backward_weight that is one piece of work with the backward_input right before it, as in a backward
  // that is not split.
  kFusedBackward = 2,
};

// The choice of a protocol by which the ranks that hold a stage come to the same weights (sync/protocol.h),
// and the one that a schedule has which names none (sync/catalogue.h).
class Sync;
std::shared_ptr<const Sync> SlicedSums();

struct Schedule {
  std::string name;  // as the user wrote it; shown, never tested
  int stages = 0;
  int microbatches = 0;
  int ranks = 0;

  // Arguments are compute jobs of any step.
  std::function<Rank(const Job&)> compute;
  // The holders of the truth that the job reads and feeds: one rank, or the ranks of the shards.
  std::function<Rank(const Job&)> weights;
  std::function<int64_t(const Job&)> priority;
  // Protocols by which the holders of a stage come to the same weights. If a protocol names the holders
  // itself, `weights` is not called.
  std::shared_ptr<const Sync> sync = SlicedSums();

  // Optional; absent means none.
  std::function<int(int stage, int microbatch)> staleness;
  std::function<std::vector<Job>(const Job&)> precedes;  // jobs that must end before this one starts
  std::function<std::optional<int>(Rank rank, int stage)>
      limit;  // most activations of the stage alive on the rank
  // Strict replay: for each rank, its compute jobs of step 0 in the order in which it starts them, in every
  // step anew. Priorities then do not count. It is empty for greedy dispatch.
  std::vector<std::vector<Job>> order;
  // Bits of OrderMark of each entry of `order`; empty where none is set.
  std::vector<std::vector<uint8_t>> order_marks;

  int period = 1;  // ranks of step t equal those of step t + period
  bool split_backward = false;
  // A rank keeps fetched weights of a stage for the micro-batches of a step that it computes with them later:
  // from the first forward to the last, and from the first backward to the last. Else each job fetches anew.
  bool keeps_fetched = false;

  // Return the last kind of a micro-batch's backward on a stage, and that whose output is the gradient of the
  // stage's input.
  JobKind final_backward() const { return split_backward ? JobKind::kBackwardWeight : JobKind::kBackward; }
  JobKind input_backward() const { return split_backward ? JobKind::kBackwardInput : JobKind::kBackward; }
  int StalenessOf(int stage, int microbatch) const { return staleness ? staleness(stage, microbatch) : 0; }
  // Returns the most over the micro-batches of a stage.
  int MaxStaleness(int stage) const {
    int most = 0;
    for (int b = 0; b < microbatches; ++b) most = std::max(most, StalenessOf(stage, b));
    return most;
  }
  // Returns the most over all stages.
  int MaxStaleness() const {
    int most = 0;
    for (int stage = 0; stage < stages; ++stage) most = std::max(most, MaxStaleness(stage));
    return most;
  }
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SCHEDULE_H_
