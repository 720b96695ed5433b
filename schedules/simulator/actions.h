// Reads and writes rows of actions of torch.distributed.pipelining as schedules: one row a rank, the compute
// jobs of a step in order, e.g. `0F0,0F1,0B0,0B1`.
//
// An action is a stage, a letter and a micro-batch: F forward, B backward, I and W its halves for the input
// and for the weights. Only this format uses these letters. A file of it is a whole schedule: the rows place
// the jobs and fix their order. (DrawActions of drawing.h writes the same form of a run.) Empty cells and
// spaces are skipped, and so are sends and receives (`0SEND_F1`, `1RECV_B0`) that do not wait for each other
// in a circle (transfer_order.h): the order of the compute actions alone decides, and what has to be sent
// follows from it. `(0F3;7B1)OVERLAP_F_B` is an overlapped pair. If any action is a half, the schedule splits
// its backwards, and a B is both halves in one piece.
//
// Pure. Failure: InvalidArgument naming row and cell for what is no compute action (as those of FSDP), for
// sends and receives in a circle, for an action that stands twice, and for rows that lack a job of their
// stages and micro-batches.
#ifndef WEFT_SCHEDULES_SIMULATOR_ACTIONS_H_
#define WEFT_SCHEDULES_SIMULATOR_ACTIONS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedules/schedule.h"

namespace weft {

// Returns the schedule that replays the rows. Stages and micro-batches are as many as the actions name. The
// weights of a micro-batch's jobs on a stage are where its forward is: a backward in another row fetches
// them, and starts from the stage's input. CheckSchedule is still to be passed.
absl::StatusOr<Schedule> ScheduleFromActions(absl::string_view text);

// Returns the rows of a schedule that has fixed orders, with their pairs; ScheduleFromActions reads the same
// orders.
std::string ActionsOfOrder(const Schedule& schedule);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_ACTIONS_H_
