// Counts the memory that a rank takes for tensors from ranks whose memory it cannot read: each arrives as a
// copy, in the reader's own memory (class `received`).
//
// The ranks that share memory are known when the run has its processes. A run whose processes do not says so
// (RunSpec::separate_memory), and then every tensor from another rank counts. In any run a small tensor may
// be a copy: it travels within a message (inline_bytes.h).
//
// The counts are upper bounds, whatever jobs last. A copy of an activation, or of the gradient of an output,
// arrives when the forward of its micro-batch has its room in the budget (schedules/dispatch/admission.h), at
// the earliest, and goes with the micro-batch's backward, at the latest. Weights and states are fetched for
// two jobs of a rank at a time. All else (gradients, their sums, norms, versions for holders) waits for a
// reduce or an update, of a step under way or the one behind it. Pure.
#ifndef WEFT_RUN_RECEIVED_COPIES_H_
#define WEFT_RUN_RECEIVED_COPIES_H_

#include <cstdint>
#include <vector>

#include "run/run_memory.h"
#include "run/run_spec.h"
#include "schedules/graph/graph.h"

namespace weft {

// Returns true if a tensor of these bytes from another rank counts as a copy.
bool IsCopied(const RunSpec& run, int64_t bytes);
// Returns the bytes of memory for a copy of the tensor that travels along the edge; 0 if none does.
int64_t CopyBytes(const Graph& graph, const Edge& edge, const RunSpec& run,
                  const std::vector<StageMemory>& stages);

struct ReceivedCopies {
  std::vector<int64_t> of_rank;  // whatever forwards the budget holds back
  // The bytes of a micro-batch by stage, from the forward's room in the budget to the end of its backward.
  std::vector<int64_t> of_forward;
};
ReceivedCopies CountReceived(const Graph& graph, const RunSpec& run, const std::vector<StageMemory>& stages);

}  // namespace weft

#endif  // WEFT_RUN_RECEIVED_COPIES_H_
