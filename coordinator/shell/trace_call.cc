#include "coordinator/shell/trace_call.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "coordinator/shell/server_loop.h"
#include "proto/wire/channel.h"
#include "proto/wire/limits.h"

namespace weft {
namespace {

class TraceCall final : public Call {
 public:
  static void Accept(const std::shared_ptr<const RunsContext>& context) {
    auto call = std::unique_ptr<TraceCall>(new TraceCall(context));
    TraceCall* c = call.get();
    context->own(std::move(call));
    context->service->RequestTrace(&c->grpc_, &c->request_, &c->writer_, context->queue, context->queue,
                                   &c->operations_[kAccepted]);
  }

  bool OnDone(int kind, bool ok) override {
    switch (kind) {
      case kAccepted:
        if (!ok) return false;
        Accept(context_);
        context_->loop->ReadTrace(request_.run(), [this](absl::StatusOr<RunTrace> trace) {
          if (trace.ok()) return Begin(*std::move(trace));
          Finish(trace.status());
        });
        return true;
      case kWritten:
        // The client is gone if not.
        ok ? WriteNext() : Finish(absl::CancelledError("the client is gone"));
        return true;
      default:
        return false;
    }
  }

 private:
  enum Kind { kAccepted, kWritten, kFinished, kKinds };

  explicit TraceCall(std::shared_ptr<const RunsContext> context) : context_(std::move(context)) {
    for (int kind = 0; kind < kKinds; ++kind) operations_[kind] = {this, kind};
  }

  void Begin(RunTrace trace) {
    trace_ = std::move(trace.trace);
    part_.set_run(std::move(trace.run));
    part_.set_summary(std::move(trace.summary));
    Write();
  }

  void WriteNext() {
    if (written_ == trace_.size()) return Finish(absl::OkStatus());
    const size_t size = std::min(kPacketBytes, trace_.size() - written_);
    part_.set_trace(trace_.substr(written_, size));
    written_ += size;
    Write();
  }

  void Write() {
    writer_.Write(part_, &operations_[kWritten]);
    part_.Clear();  // it was serialized
  }

  void Finish(const absl::Status& status) {
    context_->hear("Trace", status, std::nullopt);
    writer_.Finish(ToGrpc(status), &operations_[kFinished]);
  }

  const std::shared_ptr<const RunsContext> context_;
  grpc::ServerContext grpc_;
  v1::TraceRequest request_;
  grpc::ServerAsyncWriter<v1::TracePart> writer_{&grpc_};
  Operation operations_[kKinds];
  v1::TracePart part_;
  std::string trace_;
  size_t written_ = 0;  // bytes of it
};

}  // namespace

void AcceptTraceCalls(const std::shared_ptr<const RunsContext>& context) { TraceCall::Accept(context); }

}  // namespace weft
