// Holds what a reader needs to see which jobs of a run ran when, and why ranks were idle: a value.
#ifndef WEFT_PROTO_SESSION_RUN_TRACE_H_
#define WEFT_PROTO_SESSION_RUN_TRACE_H_

#include <string>

namespace weft {

struct RunTrace {
  std::string run;           // JSON of the run file, with the schedule that the jobs follow
  std::string trace;         // the jobs of the last steps that have ended, as trace.json has them
  std::string summary = {};  // summary.json of a run that has finished; "" for others
};

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_RUN_TRACE_H_
