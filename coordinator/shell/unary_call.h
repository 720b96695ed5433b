// Serves the calls of one method with one answer, on the loop's completion queue: waits for a call, hands it
// to a handler, and waits for the next one meanwhile.
//
// All methods run on the loop's thread. Ownership: `own` takes each call; the loop destroys it when it is
// over.
#ifndef WEFT_COORDINATOR_SHELL_UNARY_CALL_H_
#define WEFT_COORDINATOR_SHELL_UNARY_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/monotonic_clock.h"
#include "coordinator/shell/call.h"
#include "proto/wire/channel.h"

namespace weft {

class ServerLoop;

// Returns the name of who makes the call; "" for a caller without one.
using CallerName = std::function<std::string(const grpc::ServerContext& call)>;

// Parts that the calls of a service share.
template <typename Service>
struct CallContext {
  ServerLoop* loop;
  Service* service;
  grpc::ServerCompletionQueue* queue;
  std::function<void(std::unique_ptr<Call>)> own;
  CallerName caller;
  // Hears that a call of the method was answered. `came_ns`: when it came; none for a stream. Null where
  // nobody counts calls.
  std::function<void(const char* method, const absl::Status& status, std::optional<int64_t> came_ns)> hear;
};

template <typename Service, typename Request, typename Response>
class UnaryCall final : public Call {
 public:
  // Begins to wait for a call, as Service::RequestSubmit.
  using Method = void (Service::*)(grpc::ServerContext*, Request*, grpc::ServerAsyncResponseWriter<Response>*,
                                   grpc::CompletionQueue*, grpc::ServerCompletionQueue*, void*);
  // Answers by calling Finish, now or later, on the loop's thread.
  using Handler = std::function<void(ServerLoop*, UnaryCall*)>;

  // `name` is the method's, as "Submit".
  static void Accept(std::shared_ptr<const CallContext<Service>> context, const char* name, Method method,
                     Handler handler) {
    auto call = std::unique_ptr<UnaryCall>(new UnaryCall(context, name, method, std::move(handler)));
    UnaryCall* c = call.get();
    context->own(std::move(call));
    (context->service->*method)(&c->grpc_, &c->request, &c->writer_, context->queue, context->queue,
                                &c->operation_);
  }

  bool OnDone(int /*kind*/, bool ok) override {
    if (!ok || finished_) return false;
    Accept(context_, name_, method_, handler_);
    came_ns_ = MonotonicNow();
    handler_(context_->loop, this);
    return true;
  }

  std::string caller() const { return context_->caller ? context_->caller(grpc_) : ""; }

  void Finish(const absl::Status& status) {
    finished_ = true;
    if (context_->hear) context_->hear(name_, status, came_ns_);
    writer_.Finish(response, ToGrpc(status), &operation_);
  }

  Request request;
  Response response;

 private:
  UnaryCall(std::shared_ptr<const CallContext<Service>> context, const char* name, Method method,
            Handler handler)
      : context_(std::move(context)), name_(name), method_(method), handler_(std::move(handler)) {}

  const std::shared_ptr<const CallContext<Service>> context_;
  const char* const name_;
  const Method method_;
  const Handler handler_;
  grpc::ServerContext grpc_;
  grpc::ServerAsyncResponseWriter<Response> writer_{&grpc_};
  Operation operation_{this, 0};
  int64_t came_ns_ = 0;  // when the call came
  bool finished_ = false;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_UNARY_CALL_H_
