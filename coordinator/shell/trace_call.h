// Serves the run API's call Trace at the coordinator: the trace of a run, in parts.
//
// Waits on the loop's completion queue; proto/weft/v1/runs.proto lists the possible errors.
#ifndef WEFT_COORDINATOR_SHELL_TRACE_CALL_H_
#define WEFT_COORDINATOR_SHELL_TRACE_CALL_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "coordinator/shell/call.h"
#include "weft/v1/runs.grpc.pb.h"

namespace weft {

class ServerLoop;

// Begins to wait for calls. `own` takes each call; the loop destroys it when it is over.
void AcceptTraceCalls(ServerLoop* loop, v1::Runs::AsyncService* service, grpc::ServerCompletionQueue* queue,
                      std::function<void(std::unique_ptr<Call>)> own);

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_TRACE_CALL_H_
