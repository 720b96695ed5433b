#include "coordinator/shell/runs_calls.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "base/monotonic_clock.h"
#include "base/plain_text.h"
#include "base/release.h"
#include "coordinator/core/present_work.h"
#include "coordinator/shell/server_loop.h"
#include "coordinator/shell/stream_call.h"
#include "proto/wire/channel.h"
#include "proto/wire/check.h"
#include "proto/wire/limits.h"
#include "proto/wire/runs_codec.h"

namespace weft {
namespace {

constexpr size_t kMaxReason = 1000;  // bytes

template <typename Request, typename Response>
using RunsCall = UnaryCall<v1::Runs::AsyncService, Request, Response>;

absl::Status EncodeRun(ServerLoop* loop, uint64_t id, v1::Run* out) {
  absl::StatusOr<RunInfo> run = loop->core().GetRun(id);
  if (!run.ok()) return run.status();
  loop->AddOutputEnd(&*run);
  wire::Encode(*run, loop->unix_minus_monotonic(), out);
  return absl::OkStatus();
}

void Submit(ServerLoop* loop, RunsCall<v1::SubmitRequest, v1::SubmitResponse>* call) {
  absl::StatusOr<SubmitRequest> request = wire::Decode(call->request);
  if (!request.ok()) return call->Finish(request.status());
  request->terms.owner = call->caller();
  loop->Submit(*std::move(request), [call](absl::StatusOr<uint64_t> run) {
    if (run.ok()) call->response.set_run(*run);
    call->Finish(run.status());
  });
}

void Get(ServerLoop* loop, RunsCall<v1::GetRequest, v1::Run>* call) {
  const absl::Status found = EncodeRun(loop, call->request.run(), &call->response);
  loop->WhenDurable([call, found] { call->Finish(found); });
}

void List(ServerLoop* loop, RunsCall<v1::ListRequest, v1::ListResponse>* call) {
  for (const RunInfo& run : loop->core().ListRuns()) {
    wire::Encode(run, loop->unix_minus_monotonic(), call->response.add_runs());
  }
  loop->WhenDurable([call] { call->Finish(absl::OkStatus()); });
}

void ListWorkers(ServerLoop* loop, RunsCall<v1::ListWorkersRequest, v1::ListWorkersResponse>* call) {
  for (const WorkerInfo& w : ListWorkersWithJobs(loop->core(), MonotonicNow())) {
    wire::Encode(w, call->response.add_workers());
  }
  call->response.set_release(std::string(Release()));
  call->response.set_unix_ns(absl::GetCurrentTimeNanos());
  call->Finish(absl::OkStatus());
}

void Waits(ServerLoop* loop, RunsCall<v1::WaitsRequest, v1::WaitsResponse>* call) {
  const absl::StatusOr<RunWaits> waits = WaitsOf(loop->core(), MonotonicNow(), call->request.run());
  if (waits.ok()) wire::Encode(*waits, &call->response);
  loop->WhenDurable([call, status = waits.status()] { call->Finish(status); });
}

void Logs(ServerLoop* loop, RunsCall<v1::LogsRequest, v1::LogsResponse>* call) {
  loop->WhenDurable([loop, call] {
    const v1::LogsRequest& request = call->request;
    const absl::StatusOr<RunInfo> run = loop->core().GetRun(request.run());
    if (!run.ok()) return call->Finish(run.status());
    const Rank rank =
        request.has_rank() ? static_cast<Rank>(std::min<uint32_t>(request.rank(), kMaxRanks)) : -1;
    const uint64_t after = request.log() == loop->log_id() ? request.after() : 0;
    RunLogPart part =
        request.events() ? loop->EventsOf(request.run()) : loop->LogOf(request.run(), after, rank);
    part.ended = IsFinal(run->state);
    wire::Encode(part, &call->response);
    call->response.set_log(loop->log_id());
    call->Finish(absl::OkStatus());
  });
}

void Cancel(ServerLoop* loop, RunsCall<v1::CancelRequest, v1::Run>* call) {
  std::string reason = PlainText(call->request.reason(), kMaxReason);
  const bool save = call->request.save();
  loop->Cancel(call->request.run(), std::move(reason), save, [loop, call](absl::StatusOr<uint64_t> run) {
    call->Finish(run.ok() ? EncodeRun(loop, *run, &call->response) : run.status());
  });
}

absl::Status EncodeWorker(ServerLoop* loop, const std::string& name, v1::Worker* out) {
  const absl::StatusOr<WorkerInfo> worker = loop->core().GetWorker(MonotonicNow(), name);
  if (!worker.ok()) return worker.status();
  wire::Encode(*worker, out);
  return absl::OkStatus();
}

void Move(ServerLoop* loop, RunsCall<v1::MoveRequest, v1::MoveResponse>* call) {
  absl::StatusOr<MoveRequest> request = wire::Decode(call->request);
  if (!request.ok()) return call->Finish(request.status());
  MoveRanks order{0, request->run, request->ranks, request->worker, PlainText(request->reason, kMaxReason)};
  loop->Move(std::move(order), [loop, call](const absl::StatusOr<uint64_t>& run) {
    absl::Status status = run.status();
    if (run.ok()) status = EncodeRun(loop, *run, call->response.mutable_run());
    if (status.ok()) status = EncodeWorker(loop, call->request.worker(), call->response.mutable_worker());
    call->Finish(status);
  });
}

void Drain(ServerLoop* loop, RunsCall<v1::DrainRequest, v1::Worker>* call) {
  // The worker may be gone when the answer is.
  const std::string& worker = call->request.worker();
  if (absl::Status found = EncodeWorker(loop, worker, &call->response); !found.ok())
    return call->Finish(found);
  DrainWorker order{0, worker, PlainText(call->request.reason(), kMaxReason)};
  loop->Drain(std::move(order), [call](const absl::StatusOr<uint64_t>& run) { call->Finish(run.status()); });
}

// ---- Watch

class WatchCall final : public StreamCall<v1::Runs::AsyncService, v1::WatchRequest, v1::RunEvent>,
                        public ServerLoop::Watcher {
 public:
  explicit WatchCall(std::shared_ptr<const RunsContext> context) : context_(std::move(context)) {}

  // Hears an event. A watcher that does not keep up loses the oldest steps, never a change of state.
  void Hear(const RunEvent& event) override {
    if (last_seen_) return;
    if (waiting_.size() >= kMaxWaiting && waiting_.front().has_step()) waiting_.pop_front();
    v1::RunEvent& out = waiting_.emplace_back();
    if (const auto* run = std::get_if<RunInfo>(&event)) {
      wire::Encode(*run, context_->loop->unix_minus_monotonic(), out.mutable_run());
      last_seen_ = IsFinal(run->state);
    } else {
      wire::Encode(std::get<StepDone>(event), out.mutable_step());
    }
    WriteNext();
  }

 private:
  static constexpr size_t kMaxWaiting = 4096;

  void Begun() override {
    const absl::StatusOr<RunInfo> run = context_->loop->core().GetRun(request().run());
    if (!run.ok()) {
      last_seen_ = true;
      End(run.status());
      return;
    }
    // Events that follow are heard behind this one.
    context_->loop->WhenDurable([this, run = *run, here = here()] {
      if (here.expired() || gone()) return;
      context_->loop->AddWatcher(request().run(), this);
      subscribed_ = true;
      Hear(run);
    });
  }
  void Written(bool ok) override {
    if (!ok) last_seen_ = true, waiting_.clear();
    WriteNext();
  }
  void Gone() override { Unsubscribe(); }

  void Unsubscribe() {
    if (std::exchange(subscribed_, false)) context_->loop->RemoveWatcher(request().run(), this);
  }
  void End(const absl::Status& status) {
    context_->hear("Watch", status, std::nullopt);
    Finish(status);
  }
  void WriteNext() {
    if (writing() || finished()) return;
    if (!waiting_.empty()) {
      Write(waiting_.front());
      waiting_.pop_front();  // it was serialized
    } else if (last_seen_) {
      Unsubscribe();
      End(absl::OkStatus());
    }
  }

  const std::shared_ptr<const RunsContext> context_;
  std::deque<v1::RunEvent> waiting_;
  bool subscribed_ = false;
  bool last_seen_ = false;  // true once nothing follows the waiting events
};

}  // namespace

void AcceptRunsCalls(const std::shared_ptr<const RunsContext>& context) {
  RunsCall<v1::SubmitRequest, v1::SubmitResponse>::Accept(context, "Submit",
                                                          &v1::Runs::AsyncService::RequestSubmit, Submit);
  RunsCall<v1::GetRequest, v1::Run>::Accept(context, "Get", &v1::Runs::AsyncService::RequestGet, Get);
  RunsCall<v1::ListRequest, v1::ListResponse>::Accept(context, "List", &v1::Runs::AsyncService::RequestList,
                                                      List);
  RunsCall<v1::CancelRequest, v1::Run>::Accept(context, "Cancel", &v1::Runs::AsyncService::RequestCancel,
                                               Cancel);
  RunsCall<v1::MoveRequest, v1::MoveResponse>::Accept(context, "Move", &v1::Runs::AsyncService::RequestMove,
                                                      Move);
  RunsCall<v1::DrainRequest, v1::Worker>::Accept(context, "Drain", &v1::Runs::AsyncService::RequestDrain,
                                                 Drain);
  RunsCall<v1::ListWorkersRequest, v1::ListWorkersResponse>::Accept(
      context, "ListWorkers", &v1::Runs::AsyncService::RequestListWorkers, ListWorkers);
  RunsCall<v1::LogsRequest, v1::LogsResponse>::Accept(context, "Logs", &v1::Runs::AsyncService::RequestLogs,
                                                      Logs);
  RunsCall<v1::WaitsRequest, v1::WaitsResponse>::Accept(context, "Waits",
                                                        &v1::Runs::AsyncService::RequestWaits, Waits);
  WatchCall::Accept(context, &v1::Runs::AsyncService::RequestWatch,
                    [context] { return std::make_unique<WatchCall>(context); });
}

}  // namespace weft
