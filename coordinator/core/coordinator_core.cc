#include "coordinator/core/coordinator_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace weft {
namespace {

absl::Status UnknownWorker(const std::string& name) {
  return absl::NotFoundError(
      absl::StrCat("no worker \"", absl::CHexEscape(name), "\" is connected; weft workers lists them"));
}

template <class... Messages>
bool HoldsAnyOf(const FromWorker& message) {
  return (std::holds_alternative<Messages>(message) || ...);
}

// Returns true for what changes only the work of the run that the worker serves, unless it begins or ends
// one: it makes no worker free or lost, and no deadline of a session earlier.
bool IsWork(const Event& event) {
  const auto* said = std::get_if<SessionMessage>(&event);
  if (said == nullptr) return false;
  return HoldsAnyOf<Prepared, Credit, Completions, Report, Finished, GroupId, Stalled, SnapshotSaved,
                    CheckpointSealed, Validation, LogLines, Spans>(said->message);
}

}  // namespace

CoordinatorCore::CoordinatorCore(CoreOptions options)
    : options_(options),
      runs_(options_),
      sessions_(options_, &runs_),
      queue_(&runs_, &sessions_.workers()),
      numbers_{options.epoch} {}

Effects CoordinatorCore::Step(int64_t now, Event event) {
  BeginStep(now);
  Take(event);
  return EndStep();
}

Effects CoordinatorCore::Step(int64_t now, std::vector<Event> events) {
  BeginStep(now);
  for (Event& event : events) Take(event);
  return EndStep();
}

void CoordinatorCore::Take(Event& event) {
  stirred_ |= !IsWork(event);
  std::visit([this](auto& e) { On(e); }, event);
}

// A Step comes at the latest when a deadline is due. One that comes much later shows that this process stood
// still, and could not hear its workers meanwhile.
void CoordinatorCore::BeginStep(int64_t now) {
  constexpr int64_t kPauseNs = 2'000'000'000;
  if (now - out_.now > kPauseNs) {
    sessions_due_ = sessions_.next_due();
    const int64_t due = next_deadline();
    if (due != kNever && now - due > kPauseNs) sessions_.Excuse(now);
  }
  out_.now = now;
  runs_.PassTime(now, out_.counts.steps);
}

Effects CoordinatorCore::EndStep() {
  for (const Run* run : Changed()) runs_.NoteChange(*run);
  CheckDeadlines();
  if (stirred_) StartWaiting();
  ExpandRuns();
  for (Run* run : Changed()) {
    run->Grant(out_);
    runs_.NoteChange(*run);
  }
  runs_.NoteRunning();
  worked_.clear();
  if (std::exchange(stirred_, false)) {
    ++out_.counts.surveys;
    sessions_due_ = sessions_.next_due();
  }
  out_.effects.records.steps = out_.effects.steps;
  out_.effects.records.validations = out_.effects.validations;
  return out_.Take();
}

std::vector<Run*> CoordinatorCore::Changed() {
  std::vector<Run*> changed;
  if (stirred_) {
    for (const auto& [id, run] : runs_.active()) changed.push_back(run);
    return changed;
  }
  for (const uint64_t id : worked_) {
    if (const auto run = runs_.active().find(id); run != runs_.active().end()) changed.push_back(run->second);
  }
  return changed;
}

// ---- runs

void CoordinatorCore::On(SubmitRun& e) {
  Reply reply{e.reply, absl::OkStatus(), 0};
  reply.status = runs_.Submit(out_, e, &reply.run);
  out_.effects.replies.push_back(std::move(reply));
}

// The folder of a run that had ended may not say so yet. It waits for no spans: the run's processes, if they
// come back, only end it.
void CoordinatorCore::On(RestoreRun& e) {
  Run& run = runs_.Restore(out_, e);
  if (run.state() == RunState::kFailed || run.state() == RunState::kCancelled)
    span_requests_.AskLast(out_, run.id(), {});
  Settle(run);
}

void CoordinatorCore::On(CancelRun& e) {
  Run* run = runs_.Find(e.run);
  if (run == nullptr) {
    out_.effects.replies.push_back({e.reply, absl::NotFoundError(absl::StrCat("no run ", e.run)), e.run});
    return;
  }
  if (!IsFinal(run->state())) {
    e.save ? run->SaveAndCancel(out_, e.reason) : run->Cancel(e.reason);
    Settle(*run);
  }
  out_.effects.replies.push_back({e.reply, absl::OkStatus(), e.run});
}

void CoordinatorCore::On(MoveRanks& e) { out_.effects.replies.push_back({e.reply, Move(e), e.run}); }

absl::Status CoordinatorCore::Move(const MoveRanks& order) {
  Run* run = runs_.Find(order.run);
  if (run == nullptr) return absl::NotFoundError(absl::StrCat("no run ", order.run));
  if (absl::Status may_move = run->CheckMove(order.ranks); !may_move.ok()) return may_move;
  Worker* to = sessions_.workers().FindNamed(order.worker);
  if (to == nullptr) return UnknownWorker(order.worker);
  if (to->leaving) return absl::FailedPreconditionError(absl::StrCat(to->Label(), " is about to leave"));
  if (!to->free() && !(to->serves() && to->run == run->id() && !to->broken))
    return absl::AbortedError(absl::StrCat(
        to->Label(), to->broken ? " cannot be reached now" : absl::StrCat(" serves run ", to->run),
        "; try again"));
  const std::string reason = order.reason.empty() ? "" : absl::StrCat(": ", order.reason);
  absl::Status moves =
      run->Move(out_, order.ranks, to->session, absl::StrCat("ranks move to ", to->Label(), reason));
  if (!moves.ok()) return moves;
  for (const SessionId session : run->placement().processes()) {
    if (Worker* w = sessions_.workers().Find(session)) w->failed_last = false;  // somebody vouches for it
  }
  Settle(*run);
  return absl::OkStatus();
}

void CoordinatorCore::On(ReplanRun& e) {
  Run* run = runs_.Find(e.run);
  if (run != nullptr && !IsFinal(run->state())) run->Replan(out_, e);
}

void CoordinatorCore::On(DrainWorker& e) {
  Worker* worker = sessions_.workers().FindNamed(e.worker);
  out_.effects.replies.push_back(
      {e.reply, worker == nullptr ? UnknownWorker(e.worker) : absl::OkStatus(), 0});
  if (worker != nullptr && !worker->leaving) Drain(*worker, e.reason.empty() ? "it was told to" : e.reason);
}

// Processes that cannot be reached now, or know no such question, are not asked.
std::vector<SessionId> CoordinatorCore::SpanTellers(const Run& run) {
  std::vector<SessionId> tellers;
  for (const RunMember& member : run.members().all()) {
    const Worker* w = sessions_.workers().Find(member.session);
    const bool reached = w != nullptr && w->serves() && w->run == run.id() && !w->broken && !member.stuck;
    if (reached && w->hello.tells_spans) tellers.push_back(member.session);
  }
  return tellers;
}

void CoordinatorCore::On(AskSpans& e) {
  const Run* run = runs_.Find(e.run);
  if (run == nullptr) {
    out_.effects.replies.push_back({e.reply, absl::NotFoundError(absl::StrCat("no run ", e.run)), e.run});
    return;
  }
  span_requests_.Ask(out_, e, SpanTellers(*run));
}

absl::StatusOr<WorkerInfo> CoordinatorCore::GetWorker(int64_t now, const std::string& worker) const {
  const Worker* found = sessions_.workers().FindNamed(worker);
  if (found == nullptr) return UnknownWorker(worker);
  return sessions_.Describe(*found, now);
}

void CoordinatorCore::On(StopAll& e) {
  runs_.Close();
  const std::vector<uint64_t> live = runs_.live();
  for (const uint64_t id : live) {
    Run& run = *runs_.Find(id);
    run.Fail(absl::StrCat("the coordinator was stopped: ", e.reason));
    Settle(run);
  }
  const std::string reason = e.reason.empty() ? "it gave no reason" : e.reason;
  for (const SessionId session : sessions_.Ids()) out_.Send(session, Shutdown{reason});
}

void CoordinatorCore::StartWaiting() {
  while (std::optional<RunQueue::Admission> admitted = queue_.Next(out_)) {
    Run& run = *admitted->run;
    run.Start(out_, admitted->workers, &numbers_);
    runs_.File(run);
    if (run.ending().has_value()) {
      EndRun(run);
      continue;
    }
    for (Worker* w : admitted->workers) w->run = run.id();
  }
}

// A run that lost processes takes in those that are free again, unless another run waits for them.
void CoordinatorCore::ExpandRuns() {
  const std::vector<Run*> changed = Changed();
  const auto smaller = std::find_if(changed.begin(), changed.end(),
                                    [this](const Run* run) { return run->MayExpand(out_.now); });
  if (smaller == changed.end()) return;
  Run& run = **smaller;
  if (IsWaitedFor(run.info().terms.pool)) return;
  const std::vector<Worker*> free = queue_.FreeFor(run);
  if (free.empty()) return;
  run.Relocate(out_, absl::StrCat(free.front()->Label(), " is free to take part"));
}

// Returns true if a run waits for workers of the pool, or for those that it had.
bool CoordinatorCore::IsWaitedFor(const std::string& pool) const {
  return runs_.waiting().WaitsFor(pool) ||
         std::any_of(runs_.active().begin(), runs_.active().end(), [&](const auto& entry) {
           return entry.second->state() <= RunState::kWaiting && entry.second->info().terms.pool == pool;
         });
}

// Frees the workers of a run that finished. Workers on which it failed, and those of any other run, also of
// one that begins again, have to end it first. A worker that was not prepared in time, or failed by its own
// fault, is the last choice for the next run.
void CoordinatorCore::EndRun(Run& run) {
  stirred_ = true;
  const RunState state = run.ending()->state;
  const std::string& reason = run.ending()->reason;
  const bool unprepared = run.state() == RunState::kPreparing && state == RunState::kFailed && !run.blaming();
  const std::string message = state == RunState::kCancelled
                                  ? absl::StrCat("the run was cancelled", reason.empty() ? "" : ": ", reason)
                                  : reason;
  if (state == RunState::kFailed || state == RunState::kCancelled)
    span_requests_.AskLast(out_, run.id(), SpanTellers(run));
  for (const RunMember& m : run.members().all()) {
    Worker* w = sessions_.workers().Find(m.session);
    if (w == nullptr || w->run != run.id()) continue;
    if (state == RunState::kFinished && !m.failed) {
      WorkerSessions::Free(out_, *w);
      continue;
    }
    w->failed_last |= unprepared && !m.prepared;
    sessions_.Abort(out_, *w, message);
    if (m.stuck) WorkerSessions::Expel(out_, *w, message);
  }
  if (state == RunState::kWaiting) {
    run.Restart(out_);
    return runs_.File(run);
  }
  for (const SessionId keeper : run.copies().Keepers()) {
    if (sessions_.workers().Find(keeper) != nullptr) out_.Send(keeper, DropCopies{run.id()});
  }
  ++out_.counts.runs_ended[static_cast<int>(state)];
  run.Close(out_);
  runs_.Retire(out_, run.id());
}

// ---- sessions

void CoordinatorCore::On(SessionMessage& e) {
  Worker* w = sessions_.workers().Find(e.session);
  if (w == nullptr) {  // the core had closed it, and the shell did not know yet
    ++out_.counts.fenced;
    return;
  }
  ++out_.counts.messages_received;
  w->heard_ns = out_.now;
  if (!w->greeted && !std::holds_alternative<Hello>(e.message)) {
    return Refuse(e.session, absl::FailedPreconditionError("the first message of a session must be Hello"));
  }
  std::visit([&](auto& m) { OnMessage(*w, m); }, e.message);
}

void CoordinatorCore::On(SessionClosed& e) {
  Worker* w = sessions_.workers().Find(e.session);
  if (w == nullptr) return;
  if (!w->greeted) return sessions_.workers().Remove(e.session);
  const Run* run = w->serves() ? runs_.Find(w->run) : nullptr;
  const bool owes = run != nullptr && !run->members().HasFinished(e.session);
  Lose(*w, owes ? WorkerChange::Kind::kLost : WorkerChange::Kind::kExited, e.reason);
}

void CoordinatorCore::On(WorkerExited& e) {
  if (Worker* w = sessions_.workers().FindByPid(e.pid))
    return Lose(*w, WorkerChange::Kind::kLost, e.reason, e.wrote);
  if (!options_.fixed_workers) return;
  const std::vector<uint64_t> live = runs_.live();
  for (const uint64_t id : live) {
    Run& run = *runs_.Find(id);
    if (run.state() > RunState::kWaiting) continue;
    const std::string reason =
        absl::StrCat("a worker process (pid ", e.pid, ") ended before it connected: ", e.reason);
    run.info().restarts > 0 ? run.EndAttempt(reason, RestartCause::kProcessLost) : run.Fail(reason);
    Settle(run);
  }
}

void CoordinatorCore::Refuse(SessionId session, const absl::Status& status) {
  stirred_ = true;
  Worker* w = sessions_.workers().Find(session);
  out_.effects.closed.push_back({session, status});
  if (w != nullptr && w->greeted) return Lose(*w, WorkerChange::Kind::kLost, std::string(status.message()));
  sessions_.workers().Remove(session);
}

void CoordinatorCore::Lose(Worker& worker, WorkerChange::Kind kind, const std::string& reason,
                           const std::string& wrote) {
  stirred_ = true;
  const LostWorker lost = sessions_.Remove(out_, worker, kind, reason);
  span_requests_.Gone(out_, lost.session);
  for (const WaitingRuns::Runs* runs : {&runs_.waiting().begun(), &runs_.active()}) {
    for (const auto& [id, keeper] : *runs) keeper->LoseCopies(lost.session);
  }
  Run* run = lost.run != 0 ? runs_.Find(lost.run) : nullptr;
  if (run == nullptr || IsFinal(run->state())) return;
  run->Lose(out_, lost.session, reason, wrote);
  Settle(*run);
}

void CoordinatorCore::OnMessage(Worker& worker, Hello& m) {
  const absl::StatusOr<Worker*> before = sessions_.Check(worker, m);
  if (!before.ok()) return Refuse(worker.session, before.status());
  if (*before != nullptr) Lose(**before, WorkerChange::Kind::kLost, "it was restarted");
  if (absl::Status s = sessions_.Greet(out_, worker, m); !s.ok()) return Refuse(worker.session, s);
  if (!worker.returning) NoteFresh(worker);
  if (runs_.closed()) out_.Send(worker.session, Shutdown{"the coordinator is stopping"});
}

void CoordinatorCore::NoteFresh(const Worker& worker) {
  const WaitingRuns::Runs active = runs_.active();
  for (const auto& [id, awaiting] : active) {
    Run& run = *awaiting;
    if (worker.run == id || !run.Awaits(worker.hello.worker)) continue;
    run.GiveUpReturn(absl::StrCat(worker.Label(), " came back without it"));
    Settle(run);
  }
}

void CoordinatorCore::OnMessage(Worker& worker, CopiesHeld& m) {
  if (worker.returning) {
    Run* run = runs_.Find(m.run);
    if (run != nullptr && run->TakeCopies(worker.session, m)) return;
    ++out_.counts.fenced;
    return out_.Send(worker.session, DropCopies{m.run});
  }
  Run* run = ServedRun(worker, m.run);
  if (run == nullptr) return;
  if (!run->Defer(worker.session, m)) run->Take(out_, worker.session, m);
  Settle(*run);
}

// Takes a worker back to its run, or lets it end the run first.
void CoordinatorCore::OnMessage(Worker& worker, Reattach& m) {
  if (!std::exchange(worker.returning, false))
    return Refuse(worker.session, absl::FailedPreconditionError("Reattach comes once, behind a Hello that "
                                                                "says so"));
  worker.deadline = kNever;  // its session is not broken
  worker.run = m.run;
  NoteFresh(worker);
  if (m.run == 0) {
    if (worker.leaving) WorkerSessions::Leave(out_, worker);
    return;
  }
  Run* run = runs_.Find(m.run);
  const std::string refused =
      run == nullptr ? "the coordinator does not know the run" : run->TakeBack(out_, worker, m);
  if (!refused.empty()) {
    ++out_.counts.fenced;
    sessions_.Abort(out_, worker, refused);
    if (run != nullptr && run->Awaits(worker.hello.worker))
      run->GiveUpReturn(absl::StrCat(worker.Label(), " came back, and ", refused));
  }
  if (run == nullptr) return;
  if (refused.empty() && run->state() == RunState::kRunning) BeginLeases(*run);
  Settle(*run);
}

// Hands lines of the worker's log on. Lines about a run that the worker neither serves nor ends are late, and
// are dropped: the worker's own log has them.
void CoordinatorCore::OnMessage(Worker& worker, LogLines& m) {
  Run* run = worker.run == m.run ? runs_.Find(m.run) : nullptr;
  if (run == nullptr) return;
  const RunMember* member = run->members().Find(worker.session);
  const std::vector<Rank> ranks = member == nullptr ? std::vector<Rank>() : run->members().RanksOf(*member);
  for (LogEntry& entry : m.lines)
    out_.effects.log.push_back({m.run, 0, worker.process, worker.Label(), ranks, std::move(entry)});
}

// A worker that has to forget its run reports its spans before.
void CoordinatorCore::OnMessage(Worker& worker, Spans& m) {
  if (m.run == 0 || worker.run != m.run) {
    ++out_.counts.fenced;
    return;
  }
  out_.effects.spans.push_back(std::move(m));
  span_requests_.Told(out_, worker.session, worker.run);
}

void CoordinatorCore::OnMessage(Worker& worker, Forgotten& m) {
  span_requests_.Told(out_, worker.session, m.run);
  WorkerSessions::Forgotten(out_, worker, m.run);
}

// Counts the silence of the run's processes from now on. Lets go a process that wants to end.
void CoordinatorCore::BeginLeases(Run& run) {
  for (const RunMember& member : run.members().all()) {
    Worker& worker = *sessions_.workers().Find(member.session);
    worker.heard_ns = out_.now;
    if (worker.leaving) run.Relocate(out_, absl::StrCat(worker.Label(), " leaves"));
  }
}

Run* CoordinatorCore::ServedRun(const Worker& worker, uint64_t id) {
  if (id == 0 || worker.run != id || !worker.serves()) {
    ++out_.counts.fenced;
    return nullptr;
  }
  worked_.insert(id);
  return runs_.Find(id);
}

void CoordinatorCore::OnMessage(Worker& worker, Prepared& m) {
  Run* run = ServedRun(worker, m.run);
  if (run == nullptr || run->state() != RunState::kPreparing) return;
  run->Take(out_, worker.session, m);
  if (run->state() != RunState::kRunning) return;
  stirred_ = true;  // its processes have leases from now on
  BeginLeases(*run);
}

void CoordinatorCore::OnMessage(Worker& worker, Failed& m) {
  Run* run = ServedRun(worker, m.run);
  if (run == nullptr) return;
  if (run->blaming()) return run->Take(out_, worker.session, m);
  worker.failed_last = m.damaged_checkpoint < 0;
  if (m.device_lost) WorkerSessions::Leave(out_, worker);  // it ends by itself
  // Either end of a link may be at fault: where other processes are free, they take the place of both.
  if (Worker* end = m.link_to < 0 ? nullptr : sessions_.workers().FindByProcess(m.link_to))
    end->failed_last = true;
  if (!run->Defer(worker.session, m)) run->Take(out_, worker.session, m);
  Settle(*run);
}

// The run of a worker that is to end goes on elsewhere first.
void CoordinatorCore::Drain(Worker& worker, const std::string& reason) {
  WorkerSessions::Leave(out_, worker);
  Run* run = worker.serves() ? runs_.Find(worker.run) : nullptr;
  if (run == nullptr) return;
  run->Relocate(out_, absl::StrCat(worker.Label(), " leaves: ", reason));
  Settle(*run);
}

// ---- deadlines

int64_t CoordinatorCore::next_deadline() const {
  return std::min({sessions_due_, runs_.next_due(), span_requests_.next_due()});
}

void CoordinatorCore::CheckDeadlines() {
  if (out_.now < next_deadline()) return;
  span_requests_.CheckDeadline(out_);
  sessions_due_ = sessions_.next_due();  // workers that were heard of since have more time
  if (out_.now < next_deadline()) return;
  stirred_ = true;
  for (const SessionId session : sessions_.Ids()) {
    Worker& worker = *sessions_.workers().Find(session);
    if (const std::optional<std::string> reason = sessions_.Overdue(out_, worker))
      Lose(worker, WorkerChange::Kind::kLost, *reason);
  }
  std::vector<uint64_t> live = runs_.waiting().dues().By(out_.now);
  for (const auto& [id, run] : runs_.active()) live.push_back(id);
  std::sort(live.begin(), live.end());
  for (const uint64_t id : live) {
    Run* run = runs_.Find(id);
    if (run == nullptr || IsFinal(run->state())) continue;
    if (out_.now >= run->first_failure().due) {
      EndBlame(*run);
    } else {
      run->CheckDeadline(out_);
    }
    if (run->ending().has_value()) {
      EndRun(*run);
    } else {
      runs_.File(*run);
    }
  }
}

// Ends the run, or its attempt, for a failure whose cause has had its time. A process that cannot be reached
// explains the failures of its peers, though it is not yet given up.
void CoordinatorCore::EndBlame(Run& run) {
  for (const RunMember& m : run.members().all()) {
    const Worker* w = sessions_.workers().Find(m.session);
    if (w == nullptr || !w->broken || m.session == run.first_failure().session) continue;
    return run.EndForLoss(m, w->broken_reason);
  }
  const std::string& what = run.first_failure().what;
  run.first_failure().is_link ? run.EndAttempt(what, RestartCause::kLinkLost) : run.Fail(what);
}

Probe CoordinatorCore::probe() const {
  Probe p = out_.counts;
  p.epoch = numbers_.epoch;
  runs_.Count(out_.now, &p);
  sessions_.Count(&p);
  return p;
}

}  // namespace weft
