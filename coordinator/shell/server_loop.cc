#include "coordinator/shell/server_loop.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/log/flight_ring.h"
#include "base/monotonic_clock.h"
#include "base/threads.h"
#include "coordinator/shell/coordinator_metrics.h"
#include "coordinator/shell/runs_calls.h"
#include "coordinator/shell/trace_call.h"
#include "coordinator/store/store_writer.h"
#include "proto/session/job_event.h"
#include "proto/wire/channel.h"
#include "run/run_id.h"

namespace weft {
namespace {

// The most operations taken before the core steps: a bound on how long a first answer waits for others to
// gather.
constexpr int kMaxTaken = 256;
constexpr int64_t kMaxEndingNs = 1'000'000'000;

// Adds how many jobs they are, and the last of them.
void AddJobs(size_t count, const Job& last, EventText& text) {
  text.Add("jobs", static_cast<int64_t>(count));
  AddJob(last, text);
}

// Returns true for a message that says nothing of what is stored: jobs, and what must come before them. Who
// got it tells the next coordinator, so it need not wait for the disk. Messages that must come before it,
// such as Assign, have been answered before the core makes it.
bool NeedsNoStore(const OutgoingMessage& m) {
  return std::holds_alternative<Grant>(m.message) || std::holds_alternative<TakeSnapshot>(m.message);
}

// Returns the number of jobs, lines and the like in the effects: about what they take in memory.
size_t SizeOf(const Effects& effects) {
  size_t size = 1 + effects.messages.size() + effects.runs.size() + effects.steps.size() + effects.log.size();
  for (const JobsEnded& jobs : effects.jobs) size += jobs.jobs.size();
  for (const Report& report : effects.reports) size += report.ranks.size();
  for (const Spans& spans : effects.spans) {
    for (const Spans::OfRank& of_rank : spans.ranks) size += of_rank.idle.size() + of_rank.transfers.size();
  }
  return size;
}

}  // namespace

ServerLoop::ServerLoop(CoordinatorServerOptions options, std::unique_ptr<grpc::ServerCompletionQueue> queue,
                       SessionService* sessions, v1::Runs::AsyncService* runs, HealthCalls::Service* health)
    : options_(std::move(options)),
      unix_minus_monotonic_(options_.unix_minus_monotonic_ns != 0 ? options_.unix_minus_monotonic_ns
                                                                  : UnixMinusMonotonic()),
      queue_(std::move(queue)),
      session_service_(sessions),
      runs_service_(runs),
      health_service_(health),
      heart_(MonotonicNow()),
      core_(options_.core),
      sessions_(
          &events_, options_.protocol, [this](SessionId session, int64_t pid) { WatchProcess(session, pid); },
          [this](const std::string& line) {
            if (options_.observer.refused) options_.observer.refused(line);
          }),
      log_id_(static_cast<uint64_t>(MonotonicNow())),
      held_(options_.most_held),
      replanner_([this](std::function<void()> work) { Post(std::move(work)); },
                 [this](ReplanRun replan) { Add(std::move(replan)); },
                 [this](uint64_t run, const std::function<void()>& told) {
                   const uint64_t reply = next_reply_++;
                   answers_[reply] = [told](const absl::StatusOr<uint64_t>&) { told(); };
                   Add(AskSpans{reply, run});
                 }),
      planner_(options_.planner),
      traces_(options_.trace) {
  if (!options_.core.fixed_workers) processes_ = std::make_unique<ProcessWatch>();
  if (options_.metrics != nullptr) metrics_ = std::make_unique<CoordinatorMetrics>(options_.metrics);
  std::vector<RestoreRun> restored = std::exchange(options_.restored, {});
  for (RestoreRun& run : restored) {
    replanner_.Add(run);
    Add(std::move(run));
  }
  MutexLock lock(gate_->mu);
  gate_->loop = this;
}

ServerLoop::~ServerLoop() {
  MutexLock lock(gate_->mu);
  gate_->loop = nullptr;
}

void ServerLoop::Start(CallerName caller) {
  AcceptSession();
  const auto own = [this](std::unique_ptr<Call> call) { calls_.insert(std::move(call)); };
  const auto hear = [this](const char* method, const absl::Status& status, std::optional<int64_t> came_ns) {
    HearCall(method, status, came_ns);
  };
  const auto runs = std::make_shared<const RunsContext>(
      RunsContext{this, runs_service_, queue_.get(), own, std::move(caller), hear});
  AcceptRunsCalls(runs);
  AcceptTraceCalls(runs);
  health_.Accept(health_service_, queue_.get(), own);
  thread_ = StartThread([this] { Run(); });
}

void ServerLoop::Join() {
  {
    MutexLock lock(mu_);
    over_ = true;
    if (!std::exchange(woken_, true)) alarm_.Set(queue_.get(), gpr_now(GPR_CLOCK_MONOTONIC), nullptr);
  }
  thread_.join();
}

// Ends the queue. No operation may begin on a queue that is shut down, and calls that the server has
// cancelled begin one more, to finish. So the queue ends behind the last call, or after a moment without
// that.
void ServerLoop::EndQueue(int64_t now) {
  if (queue_ended_) return;
  {
    MutexLock lock(mu_);
    if (!over_) return;
  }
  end_due_ = std::min(end_due_, now + kMaxEndingNs);
  if (!calls_.empty() && now < end_due_) return;
  queue_ended_ = true;
  queue_->Shutdown();
}

void ServerLoop::AcceptSession() {
  calls_.insert(
      std::make_unique<SessionCall>(session_service_, queue_.get(), &sessions_, [this] { AcceptSession(); }));
}

bool ServerLoop::Post(std::function<void()> work) {
  MutexLock lock(mu_);
  if (over_) return false;
  posted_.push_back(std::move(work));
  if (!std::exchange(woken_, true)) alarm_.Set(queue_.get(), gpr_now(GPR_CLOCK_MONOTONIC), nullptr);
  return true;
}

void ServerLoop::WatchProcess(SessionId session, int64_t pid) {
  if (processes_ == nullptr) return;
  processes_->Watch(static_cast<pid_t>(pid),
                    [this, session] { Post([this, session] { sessions_.EndOfProcess(session); }); });
}

// Takes posted work. Returns false once the loop is told to end.
bool ServerLoop::TakePosted() {
  std::vector<std::function<void()>> posted;
  bool over = false;
  {
    MutexLock lock(mu_);
    posted.swap(posted_);
    over = over_;
  }
  for (auto& work : posted) work();
  return !over;
}

void ServerLoop::TakeTag(void* tag, bool ok) {
  if (tag == nullptr) {  // the alarm
    MutexLock lock(mu_);
    woken_ = false;
    return;
  }
  const auto* operation = static_cast<const Call::Operation*>(tag);
  Call* call = operation->call;
  if (call->OnDone(operation->kind, ok)) return;
  const auto it =
      std::find_if(calls_.begin(), calls_.end(), [call](const auto& c) { return c.get() == call; });
  if (it != calls_.end()) calls_.erase(it);
}

// Waits for an operation to end, or the deadline. Polls without sleeping while the last one has just ended,
// so that the next message does not wait for this thread to wake up.
bool ServerLoop::WaitForTag(void** tag, bool* ok) {
  const int64_t deadline = NextDeadline();
  auto status = grpc::CompletionQueue::TIMEOUT;
  const gpr_timespec past = gpr_time_0(GPR_CLOCK_MONOTONIC);
  const int64_t spin_end = std::min(spin_end_ns_, deadline);
  while (status == grpc::CompletionQueue::TIMEOUT && MonotonicNow() < spin_end)
    status = queue_->AsyncNext(tag, ok, past);
  if (status == grpc::CompletionQueue::TIMEOUT) status = queue_->AsyncNext(tag, ok, DeadlineAt(deadline));
  return status == grpc::CompletionQueue::GOT_EVENT;
}

// Takes operations that have ended; waits for the first of them, at most until the deadline.
void ServerLoop::TakeTags() {
  void* tag = nullptr;
  bool ok = false;
  turn_begun_ns_.reset();
  if (!WaitForTag(&tag, &ok)) return;
  turn_begun_ns_ = MonotonicNow();
  spin_end_ns_ = *turn_begun_ns_ + int64_t{1000} * options_.spin_microseconds;
  TakeTag(tag, ok);
  const gpr_timespec past = gpr_time_0(GPR_CLOCK_MONOTONIC);  // gpr_inf_past would wait for ever
  for (int taken = 1; taken < kMaxTaken; ++taken) {
    if (queue_->AsyncNext(&tag, &ok, past) != grpc::CompletionQueue::GOT_EVENT) return;
    TakeTag(tag, ok);
  }
}

int64_t ServerLoop::NextDeadline() const {
  int64_t next = std::min(core_.next_deadline(), sessions_.next_deadline());
  if (metrics_ != nullptr) next = std::min(next, metrics_->next_deadline());
  if (!queue_ended_) next = std::min(next, end_due_);
  return std::min(next, heart_.next());
}

void ServerLoop::Run() {
  if (metrics_ != nullptr) metrics_->Update(MonotonicNow(), core_, SessionCounts());
  // Restored runs are there before anybody asks for them.
  if (!events_.empty()) Apply(core_.Step(MonotonicNow(), std::exchange(events_, {})));
  bool alive = true;
  while (alive) {
    TakeTags();
    alive = TakePosted();
    const int64_t now = MonotonicNow();
    heart_.Beat(now);
    while (!events_.empty() || now >= core_.next_deadline())
      Apply(core_.Step(now, std::exchange(events_, {})));
    if (alive) sessions_.Flush(now);
    const bool grants = std::exchange(grants_, false);
    if (metrics_ != nullptr && grants && turn_begun_ns_.has_value())
      metrics_->HearClaims(MonotonicNow() - *turn_begun_ns_);
    if (metrics_ != nullptr) metrics_->Update(now, core_, sessions_.counts());
    EndQueue(now);
  }
  // No operation may begin from here on, so calls do not hear of those that end; they are destroyed with the
  // loop.
  queue_->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) {
  }
}

bool ServerLoop::SendAhead(std::vector<OutgoingMessage>* messages) {
  if (!held_.MayGoAhead()) return std::none_of(messages->begin(), messages->end(), NeedsNoStore);
  std::vector<OutgoingMessage> behind;
  for (OutgoingMessage& m : *messages) NeedsNoStore(m) ? Send(std::move(m)) : behind.push_back(std::move(m));
  *messages = std::move(behind);
  return true;
}

void ServerLoop::Apply(Effects effects) {
  if (options_.store == nullptr) return CarryOut(std::move(effects));
  const bool keeps = !effects.records.empty();
  if (!keeps && held_.empty()) return CarryOut(std::move(effects));
  const bool ahead = SendAhead(&effects.messages);
  written_ += keeps ? 1 : 0;
  Records records = std::exchange(effects.records, {});
  effects.records.forgotten = records.forgotten;
  const size_t size = SizeOf(effects);
  const auto shared = std::make_shared<Effects>(std::move(effects));
  held_.Hold({written_, [this, shared] { CarryOut(std::move(*shared)); }, size, !ahead});
  if (!keeps) return;
  options_.store->Write(std::move(records), [gate = gate_, number = written_] {
    MutexLock lock(gate->mu);
    if (ServerLoop* loop = gate->loop) loop->Post([loop, number] { loop->held_.Release(number); });
  });
}

void ServerLoop::AddOutputEnd(RunInfo* run) const {
  if (!IsFinal(run->state) || run->output.empty() || !options_.output_end) return;
  const std::optional<std::string> end = options_.output_end(run->id);
  run->output_closed = end.has_value();
  run->output_failure = end.value_or("");
}

void ServerLoop::WhenDurable(std::function<void()> answer) {
  if (held_.empty()) return answer();
  held_.Hold({written_, std::move(answer)});
}

void ServerLoop::CarryOut(Effects effects) {
  const CoordinatorObserver& observer = options_.observer;
  TellLog(effects);
  for (const WorkerChange& w : effects.workers) {
    if (observer.worker) observer.worker(w);
  }
  for (const JobsEnded& j : effects.jobs) {
    Note(j);
    if (metrics_ != nullptr) metrics_->Hear(j);
    replanner_.Hear(j);
    if (observer.jobs) observer.jobs(j);
  }
  for (const SlowJob& s : effects.slow_jobs) {
    if (observer.slow_job) observer.slow_job(s);
  }
  for (const RunStall& s : effects.stalls) {
    if (observer.stall) observer.stall(s);
  }
  for (const Report& r : effects.reports) {
    if (observer.report) observer.report(r);
  }
  for (const Spans& s : effects.spans) {
    replanner_.Hear(s);
    if (observer.spans) observer.spans(s);
  }
  for (const StepDone& s : effects.steps) {
    Note(s);
    replanner_.Hear(s);
    if (observer.step) observer.step(s);
    Tell(s.run, s);
  }
  for (const Validation& v : effects.validations) {
    if (observer.validation) observer.validation(v);
  }
  for (OutgoingMessage& m : effects.messages) Send(std::move(m));
  for (const CloseSession& c : effects.closed) sessions_.Close(c);
  for (const Replanned& r : effects.replanned) {
    replanner_.Hear(r);
    if (observer.replanned) observer.replanned(r);
  }
  for (const RunInfo& r : effects.runs) {
    for (RunLine& line : lines_.Of(r)) Log(r.id, std::move(line.entry), line.routine);
    replanner_.Hear(r);
    if (observer.run) observer.run(r);
    Tell(r.id, r);
  }
  for (const uint64_t run : effects.spans_complete) {
    if (observer.spans_complete) observer.spans_complete(run);
  }
  for (const Reply& r : effects.replies) {
    const auto it = answers_.find(r.reply);
    Answer answer = std::move(it->second);
    answers_.erase(it);
    answer(r.status.ok() ? absl::StatusOr<uint64_t>(r.run) : r.status);
  }
  for (const uint64_t run : effects.records.forgotten) logs_.erase(run);
}

// Sends a message, and notes a grant; the log has most others.
void ServerLoop::Send(OutgoingMessage message) {
  const auto* grant = std::get_if<Grant>(&message.message);
  grants_ |= grant != nullptr;
  if (options_.flight_ring != nullptr && grant != nullptr && !grant->jobs.empty()) {
    EventText text("grants");
    text.Add("run", static_cast<int64_t>(grant->run)).Add("rank", grant->rank);
    AddJobs(grant->jobs.size(), grant->jobs.back(), text);
    options_.flight_ring->Note(MonotonicNow(), text);
  }
  sessions_.Send(std::move(message));
}

void ServerLoop::HearCall(const std::string& method, const absl::Status& status,
                          std::optional<int64_t> came_ns) {
  if (metrics_ == nullptr) return;
  std::optional<int64_t> took;
  if (came_ns.has_value()) took = MonotonicNow() - *came_ns;
  metrics_->HearCall(method, status.code(), took);
}

void ServerLoop::Note(const JobsEnded& jobs) const {
  if (options_.flight_ring == nullptr || jobs.jobs.empty()) return;
  EventText text("jobs_ended");
  text.Add("run", static_cast<int64_t>(jobs.run)).Add("rank", jobs.rank).Add("process", jobs.process);
  AddJobs(jobs.jobs.size(), jobs.jobs.back().job, text);
  options_.flight_ring->Note(MonotonicNow(), text);
}

void ServerLoop::Note(const StepDone& step) const {
  if (options_.flight_ring == nullptr) return;
  EventText text("step_done");
  text.Add("run", static_cast<int64_t>(step.run)).Add("step", step.step);
  options_.flight_ring->Note(MonotonicNow(), text);
}

void ServerLoop::TellLog(const Effects& effects) {
  for (const RunLogLine& line : effects.log) TellLog(line);
  for (const WorkerChange& w : effects.workers) {
    if (w.run != 0) Log(w.run, LineOf(w));
  }
  for (const SlowJob& s : effects.slow_jobs) Log(s.run, LineOf(s));
  for (const Replanned& r : effects.replanned) Log(r.run, LineOf(r));
}

void ServerLoop::Log(uint64_t run, LogEntry entry, bool routine) {
  entry.unix_ns = MonotonicNow() + unix_minus_monotonic_;
  TellLog(RunLogLine{run, 0, -1, "coordinator", {}, std::move(entry), routine});
}

void ServerLoop::TellLog(RunLogLine line) {
  const uint64_t run = line.run;
  const auto [log, added] = logs_.try_emplace(run);
  const RunLogLine& kept = log->second.Add(std::move(line));
  if (options_.observer.log) options_.observer.log(kept);
  // Logs are kept as long as their runs.
  if (added && !core_.Knows(run)) logs_.erase(log);
}

RunLogPart ServerLoop::LogOf(uint64_t run, uint64_t after, Rank rank) const {
  const auto found = logs_.find(run);
  return found == logs_.end() ? RunLogPart() : found->second.After(after, rank);
}

RunLogPart ServerLoop::EventsOf(uint64_t run) const {
  const auto found = logs_.find(run);
  return found == logs_.end() ? RunLogPart() : found->second.Events();
}

void ServerLoop::Tell(uint64_t run, const RunEvent& event) {
  const auto [begin, end] = watchers_.equal_range(run);
  for (auto it = begin; it != end;) (it++)->second->Hear(event);  // a watcher may remove itself
}

void ServerLoop::RemoveWatcher(uint64_t run, Watcher* watcher) {
  const auto [begin, end] = watchers_.equal_range(run);
  const auto it = std::find_if(begin, end, [watcher](const auto& entry) { return entry.second == watcher; });
  if (it != end) watchers_.erase(it);
}

void ServerLoop::Submit(SubmitRequest request, Answer answer) {
  std::string spec = request.spec;
  // A repeated request is its first run, whose folder is claimed.
  const bool known = core_.KnowsRequest(request.request);
  if (!known && options_.store != nullptr) {
    if (absl::Status room = options_.store->Room(); !room.ok()) return answer(room);
  }
  const uint64_t id = known ? 0 : core_.ReserveRun();
  const auto shared = std::make_shared<Answer>(std::move(answer));
  auto planned = [this, id, request = std::move(request),
                  shared](const absl::StatusOr<std::shared_ptr<const RunPlan>>& plan) {
    absl::StatusOr<RunFolder> folder = RunFolder();
    PlannedSpec run;
    if (!plan.ok()) {
      folder = plan.status();
    } else {
      if (id != 0 && options_.claim) folder = options_.claim(id, request, **plan);
      run = {*plan, request.spec};
      if (options_.claimed) run = options_.claimed(request.output, std::move(run));
    }
    const bool posted = Post([this, id, request, run, folder, shared] {
      if (!folder.ok()) {
        if (id != 0) core_.ReturnRun(id);
        return (*shared)(folder.status());
      }
      const uint64_t reply = next_reply_++;
      answers_[reply] = [this, id, plan = run.plan, shared](const absl::StatusOr<uint64_t>& taken) {
        if (taken.ok()) replanner_.Add(*taken, *plan);
        if (id != 0 && (!taken.ok() || *taken != id)) {
          core_.ReturnRun(id);
          if (options_.release) options_.release(id);
        }
        (*shared)(taken);
      };
      Add(SubmitRun{reply, request.request, run.plan, run.spec, request.processes, request.output, *folder,
                    request.file, id, folder->run_id.empty() ? NewRunId() : folder->run_id, request.terms});
    });
    if (!posted) (*shared)(absl::UnavailableError("the coordinator has stopped"));
  };
  if (!planner_.Plan(std::move(spec), std::move(planned))) {
    if (id != 0) core_.ReturnRun(id);
    (*shared)(absl::ResourceExhaustedError("too many submissions at once; try again"));
  }
}

void ServerLoop::Cancel(uint64_t run, std::string reason, bool save, Answer answer) {
  const uint64_t reply = next_reply_++;
  answers_[reply] = std::move(answer);
  Add(CancelRun{reply, run, std::move(reason), save});
}

void ServerLoop::Move(MoveRanks order, Answer answer) {
  order.reply = next_reply_++;
  answers_[order.reply] = std::move(answer);
  Add(std::move(order));
}

void ServerLoop::Drain(DrainWorker order, Answer answer) {
  order.reply = next_reply_++;
  answers_[order.reply] = std::move(answer);
  Add(std::move(order));
}

void ServerLoop::ReadTrace(uint64_t run, TraceReader::Done answer) {
  if (!options_.trace) return answer(absl::UnimplementedError("this coordinator keeps no traces"));
  const uint64_t reply = next_reply_++;
  answers_[reply] = [this, answer = std::move(answer)](const absl::StatusOr<uint64_t>& asked) {
    const absl::StatusOr<RunInfo> info = asked.ok() ? core_.GetRun(*asked) : asked.status();
    if (!info.ok()) return answer(info.status());
    const bool reads = traces_.Read(*asked, info->output, [this, answer](absl::StatusOr<RunTrace> trace) {
      Post([answer, trace = std::move(trace)]() mutable { answer(std::move(trace)); });
    });
    if (!reads) answer(absl::ResourceExhaustedError("too many traces are asked for at once; try again"));
  };
  Add(AskSpans{reply, run});
}

}  // namespace weft
