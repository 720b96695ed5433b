// Adds a job to the text of an event, so that the dumps of coordinator and workers name it alike. Pure.
#ifndef WEFT_PROTO_SESSION_JOB_EVENT_H_
#define WEFT_PROTO_SESSION_JOB_EVENT_H_

#include "base/event_text.h"
#include "schedules/job.h"

namespace weft {

// Adds `kind=forward step=3 stage=1 microbatch=5`; `member=0` for a job that has no micro-batch.
void AddJob(const Job& job, EventText& text);

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_JOB_EVENT_H_
