// Defines the words for idle times of ranks, their causes, and tensors on their way. Workers and the
// simulator share them, so that what was predicted and what was measured can stand side by side.
#ifndef WEFT_SCHEDULES_TIMELINE_H_
#define WEFT_SCHEDULES_TIMELINE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "schedules/job.h"

namespace weft {

enum class IdleCause : uint8_t {
  kDependency,  // the bubble: what the next job needs has not been computed yet
  kTransfer,    // it has been computed and is on its way
  kLimit,       // a forward is ready; the schedule's own limit of activations holds it back
  kMemory,      // a job is ready, but for room in the byte budget: a forward's activations do not fit now, or
                // what the rank has given to others is not back
  kDispatch,    // the runtime itself: waiting for grants, starting and reporting jobs
  kReduce,      // waiting for gradients or their sum
  kRecovery,    // the run is being restored; part of the contract, though workers do not count it yet
  kNoWork,      // no run, or none of its jobs are left for this rank
};
inline constexpr int kIdleCauses = 8;
// Returns the name: "dependency", "transfer", "limit", "memory", "dispatch", "reduce", "recovery", "no_work":
// as on the wire, in files and in metrics.
absl::string_view IdleCauseName(IdleCause cause);

// A rank was idle for one cause.
struct IdleInterval {
  Rank rank = 0;
  IdleCause cause = IdleCause::kDependency;
  double start = 0, end = 0;
};

// A tensor went from rank to rank.
struct TransferInterval {
  Rank from = 0, to = 0;
  TensorKind tensor = TensorKind::kActivation;
  Job consumer;               // the job that needs it
  double start = 0, end = 0;  // it was there to be sent, and wanted; it arrived
  double bytes = 0;           // 0 where it is not known
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_TIMELINE_H_
