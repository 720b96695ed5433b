#include "coordinator/shell/trace_call.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "coordinator/shell/server_loop.h"
#include "coordinator/shell/stream_call.h"
#include "proto/wire/limits.h"

namespace weft {
namespace {

class TraceCall final : public StreamCall<v1::Runs::AsyncService, v1::TraceRequest, v1::TracePart> {
 public:
  explicit TraceCall(std::shared_ptr<const RunsContext> context) : context_(std::move(context)) {}

 private:
  void Begun() override {
    context_->loop->ReadTrace(request().run(), [this, here = here()](absl::StatusOr<RunTrace> trace) {
      if (here.expired()) return;
      if (!trace.ok()) return End(trace.status());
      trace_ = std::move(trace->trace);
      part_.set_run(std::move(trace->run));
      part_.set_summary(std::move(trace->summary));
      WritePart();
    });
  }
  void Written(bool ok) override {
    if (gone()) return;
    if (!ok) return End(absl::CancelledError("the client is gone"));
    if (written_ == trace_.size()) return End(absl::OkStatus());
    const size_t size = std::min(kPacketBytes, trace_.size() - written_);
    part_.set_trace(trace_.substr(written_, size));
    written_ += size;
    WritePart();
  }
  void Gone() override {
    if (!finished()) context_->hear("Trace", absl::CancelledError("the client is gone"), std::nullopt);
  }

  void WritePart() {
    Write(part_);
    part_.Clear();  // it was serialized
  }
  void End(const absl::Status& status) {
    context_->hear("Trace", status, std::nullopt);
    Finish(status);
  }

  const std::shared_ptr<const RunsContext> context_;
  v1::TracePart part_;
  std::string trace_;
  size_t written_ = 0;  // bytes of it
};

}  // namespace

void AcceptTraceCalls(const std::shared_ptr<const RunsContext>& context) {
  TraceCall::Accept(context, &v1::Runs::AsyncService::RequestTrace,
                    [context] { return std::make_unique<TraceCall>(context); });
}

}  // namespace weft
