// Serves the run API's calls at the coordinator: Submit, Get, List, Watch, Cancel,
// Move, Drain, ListWorkers, Logs, Waits.
//
// Each waits on the loop's completion queue and answers from the core's state; proto/weft/v1/runs.proto lists
// the possible errors of each.
#ifndef WEFT_COORDINATOR_SHELL_RUNS_CALLS_H_
#define WEFT_COORDINATOR_SHELL_RUNS_CALLS_H_

#include <memory>

#include "coordinator/shell/unary_call.h"
#include "weft/v1/runs.grpc.pb.h"

namespace weft {

using RunsContext = CallContext<v1::Runs::AsyncService>;

// Begins to wait for calls of every method.
void AcceptRunsCalls(const std::shared_ptr<const RunsContext>& context);

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_RUNS_CALLS_H_
