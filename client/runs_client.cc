#include "client/runs_client.h"

#include <chrono>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/address.h"
#include "proto/wire/channel.h"
#include "proto/wire/mutex.h"
#include "weft/v1/runs.grpc.pb.h"

namespace weft {
namespace {

class GrpcRunsClient final : public RunsClient {
 public:
  GrpcRunsClient(const Address& address, int64_t call_ns)
      : address_(address.text()), call_ns_(call_ns), stub_(v1::Runs::NewStub(MakeChannel(address))) {}

  absl::StatusOr<uint64_t> Submit(const SubmitRequest& request) override {
    v1::SubmitRequest in;
    v1::SubmitResponse out;
    wire::Encode(request, &in);
    const absl::Status s = Call([&](auto* context) { return stub_->Submit(context, in, &out); });
    if (!s.ok()) return s;
    return out.run();
  }

  absl::StatusOr<RunInfo> Get(uint64_t run) override {
    v1::GetRequest in;
    v1::Run out;
    in.set_run(run);
    const absl::Status s = Call([&](auto* context) { return stub_->Get(context, in, &out); });
    if (!s.ok()) return s;
    return wire::Decode(out);
  }

  absl::StatusOr<std::vector<RunInfo>> List() override {
    v1::ListResponse out;
    const absl::Status s = Call([&](auto* context) { return stub_->List(context, v1::ListRequest(), &out); });
    if (!s.ok()) return s;
    std::vector<RunInfo> runs;
    for (const v1::Run& r : out.runs()) {
      absl::StatusOr<RunInfo> run = wire::Decode(r);
      if (!run.ok()) return run.status();
      runs.push_back(*std::move(run));
    }
    return runs;
  }

  absl::StatusOr<RunInfo> Cancel(uint64_t run, const std::string& reason) override {
    v1::CancelRequest in;
    v1::Run out;
    in.set_run(run);
    in.set_reason(reason);
    const absl::Status s = Call([&](auto* context) { return stub_->Cancel(context, in, &out); });
    if (!s.ok()) return s;
    return wire::Decode(out);
  }

  absl::Status Watch(uint64_t run, const std::function<bool(const RunEvent&)>& hear) override {
    grpc::ClientContext context;
    if (!Begin(&context)) return absl::CancelledError("the client was stopped");
    v1::WatchRequest in;
    in.set_run(run);
    const auto reader = stub_->Watch(&context, in);
    v1::RunEvent out;
    absl::Status fault;
    while (reader->Read(&out)) {
      const absl::StatusOr<RunEvent> event = wire::Decode(out);
      if (event.ok() && hear(*event)) continue;
      fault = event.ok() ? absl::CancelledError("the watcher had enough") : event.status();
      context.TryCancel();
      break;
    }
    const grpc::Status end = reader->Finish();
    const bool stopped = !End(&context);
    if (!fault.ok()) return fault;
    return stopped ? absl::CancelledError("the client was stopped") : Describe(end);
  }

  void Stop() override {
    MutexLock lock(mu_);
    stopped_ = true;
    for (grpc::ClientContext* c : watching_) c->TryCancel();
  }

 private:
  template <typename Method>
  absl::Status Call(Method method) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(call_ns_));
    return Describe(method(&context));
  }

  absl::Status Describe(const grpc::Status& status) const {
    absl::Status s = FromGrpc(status);
    if (s.code() == absl::StatusCode::kUnavailable) {
      return absl::UnavailableError(absl::StrCat("coordinator at ", address_, " unreachable: ", s.message()));
    }
    if (s.code() == absl::StatusCode::kDeadlineExceeded) {
      return absl::DeadlineExceededError(
          absl::StrCat("coordinator at ", address_, " did not answer within ", call_ns_ / 1'000'000, " ms"));
    }
    return s;
  }

  bool Begin(grpc::ClientContext* context) {
    MutexLock lock(mu_);
    if (!stopped_) watching_.insert(context);
    return !stopped_;
  }
  bool End(grpc::ClientContext* context) {
    MutexLock lock(mu_);
    watching_.erase(context);
    return !stopped_;
  }

  const std::string address_;
  const int64_t call_ns_;
  const std::unique_ptr<v1::Runs::Stub> stub_;
  Mutex mu_;
  std::set<grpc::ClientContext*> watching_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RunsClient>> RunsClient::Create(const std::string& address, int64_t call_ns) {
  const absl::StatusOr<Address> a = ParseAddress(address);
  if (!a.ok()) return a.status();
  return std::make_unique<GrpcRunsClient>(*a, call_ns);
}

}  // namespace weft
