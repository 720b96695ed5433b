// Serves the calls of one method whose answer is a stream, on the loop's completion queue: waits for a call,
// lets its subclass write messages one at a time, and waits for the next call meanwhile.
//
// All methods run on the loop's thread. Ownership: `own` takes each call; the loop destroys it when its
// client is gone and nothing of it is under way.
#ifndef WEFT_COORDINATOR_SHELL_STREAM_CALL_H_
#define WEFT_COORDINATOR_SHELL_STREAM_CALL_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "coordinator/shell/call.h"
#include "coordinator/shell/unary_call.h"
#include "proto/wire/channel.h"

namespace weft {

template <typename Service, typename Request, typename Response>
class StreamCall : public Call {
 public:
  using Context = std::shared_ptr<const CallContext<Service>>;
  // Begins to wait for a call, as Service::RequestWatch.
  using Method = void (Service::*)(grpc::ServerContext*, Request*, grpc::ServerAsyncWriter<Response>*,
                                   grpc::CompletionQueue*, grpc::ServerCompletionQueue*, void*);
  // Makes the object for the next call.
  using Make = std::function<std::unique_ptr<StreamCall>()>;

  static void Accept(const Context& context, Method method, Make make) {
    std::unique_ptr<StreamCall> call = make();
    StreamCall* c = call.get();
    c->accept_next_ = [context, method, make = std::move(make)] { Accept(context, method, make); };
    context->own(std::move(call));
    c->grpc_.AsyncNotifyWhenDone(&c->operations_[kGone]);
    (context->service->*method)(&c->grpc_, &c->request_, &c->writer_, context->queue, context->queue,
                                c->Begin(kAccepted));
  }

  bool OnDone(int kind, bool ok) final {
    --in_flight_;
    switch (kind) {
      case kAccepted:
        if (!ok) return false;  // kGone does not come for a call that never was
        ++in_flight_;           // kGone
        accept_next_();
        Begun();
        break;
      case kWritten:
        writing_ = false;
        Written(ok);
        break;
      case kGone:
        gone_ = true;
        Gone();
        break;
      default:
        break;
    }
    return in_flight_ > 0;
  }

 protected:
  StreamCall() {
    for (int kind = 0; kind < kKinds; ++kind) operations_[kind] = {this, kind};
  }

  // Called when the request has come.
  virtual void Begun() = 0;
  // Called when the message was written, or cannot be.
  virtual void Written(bool ok) = 0;
  // Called when the client is gone, or has the whole answer.
  virtual void Gone() = 0;

  // Begins to write a message; requires that no other one is being written. The message may go at once.
  void Write(const Response& message) {
    writing_ = true;
    writer_.Write(message, Begin(kWritten));
  }
  // Ends the answer. Nothing may be written behind it.
  void Finish(const absl::Status& status) {
    finished_ = true;
    writer_.Finish(ToGrpc(status), Begin(kFinished));
  }

  // Expires with this call, for what comes back to it later.
  std::weak_ptr<const void> here() const { return here_; }
  const Request& request() const { return request_; }
  bool writing() const { return writing_; }
  bool finished() const { return finished_; }
  bool gone() const { return gone_; }

 private:
  enum Kind { kAccepted, kWritten, kFinished, kGone, kKinds };

  void* Begin(Kind kind) {
    ++in_flight_;
    return &operations_[kind];
  }

  std::function<void()> accept_next_;
  grpc::ServerContext grpc_;
  Request request_;
  grpc::ServerAsyncWriter<Response> writer_{&grpc_};
  Operation operations_[kKinds];
  int in_flight_ = 0;
  bool writing_ = false, finished_ = false;
  bool gone_ = false;                                                 // true once the client is
  const std::shared_ptr<const void> here_ = std::make_shared<int>();  // as long as this call
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_STREAM_CALL_H_
