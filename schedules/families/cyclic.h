// Applies the rules of cyclic data parallelism (arXiv 2403.08837) over any of several families: which
// weights a micro-batch reads, and the order in which micro-batches visit the stages.
//
// With N stages, micro-batches and ranks, `cdp_v1` reads the weights of the step before everywhere; `cdp_v2`
// reads the newest where the order leaves time for their update: on stage s by micro-batch b if s + 1 >= N -
// b. The order is that each stage is visited by one micro-batch at a time: micro-batch b does the forward of
// stage s at tick 2b + s of a cycle of 2N ticks and the backward at 2b + 2N-1-s. docs/schedules/cyclic.md has
// the picture. Pure.
#ifndef WEFT_SCHEDULES_FAMILIES_CYCLIC_H_
#define WEFT_SCHEDULES_FAMILIES_CYCLIC_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "schedules/job.h"
#include "schedules/schedule.h"

namespace weft {

// Returns true if the rule is a cyclic one.
bool IsCyclicRule(absl::string_view rule);

// Returns how many steps older than the newest the weights are that the rule lets a micro-batch read on a
// stage.
int CyclicStaleness(absl::string_view rule, int n, int stage, int microbatch);

// Returns the jobs of earlier ticks that the cyclic order puts before a compute job, beyond those of
// backpropagation; `backward` is the kind that ends a micro-batch's visit. Some may be of step -1.
std::vector<Job> CyclicPredecessors(const Job& job, int n, JobKind backward);

// Returns the tick of the cyclic order, over all steps, at which a compute job is on its stage.
int64_t CyclicTick(const Job& job, int n);

// Gives a schedule of as many stages as micro-batches the order, by which no collective is needed: gradients
// and weights of stages with several holders are relayed. Where its weights migrate, each stage's state
// follows the order from micro-batch to micro-batch.
void GiveCyclicOrder(Schedule* schedule);

// Gives the schedule a cyclic rule, and the order if it has none yet. InvalidArgument, with the reason, if
// its sizes are not all the same or its weights are cut by width.
absl::Status ApplyCyclicRule(absl::string_view rule, Schedule* schedule);

}  // namespace weft

#endif  // WEFT_SCHEDULES_FAMILIES_CYCLIC_H_
