// Serves the run API's call Trace at the coordinator: the trace of a run, in parts.
//
// Waits on the loop's completion queue; proto/weft/v1/runs.proto lists the possible errors.
#ifndef WEFT_COORDINATOR_SHELL_TRACE_CALL_H_
#define WEFT_COORDINATOR_SHELL_TRACE_CALL_H_

#include <memory>

#include "coordinator/shell/runs_calls.h"

namespace weft {

// Begins to wait for calls.
void AcceptTraceCalls(const std::shared_ptr<const RunsContext>& context);

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_TRACE_CALL_H_
