// Answers whether ranks of a run can move now, and what an attempt can stop behind so that the run goes on
// elsewhere without losing work: copies in memory, or else a checkpoint (docs/design/recovery.md).
//
// Pure functions of the parts that Run (run.h) owns.
#ifndef WEFT_COORDINATOR_CORE_RUN_RELOCATION_H_
#define WEFT_COORDINATOR_CORE_RUN_RELOCATION_H_

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/run_attempt.h"
#include "coordinator/core/run_beginnings.h"
#include "coordinator/core/run_copies.h"
#include "coordinator/core/run_submission.h"

namespace weft {

// Returns OK if the ranks can move now, else why not (runs.proto). `attempt`: the present one; null for none.
// `blaming`: a failure waits for its cause.
absl::Status CheckMove(const RunInfo& info, const RunAttempt* attempt, bool blaming,
                       const std::vector<Rank>& ranks);

// Returns the next step behind which copies will be complete and of use to the next attempt; none where there
// is no such step.
std::optional<int32_t> StepToStopBehindCopies(const RunAttempt& attempt, const RunCopies& copies,
                                              const RunBeginnings& beginnings,
                                              const RunSubmission& submission);

// Returns true if an attempt on these processes can begin where the present one did: with its checkpoint, or
// with copies of which they keep every part.
bool CanBeginThere(const RunBeginnings::Beginning& present, const RunCopies& copies,
                   const std::set<SessionId>& processes);

// Returns the failure to move ranks of a run that would lose the work of its steps.
absl::Status WouldLoseWork(const RunInfo& info);

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_RELOCATION_H_
