// The schedule of a run: the named family with its parameters, made for the run's stages and micro-batches,
// with what the run file says beside it.
//
// Every program that needs the schedule of a run file makes it here, so that all of them hold the same value.
// Pure.
#ifndef WEFT_PROTO_RUN_RUN_SCHEDULE_H_
#define WEFT_PROTO_RUN_RUN_SCHEDULE_H_

#include "absl/status/statusor.h"
#include "proto/run/run_spec.h"
#include "schedules/schedule.h"

namespace weft {

// The named family for these sizes, with its rule; with collectives for `reduction: fast`. Failure: as
// MakeSchedule and ApplyRule of schedules/families.h.
absl::StatusOr<Schedule> MakeSchedule(const ScheduleSpec& spec, int stages, int microbatches);

// Without collectives: whether they can serve depends on the devices. InvalidArgument or NotFound, as
// MakeSchedule, where the parameters do not fit the sizes, and
// InvalidArgument where the run does not fit its memory budget. Not checked further.
absl::StatusOr<Schedule> ScheduleOf(const RunSpec& run);

// The same, checked (CheckSchedule): it can run to its end, within its memory. What would be sound without
// the budget is blamed on it, with kPathPayload `memory`.
absl::StatusOr<Schedule> CheckedScheduleOf(const RunSpec& run);

ActivationPolicy ActivationsOf(const ScheduleSpec& schedule, int stage);

}  // namespace weft

#endif  // WEFT_PROTO_RUN_RUN_SCHEDULE_H_
