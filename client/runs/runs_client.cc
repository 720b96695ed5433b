#include "client/runs/runs_client.h"

#include <chrono>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "base/mutex.h"
#include "base/net/address.h"
#include "proto/wire/channel.h"
#include "weft/v1/runs.grpc.pb.h"

namespace weft {
namespace {

constexpr int kSlowCalls = 12;  // multiple of the time of other calls, for those that plan or draw

class GrpcRunsClient final : public RunsClient {
 public:
  GrpcRunsClient(const std::vector<Address>& addresses, std::shared_ptr<grpc::Channel> channel, bool tls,
                 int64_t call_ns)
      : address_(TextOf(addresses)),
        tls_(tls),
        call_ns_(call_ns),
        channel_(std::move(channel)),
        stub_(v1::Runs::NewStub(channel_)) {}

  absl::StatusOr<uint64_t> Submit(const SubmitRequest& request) override {
    v1::SubmitRequest in;
    v1::SubmitResponse out;
    wire::Encode(request, &in);
    // The coordinator answers when it has planned the run, and a large one takes its time.
    const absl::Status s = Call([&](auto* context) { return stub_->Submit(context, in, &out); }, kSlowCalls);
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

  absl::StatusOr<FleetInfo> AskFleet() override {
    v1::ListWorkersResponse out;
    const absl::Status s =
        Call([&](auto* context) { return stub_->ListWorkers(context, v1::ListWorkersRequest(), &out); });
    if (!s.ok()) return s;
    return wire::Decode(out);
  }

  absl::StatusOr<RunInfo> Cancel(uint64_t run, const std::string& reason, bool save) override {
    v1::CancelRequest in;
    v1::Run out;
    in.set_run(run);
    in.set_reason(reason);
    in.set_save(save);
    const absl::Status s = Call([&](auto* context) { return stub_->Cancel(context, in, &out); });
    if (!s.ok()) return s;
    return wire::Decode(out);
  }

  absl::StatusOr<std::pair<RunInfo, WorkerInfo>> Move(const MoveRequest& request) override {
    v1::MoveRequest in;
    v1::MoveResponse out;
    wire::Encode(request, &in);
    const absl::Status s = Call([&](auto* context) { return stub_->Move(context, in, &out); });
    if (!s.ok()) return s;
    absl::StatusOr<RunInfo> run = wire::Decode(out.run());
    if (!run.ok()) return run.status();
    absl::StatusOr<WorkerInfo> worker = wire::Decode(out.worker());
    if (!worker.ok()) return worker.status();
    return std::pair(*std::move(run), *std::move(worker));
  }

  absl::StatusOr<WorkerInfo> Drain(const std::string& worker, const std::string& reason) override {
    v1::DrainRequest in;
    v1::Worker out;
    in.set_worker(worker);
    in.set_reason(reason);
    const absl::Status s = Call([&](auto* context) { return stub_->Drain(context, in, &out); });
    if (!s.ok()) return s;
    return wire::Decode(out);
  }

  absl::StatusOr<RunLogPart> Logs(uint64_t run, Rank rank, LogPlace* place) override {
    v1::LogsRequest in;
    v1::LogsResponse out;
    in.set_run(run);
    in.set_after(place->after);
    in.set_log(place->log);
    if (rank >= 0) in.set_rank(static_cast<uint32_t>(rank));
    const absl::Status s = Call([&](auto* context) { return stub_->Logs(context, in, &out); });
    if (!s.ok()) return s;
    absl::StatusOr<RunLogPart> part = wire::Decode(out);
    if (!part.ok()) return part.status();
    for (RunLogLine& line : part->lines) line.run = run;
    *place = {out.log(), part->last};
    return part;
  }

  absl::StatusOr<std::vector<RunLogLine>> Events(uint64_t run) override {
    v1::LogsRequest in;
    v1::LogsResponse out;
    in.set_run(run);
    in.set_events(true);
    const absl::Status s = Call([&](auto* context) { return stub_->Logs(context, in, &out); });
    if (!s.ok()) return s;
    absl::StatusOr<RunLogPart> part = wire::Decode(out);
    if (!part.ok()) return part.status();
    std::vector<RunLogLine> events;
    for (RunLogLine& line : part->lines) {
      if (line.process < 0) events.push_back(std::move(line));
    }
    return events;
  }

  absl::StatusOr<RunWaits> Waits(uint64_t run) override {
    v1::WaitsRequest in;
    v1::WaitsResponse out;
    in.set_run(run);
    const absl::Status s = Call([&](auto* context) { return stub_->Waits(context, in, &out); });
    if (!s.ok()) return s;
    return wire::Decode(out);
  }

  absl::StatusOr<RunTrace> Trace(uint64_t run) override {
    v1::TraceRequest in;
    in.set_run(run);
    RunTrace trace;
    const auto read = [&](grpc::ClientContext* context) {
      const auto reader = stub_->Trace(context, in);
      for (v1::TracePart part; reader->Read(&part);) {
        trace.run += part.run();
        trace.trace += part.trace();
        trace.summary += part.summary();
      }
      return reader->Finish();
    };
    if (const absl::Status s = Call(read, kSlowCalls); !s.ok()) return s;
    return trace;
  }

  absl::Status Watch(uint64_t run, const std::function<bool(const RunEvent&)>& hear,
                     int64_t until_ns) override {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAt(until_ns));
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
    if (stopped) return absl::CancelledError("the client was stopped");
    if (end.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
      return absl::DeadlineExceededError(absl::StrCat("run ", run, " has not ended in the time given"));
    return Describe(end);
  }

  void AwaitConnection(int64_t ns) override {
    channel_->WaitForConnected(std::chrono::system_clock::now() + std::chrono::nanoseconds(ns));
  }

  void Stop() override {
    MutexLock lock(mu_);
    stopped_ = true;
    for (grpc::ClientContext* c : watching_) c->TryCancel();
  }

 private:
  template <typename Method>
  absl::Status Call(Method method, int factor = 1) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(factor * call_ns_));
    return Describe(method(&context), factor * call_ns_);
  }

  absl::Status Describe(const grpc::Status& status, int64_t call_ns = 0) const {
    absl::Status s = FromGrpc(status);
    if (s.code() == absl::StatusCode::kUnavailable) {
      // A port with TLS closes connections without.
      const bool closed = !tls_ && absl::StrContains(s.message(), "Socket closed");
      return absl::UnavailableError(absl::StrCat("coordinator at ", address_, " unreachable: ", s.message(),
                                                 closed ? "; if it has TLS, give --tls DIR" : ""));
    }
    if (s.code() == absl::StatusCode::kDeadlineExceeded) {
      return absl::DeadlineExceededError(
          absl::StrCat("coordinator at ", address_, " did not answer within ", call_ns / 1'000'000, " ms"));
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
  const bool tls_;
  const int64_t call_ns_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Runs::Stub> stub_;
  Mutex mu_;
  std::set<grpc::ClientContext*> watching_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RunsClient>> RunsClient::Create(const std::string& address,
                                                               const SecurityFlags& security,
                                                               int64_t call_ns) {
  const absl::StatusOr<std::vector<Address>> addresses = ParseAddresses(address);
  if (!addresses.ok()) return addresses.status();
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = OpenChannel(*addresses, security, nullptr);
  if (!channel.ok()) return channel.status();
  return std::make_unique<GrpcRunsClient>(*addresses, *std::move(channel), !security.tls.empty(), call_ns);
}

namespace {

constexpr int64_t kPauseNs = 500'000'000;

// Waits before another attempt: gRPC connects while somebody waits for it.
void Pause(RunsClient& client) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(kPauseNs / 5));
  client.AwaitConnection(kPauseNs);
}

// Returns true if the call had reached a server. gRPC's text is the only sign of it.
bool WasConnected(const absl::Status& status) {
  return status.code() == absl::StatusCode::kDeadlineExceeded ||
         !absl::StrContains(status.message(), "failed to connect");
}

}  // namespace

absl::StatusOr<std::vector<WorkerInfo>> RunsClient::ListWorkers() {
  absl::StatusOr<FleetInfo> fleet = AskFleet();
  if (!fleet.ok()) return fleet.status();
  return std::move(fleet->workers);
}

absl::Status FollowRun(RunsClient& client, uint64_t run, bool known, int64_t patience_ns,
                       const std::function<bool(const RunEvent&)>& hear, const std::function<void()>& lost,
                       int64_t until_ns) {
  int64_t broken = 0;  // time since when nothing was heard
  std::optional<RunInfo> seen;
  while (true) {
    bool heard = false, other = false;
    const auto note = [&](const RunEvent& event) {
      heard = known = true;
      if (const auto* now = std::get_if<RunInfo>(&event)) {
        other = seen.has_value() && !IsSameRun(*seen, *now);
        if (!other) seen = *now;
      }
      return !other && hear(event);
    };
    absl::Status status = client.Watch(run, note, until_ns);
    if (other || (absl::IsNotFound(status) && seen.has_value())) return RunIsGone(run);
    if (status.code() != absl::StatusCode::kUnavailable) return status;
    known |= WasConnected(status);
    if (!known) return status;
    const int64_t now = MonotonicNow();
    if (heard || broken == 0) broken = now;
    if (now - broken >= patience_ns) return status;
    lost();
    Pause(client);
  }
}

bool IsSameRun(const RunInfo& a, const RunInfo& b) {
  return a.run_id.empty() || b.run_id.empty() || a.run_id == b.run_id;
}

absl::Status RunIsGone(uint64_t run) {
  return absl::NotFoundError(
      absl::StrCat("run ", run, " is not known any more: the coordinator was restarted"));
}

std::string RequestName() {
  std::random_device random;
  return absl::StrCat("weft-", absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
}

absl::StatusOr<uint64_t> SubmitPatiently(RunsClient& client, const SubmitRequest& request,
                                         int64_t patience_ns) {
  const int64_t start = MonotonicNow();
  bool there = false;  // true if a server listens, however slow
  while (true) {
    absl::StatusOr<uint64_t> run = client.Submit(request);
    const absl::StatusCode code = run.status().code();
    const bool unanswered =
        code == absl::StatusCode::kDeadlineExceeded || code == absl::StatusCode::kUnavailable;
    there |= unanswered && WasConnected(run.status());
    if (!unanswered || !there || MonotonicNow() - start >= patience_ns) return run;
    Pause(client);
  }
}

}  // namespace weft
