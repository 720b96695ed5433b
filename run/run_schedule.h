// Makes the schedule of a run: as its scheme the named family with its parameters, for the run's stages and
// micro-batches, and as its terms (schedules/run_terms.h) the other settings of the run file.
//
// Every program that needs the schedule of a run file makes it here, so that all of them hold the same value.
// Pure.
#ifndef WEFT_RUN_RUN_SCHEDULE_H_
#define WEFT_RUN_RUN_SCHEDULE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "schedules/run_terms.h"
#include "schedules/sync/reduction_mode.h"

namespace weft {

// Makes the named family for these sizes, with its rule; of the terms, it sets the reduction alone. Failure:
// as MakeSchedule and ApplyRule of schedules/families/families.h.
absl::StatusOr<RunSchedule> MakeSchedule(const ScheduleSpec& spec, int stages, int microbatches);

// Makes the schedule without collectives, because the devices decide whether collectives can serve.
// InvalidArgument or NotFound, as MakeSchedule, where the parameters do not fit the sizes, and
// InvalidArgument where the run does not fit its memory budget. Does not check further.
absl::StatusOr<RunSchedule> ScheduleOf(const RunSpec& run);

// Does the same and checks the run's network, and the schedule (CheckSchedule): it can run to its end, within
// its memory. A schedule
// that would be sound without the budget fails because of it, with kPathPayload `memory`.
absl::StatusOr<RunSchedule> CheckedScheduleOf(const RunSpec& run);

// Checks that the run's network, if it has one, has the ranks of its schedule. InvalidArgument, with
// kPathPayload `network`, if it does not.
absl::Status CheckRunNetwork(const RunSpec& run, int ranks);

// A run as the parts of a process share it: the specification and the schedule that was made from it. A
// process parses the one and makes the other once, and hands both on. The schedule does not depend on the
// specification's `until` and `resume`, which may be set after it was made.
struct ScheduledRun {
  // Makes the schedule. Failure as ScheduleOf. A specification without a schedule's name gets none.
  static absl::StatusOr<ScheduledRun> Make(RunSpec spec);

  RunSpec spec;
  std::shared_ptr<const RunSchedule> schedule;  // null where the specification names none
};

// Returns the policy of a stage of the run; a stage of a tied parameter has that of the first one behind it.
ActivationPolicy ActivationsOf(const RunSpec& run, int stage);
ReductionMode ReductionOf(const ScheduleSpec& schedule);

}  // namespace weft

#endif  // WEFT_RUN_RUN_SCHEDULE_H_
