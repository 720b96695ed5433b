// Serves gRPC's health service (grpc.health.v1.Health) at the coordinator, for load balancers and clients of
// gRPC that ask before they send.
//
// gRPC's own implementation starts threads beside the loop, and says SERVING while the loop hangs. Here the
// loop answers: no answer means that it does not turn. The server begins to listen when it has read its
// store, so it serves until StopServing. It answers for the whole server ("") and for each of its services
// the same.
//
// All methods run on the loop's thread.
#ifndef WEFT_COORDINATOR_SHELL_HEALTH_CALLS_H_
#define WEFT_COORDINATOR_SHELL_HEALTH_CALLS_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "coordinator/shell/call.h"
#include "health/health.grpc.pb.h"

namespace weft {

class HealthWatchCall;

class HealthCalls {
 public:
  using Service = grpc::health::v1::Health::AsyncService;
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  // Begins to wait for calls of both methods. `own` takes each call; the loop destroys it when it is over.
  void Accept(Service* service, grpc::ServerCompletionQueue* queue,
              std::function<void(std::unique_ptr<Call>)> own);

  // Says NOT_SERVING from now on, also to those that watch.
  void StopServing();
  // Returns true if those that watch have been told the present state.
  bool settled() const;

 private:
  friend class HealthWatchCall;

  // Returns the state of a service, or of the server for "".
  Status StatusOf(const std::string& service) const;

  bool serving_ = true;
  std::set<HealthWatchCall*> watchers_;  // that are not gone
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_HEALTH_CALLS_H_
