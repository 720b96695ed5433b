// Moves the times in a worker's messages from one clock to another: those of jobs, idle times and transfers.
// Pure.
#ifndef WEFT_PROTO_SESSION_MESSAGE_TIMES_H_
#define WEFT_PROTO_SESSION_MESSAGE_TIMES_H_

#include <cstdint>

#include "proto/session/messages.h"

namespace weft {

// Adds so much to each time. Durations, times of the wall clock, and times that are not known stay.
void MoveTimes(int64_t ns, FromWorker* message);

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_MESSAGE_TIMES_H_
