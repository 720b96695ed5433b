#include "coordinator/shell/health_calls.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "coordinator/shell/stream_call.h"
#include "coordinator/shell/unary_call.h"
#include "weft/v1/runs.grpc.pb.h"
#include "weft/v1/session.grpc.pb.h"

namespace weft {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using HealthContext = CallContext<HealthCalls::Service>;

}  // namespace

// Tells a client the state of a service, and each change of it, until the client is gone.
class HealthWatchCall final
    : public StreamCall<HealthCalls::Service, HealthCheckRequest, HealthCheckResponse> {
 public:
  explicit HealthWatchCall(HealthCalls* health) : health_(health) {}

  // Writes the present state if the client does not have it.
  void Tell() {
    const HealthCalls::Status now = health_->StatusOf(request().service());
    if (writing() || gone() || told_ == now) return;
    told_ = now;
    HealthCheckResponse response;
    response.set_status(now);
    Write(response);
  }
  bool settled() const { return !writing(); }

 private:
  void Begun() override {
    health_->watchers_.insert(this);
    Tell();
  }
  void Written(bool /*ok*/) override { Tell(); }
  void Gone() override { health_->watchers_.erase(this); }

  HealthCalls* const health_;
  std::optional<HealthCalls::Status> told_;
};

void HealthCalls::Accept(Service* service, grpc::ServerCompletionQueue* queue,
                         std::function<void(std::unique_ptr<Call>)> own) {
  const auto context = std::make_shared<const HealthContext>(
      HealthContext{nullptr, service, queue, std::move(own), nullptr, nullptr});
  using CheckCall = UnaryCall<Service, HealthCheckRequest, HealthCheckResponse>;
  CheckCall::Accept(context, "Check", &Service::RequestCheck, [this](ServerLoop*, CheckCall* call) {
    call->response.set_status(StatusOf(call->request.service()));
    const bool known = call->response.status() != HealthCheckResponse::SERVICE_UNKNOWN;
    call->Finish(known ? absl::OkStatus() : absl::NotFoundError("this server has no such service"));
  });
  HealthWatchCall::Accept(context, &Service::RequestWatch,
                          [this] { return std::make_unique<HealthWatchCall>(this); });
}

void HealthCalls::StopServing() {
  serving_ = false;
  for (HealthWatchCall* watcher : watchers_) watcher->Tell();
}

bool HealthCalls::settled() const {
  return absl::c_all_of(watchers_, [](const HealthWatchCall* watcher) { return watcher->settled(); });
}

HealthCalls::Status HealthCalls::StatusOf(const std::string& service) const {
  const bool known = service.empty() || service == v1::Runs::service_full_name() ||
                     service == v1::Coordination::service_full_name();
  if (!known) return HealthCheckResponse::SERVICE_UNKNOWN;
  return serving_ ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

}  // namespace weft
