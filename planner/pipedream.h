// PipeDream's dynamic program (Narayanan et al., SOSP 2019): cuts a chain into contiguous stages, of which
// each may be replicated, so that the slowest stage or cut takes least time.
//
//   A(j, p) = min over i < j and replicas m of max(A(i, p - m), cut(i) / m, (F + B of i+1..j) / m + sync(m))
//
// with sync(m) = 4 (m - 1) / m^2 times what the stage's weights occupy a link. A cut counts the transfers of
// a layer's output and of its gradient: both on one link if it is of both directions. It is the baseline that
// everybody knows: memory only bounds what a stage always has (`resident`), activations are found out later,
// and the stages run 1F1B. Without replicas, a stage is on a
// rank of its own, in order of the ranks, and takes the time that this rank takes; with them, all ranks count
// as equally fast. Pure. O(layers^2 * ranks^2).
#ifndef WEFT_PLANNER_PIPEDREAM_H_
#define WEFT_PLANNER_PIPEDREAM_H_

#include <optional>
#include <vector>

#include "planner/chain.h"

namespace weft {

struct ContiguousStage {
  int layers = 0;
  int replicas = 1;
  int rank = 0;  // its first one; others follow
};

struct ContiguousPlan {
  std::vector<ContiguousStage> stages;  // from the first layer to the last
  double period = 0;                    // ticks of a micro-batch: of the slowest stage or cut
  int batches_in_flight = 0;            // that keep all ranks busy: the ranks over the first stage's replicas
};

// Returns the best cut on at most the chain's ranks; nothing where no cut keeps the resident bytes within the
// memory. `replicated`: stages may have several ranks. Requires a sound chain (CheckChain).
std::optional<ContiguousPlan> FindContiguousPlan(const PlannedChain& chain, bool replicated);

// Returns the ranks of the layers, where no stage is replicated.
Placement PlacementOf(const ContiguousPlan& plan);

}  // namespace weft

#endif  // WEFT_PLANNER_PIPEDREAM_H_
