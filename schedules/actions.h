// The rows of actions of torch.distributed.pipelining as schedules: one row a rank, the compute jobs of a
// step in order, e.g. `0F0,0F1,0B0,0B1`.
//
// An action is a stage, a letter and a micro-batch: F forward, B backward, I and W its halves for the input
// and for the weights. Those are that format's letters, used nowhere else. A file of it is a whole schedule:
// the rows place the jobs and fix their order. (DrawActions of drawing.h writes the same form.) Empty cells
// and spaces are skipped. Where any action is a half, the schedule splits its backwards, and a B stands for I
// and W, one right after the other.
//
// Pure. Failure: InvalidArgument naming row and cell for what is no compute action (communication and FSDP
// actions, overlapped pairs), and for rows that do not hold every job of their stages and micro-batches.
#ifndef WEFT_SCHEDULES_ACTIONS_H_
#define WEFT_SCHEDULES_ACTIONS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedules/schedule.h"

namespace weft {

// The schedule that replays the rows. Stages and micro-batches are as many as the actions name; each stage's
// weights are where it is computed. CheckSchedule is still to be passed.
absl::StatusOr<Schedule> ScheduleFromActions(absl::string_view text);

}  // namespace weft

#endif  // WEFT_SCHEDULES_ACTIONS_H_
