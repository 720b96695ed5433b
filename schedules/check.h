// Refuses a schedule that cannot run, before anything is started: the errors name the job, the rank and the
// reason.
//
// Checked: ranks of compute and weights in range, one rank for the two halves of a split backward, unique
// priorities, limits of at least one, fixed orders that name each compute job of their rank once, no cycle in
// the job graph together with the fixed orders (the error names the jobs on it), that what one micro-batch
// leaves fits the budgets of bytes, and that limits and budgets let two steps of nominal durations end. Pure.
// O(jobs of a step).
#ifndef WEFT_SCHEDULES_CHECK_H_
#define WEFT_SCHEDULES_CHECK_H_

#include "absl/status/status.h"
#include "schedules/schedule.h"

namespace weft {

// InvalidArgument with what is wrong and where.
absl::Status CheckSchedule(const Schedule& schedule);

}  // namespace weft

#endif  // WEFT_SCHEDULES_CHECK_H_
