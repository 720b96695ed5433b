// Holds the terms of a run: what its schedule needs to know and its scheme does not say.
//
// A Schedule is a scheme: who computes what, who holds the weights, which job goes first. The terms come from
// the run: which stages read which, clipping, what a forward leaves, the memory, how gradients are summed.
// Families make schemes; the code that knows the run adds the terms (run/run_schedule.h for a run file,
// client/ for flags). A job graph follows from both, so a Graph takes the pair.
//
// Invariants, verified by CheckSchedule (check/check.h), not by construction: `inputs` are as said below, and
// the memory of one micro-batch fits its ranks. A pair cannot be made of a scheme alone, so that nothing that
// goes on from a run loses its terms unnoticed. Copying is cheap enough to pass by value. Pure.
#ifndef WEFT_SCHEDULES_RUN_TERMS_H_
#define WEFT_SCHEDULES_RUN_TERMS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "schedules/schedule.h"
#include "schedules/sync/reduction_mode.h"

namespace weft {

// Number of jobs of a rank whose fetched weights, or arriving states, may be there at once, where weights are
// sharded or states migrate: the running job, and the next. Workers fetch for so many, and budgets count
// them.
inline constexpr int kFetchesAtOnce = 2;

enum class ActivationPolicy : uint8_t { kRetain, kRecompute, kOffload };

// A byte budget for what forwards leave until their backwards: a forward starts only if it has room
// (dispatch/admission.h).
struct ActivationMemory {
  std::vector<int64_t> budget;            // by rank
  std::vector<int64_t> activation_bytes;  // by stage: bytes that one forward keeps until its backward
  // Bytes by stage of the copies from other ranks that come for a micro-batch once its forward has its room,
  // and go with its backward. Empty for none.
  std::vector<int64_t> received_bytes = {};
  // Bytes by stage of a micro-batch's gradient of the stage's output, where the stage's own rank makes it and
  // has it until the backward. Empty for none.
  std::vector<int64_t> returned_bytes = {};
  // Bytes by stage of a micro-batch's gradient of the stage's weights, where it leaves the rank that makes
  // it, which has it from the end of the backward until all ranks that sum it have taken it. 0 where it
  // stays; empty if all do. Under a reduction by collectives none leaves, and no room is kept.
  std::vector<int64_t> gradient_bytes = {};

  int64_t ReceivedOf(int stage) const { return received_bytes.empty() ? 0 : received_bytes[stage]; }
  int64_t GradientOf(int stage) const { return gradient_bytes.empty() ? 0 : gradient_bytes[stage]; }
  // Returns the bytes that a micro-batch has of the stage from its forward to the end of its backward.
  int64_t BytesOf(int stage) const {
    return activation_bytes[stage] + ReceivedOf(stage) + (returned_bytes.empty() ? 0 : returned_bytes[stage]);
  }
  // Returns the bytes for which a forward of the stage needs room. The gradient stays when the rest goes.
  int64_t RoomOf(int stage) const { return std::max(BytesOf(stage), GradientOf(stage)); }
};

struct RunTerms {
  // Stages whose outputs each stage reads, ascending and all before it; every stage but the last is read by a
  // later one. It is empty for a chain. Stages without inputs read the data. Every order of a chain's jobs
  // respects these edges too, so families need not know them.
  std::vector<std::vector<int>> inputs;
  // The global norm of a step's gradients decides its updates, which clip by it or skip: each waits for the
  // gradients of all stages.
  bool takes_norm = false;
  std::vector<ActivationPolicy> activations;  // by stage; empty if all are retained
  std::optional<ActivationMemory> memory;     // absent: no budget
  // Way in which the sums of gradients are made. A run that may take kFast has kOrdered here until its
  // devices are known.
  ReductionMode reduction = ReductionMode::kOrdered;
};

// The schedule of a run: its scheme with the run's terms.
struct RunSchedule {
  RunSchedule() = default;
  RunSchedule(Schedule of_scheme, RunTerms of_run) : scheme(std::move(of_scheme)), terms(std::move(of_run)) {}

  Schedule scheme;
  RunTerms terms;
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_RUN_TERMS_H_
