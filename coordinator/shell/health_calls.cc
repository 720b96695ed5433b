#include "coordinator/shell/health_calls.h"

#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
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
class HealthWatchCall final : public Call {
 public:
  static void Accept(HealthCalls* health, const std::shared_ptr<const HealthContext>& context) {
    auto call = std::unique_ptr<HealthWatchCall>(new HealthWatchCall(health, context));
    HealthWatchCall* c = call.get();
    context->own(std::move(call));
    c->grpc_.AsyncNotifyWhenDone(&c->operations_[kGone]);
    context->service->RequestWatch(&c->grpc_, &c->request_, &c->writer_, context->queue, context->queue,
                                   c->Begin(kAccepted));
  }

  bool OnDone(int kind, bool ok) override {
    --in_flight_;
    switch (kind) {
      case kAccepted:
        if (!ok) return false;  // kGone does not come for a call that never was
        ++in_flight_;           // kGone
        Accept(health_, context_);
        health_->watchers_.insert(this);
        Tell();
        break;
      case kWritten:
        writing_ = false;
        Tell();
        break;
      default:
        gone_ = true;
        health_->watchers_.erase(this);
        break;
    }
    return in_flight_ > 0;
  }

  // Writes the present state if the client does not have it.
  void Tell() {
    const HealthCalls::Status now = health_->StatusOf(request_.service());
    if (writing_ || gone_ || told_ == now) return;
    told_ = now;
    writing_ = true;
    HealthCheckResponse response;
    response.set_status(now);
    writer_.Write(response, Begin(kWritten));
  }
  bool settled() const { return !writing_; }

 private:
  enum Kind { kAccepted, kWritten, kGone, kKinds };

  HealthWatchCall(HealthCalls* health, std::shared_ptr<const HealthContext> context)
      : health_(health), context_(std::move(context)) {
    for (int kind = 0; kind < kKinds; ++kind) operations_[kind] = {this, kind};
  }

  void* Begin(Kind kind) {
    ++in_flight_;
    return &operations_[kind];
  }

  HealthCalls* const health_;
  const std::shared_ptr<const HealthContext> context_;
  grpc::ServerContext grpc_;
  HealthCheckRequest request_;
  grpc::ServerAsyncWriter<HealthCheckResponse> writer_{&grpc_};
  Operation operations_[kKinds];
  int in_flight_ = 0;
  bool writing_ = false, gone_ = false;
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
  HealthWatchCall::Accept(this, context);
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
