// Decides how a run goes on that a former coordinator led, from what is stored of it.
//
// Its steps, its checkpoint and its figures are those that the store has, which are all that anybody has
// heard of. The processes that it had are gone as far as this coordinator knows, so it waits for some, or
// for all of them to come back to their attempt (run_return.h). It ends instead if it was told to stop, if it
// cannot be planned any more, or if all that it was to make is complete.
//
// Pure.
#ifndef WEFT_COORDINATOR_CORE_RUN_RESTORE_H_
#define WEFT_COORDINATOR_CORE_RUN_RESTORE_H_

#include <optional>

#include "coordinator/core/events.h"
#include "coordinator/core/run_failures.h"
#include "coordinator/core/run_submission.h"

namespace weft {

struct RestoredState {
  bool has_begun = false;           // true if processes have had the run
  std::optional<RunEnding> ending;  // the way in which it ends; none if it goes on
  // True if an attempt was under way, and the run goes on in any case when all of its processes come back.
  bool may_return = false;
};

// Sets the info, as it was stored, to that of a run that waits. Requires that the run had not ended.
RestoredState TakeUp(const RestoreRun& restored, const RunSubmission& submission, RunInfo* info);

// Notes, of a run that ends with its results, if its last weights were to be validated and are not.
void NoteUnvalidatedEnd(const RunPlan& plan, RunInfo* info);

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_RESTORE_H_
