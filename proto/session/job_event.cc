#include "proto/session/job_event.h"

namespace weft {

void AddJob(const Job& job, EventText& text) {
  text.AddWord("kind", JobKindName(job.kind)).Add("step", job.step).Add("stage", job.stage);
  HasMicrobatch(job.kind) ? text.Add("microbatch", job.microbatch) : text.Add("member", job.member);
}

}  // namespace weft
