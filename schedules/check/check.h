// Refuses a schedule that cannot run, before anything is started: the errors name the job, the rank and the
// reason.
//
// It requires inputs of stages, ranks of compute and weights in range, one rank for the two halves of a split
// backward, unique priorities, limits of at least one, fixed orders that name each compute job of their rank
// once, no cycle in the job graph together with the fixed orders (the error names the jobs on it), that what
// one micro-batch leaves fits the budgets of bytes, and that the limits cannot deadlock, for any durations
// (deadlock.h), nor the budgets (admission.h). Pure. O(jobs of a period of steps).
#ifndef WEFT_SCHEDULES_CHECK_CHECK_H_
#define WEFT_SCHEDULES_CHECK_CHECK_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schedules/graph/progress.h"
#include "schedules/run_terms.h"

namespace weft {

// Returns InvalidArgument for stages' inputs that are not as run_terms.h says, naming the stage.
absl::Status CheckInputs(const RunSchedule& schedule);

// Returns InvalidArgument with what is wrong and where.
absl::Status CheckSchedule(const RunSchedule& schedule);

// Does the same, and returns the tables that it made for that, of the schedule's job graph. They serve every
// run under this schedule. Returns null if the graph depends on the run's steps.
absl::StatusOr<std::shared_ptr<const StepTables>> CheckedTables(const RunSchedule& schedule);

}  // namespace weft

#endif  // WEFT_SCHEDULES_CHECK_CHECK_H_
