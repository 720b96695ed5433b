// Serves the run API's calls at the coordinator: Submit, Get, List, Watch, Cancel,
// Move, Drain, ListWorkers, Logs, Waits.
//
// Each waits on the loop's completion queue and answers from the core's state; proto/weft/v1/runs.proto lists
// the possible errors of each.
#ifndef WEFT_COORDINATOR_SHELL_RUNS_CALLS_H_
#define WEFT_COORDINATOR_SHELL_RUNS_CALLS_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "coordinator/shell/call.h"
#include "weft/v1/runs.grpc.pb.h"

namespace weft {

class ServerLoop;

// Returns the name of who makes the call; "" for a caller without one.
using CallerName = std::function<std::string(const grpc::ServerContext& call)>;

// Begins to wait for calls of every method. `own` takes each call; the loop destroys it when it is over.
void AcceptRunsCalls(ServerLoop* loop, v1::Runs::AsyncService* service, grpc::ServerCompletionQueue* queue,
                     std::function<void(std::unique_ptr<Call>)> own, CallerName caller);

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_RUNS_CALLS_H_
