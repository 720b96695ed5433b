// Implements runs: submission, start, progress, end, deadlines. Sessions and their messages are in
// core_sessions.cc.
#include "coordinator/core/coordinator_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/reduction.h"

namespace weft {
namespace {

std::string Mebibytes(int64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

std::string Seconds(int64_t ns) { return absl::StrCat(ns / 1'000'000'000, " s"); }

}  // namespace

CoordinatorCore::CoordinatorCore(CoreOptions options) : options_(options), epoch_(options.epoch) {}

Effects CoordinatorCore::Step(int64_t now, Event event) {
  now_ = now;
  Handle(std::move(event));
  CheckDeadlines();
  StartWaiting();
  GrantAll();
  return std::exchange(effects_, {});
}

Effects CoordinatorCore::Step(int64_t now, std::vector<Event> events) {
  now_ = now;
  for (Event& e : events) Handle(std::move(e));
  CheckDeadlines();
  StartWaiting();
  GrantAll();
  return std::exchange(effects_, {});
}

void CoordinatorCore::Handle(Event event) {
  std::visit([this](auto& e) { On(e); }, event);
}

Run* CoordinatorCore::FindRun(uint64_t id) {
  const auto it = runs_.find(id);
  return it == runs_.end() ? nullptr : &it->second;
}

void CoordinatorCore::Send(SessionId session, FromCoordinator message) {
  ++probe_.messages_sent;
  effects_.messages.push_back({session, std::move(message)});
}

void CoordinatorCore::Changed(const Run& run) {
  // A run has one entry in a Step: the last state is the one that counts.
  for (RunInfo& info : effects_.runs) {
    if (info.id == run.info.id && info.state == run.info.state) {
      info = run.info;
      return;
    }
  }
  effects_.runs.push_back(run.info);
}

// ---- submission and end

absl::Status CoordinatorCore::Submit(SubmitRun& e, uint64_t* id) {
  const uint64_t hash = BodyHash(e.spec, e.processes, e.output);
  if (const auto it = run_of_request_.find(e.request); !e.request.empty() && it != run_of_request_.end()) {
    if (runs_.at(it->second).body_hash != hash) {
      return absl::AlreadyExistsError(absl::StrCat("request ", e.request, " was submitted before as run ",
                                                   it->second,
                                                   " with other content; choose another request name"));
    }
    *id = it->second;
    return absl::OkStatus();
  }
  if (stopped_) return absl::UnavailableError("the coordinator is stopping");
  if (live_.size() >= options_.runs_waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat(live_.size(), " runs wait or run already; try again later"));
  }
  const int32_t processes = e.processes == 0 ? e.plan->ranks() : e.processes;
  if (processes < 0 || processes > e.plan->ranks()) {
    return absl::InvalidArgumentError(absl::StrCat("the schedule has ", e.plan->ranks(),
                                                   " ranks, so it runs on 1 to ", e.plan->ranks(),
                                                   " processes, not ", processes));
  }
  if (absl::Status s = CheckPlanBytes(*e.plan); !s.ok()) return s;
  *id = e.id != 0 ? e.id : ReserveRun();
  Run& run = runs_[*id];
  run.info.id = *id;
  run.info.name = e.plan->name;
  run.info.schedule = e.plan->schedule;
  run.info.ranks = e.plan->ranks();
  run.info.processes = processes;
  run.info.steps = e.plan->steps;
  run.info.submitted_ns = now_;
  run.request = e.request;
  run.body_hash = hash;
  run.plan = std::move(e.plan);
  run.spec = std::move(e.spec);
  if (e.folder.path.empty()) e.folder = {e.output, e.output};
  run.output = std::move(e.folder.live);
  run.info.output = std::move(e.folder.path);
  run.info.file = std::move(e.file);
  run.run_id = std::move(e.run_id);
  if (!e.request.empty()) run_of_request_[e.request] = *id;
  live_.insert(std::upper_bound(live_.begin(), live_.end(), *id), *id);
  Changed(run);
  return absl::OkStatus();
}

absl::Status CoordinatorCore::CheckPlanBytes(const RunPlan& plan) const {
  int64_t bytes = plan.bytes;
  for (uint64_t id : live_) bytes += runs_.at(id).plan->bytes;
  if (bytes <= options_.plan_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the plan of this run takes about ", Mebibytes(plan.bytes), ", with those of ",
                   live_.size(), " runs that have not ended ", Mebibytes(bytes), "; the limit is ",
                   Mebibytes(options_.plan_bytes), ": try again when one of them has ended"));
}

void CoordinatorCore::On(SubmitRun& e) {
  Reply reply{e.reply, absl::OkStatus(), 0};
  reply.status = Submit(e, &reply.run);
  effects_.replies.push_back(std::move(reply));
}

void CoordinatorCore::On(CancelRun& e) {
  Run* run = FindRun(e.run);
  if (run == nullptr) {
    effects_.replies.push_back({e.reply, absl::NotFoundError(absl::StrCat("no run ", e.run)), e.run});
    return;
  }
  if (!IsFinal(run->info.state)) {
    e.save ? SaveAndCancel(*run, e.reason) : EndRun(*run, RunState::kCancelled, e.reason);
  }
  effects_.replies.push_back({e.reply, absl::OkStatus(), e.run});
}

void CoordinatorCore::On(StopAll& e) {
  stopped_ = true;
  const std::vector<uint64_t> live = live_;
  for (uint64_t id : live) Fail(*FindRun(id), absl::StrCat("the coordinator was stopped: ", e.reason));
  for (const auto& [session, w] : workers_.all()) Send(session, Shutdown{e.reason});
}

void CoordinatorCore::Fail(Run& run, const std::string& reason) { EndRun(run, RunState::kFailed, reason); }

void CoordinatorCore::EndRun(Run& run, RunState state, const std::string& reason) {
  for (const RunMember& m : run.members) {
    Worker* w = workers_.Find(m.session);
    if (w == nullptr || w->run != run.info.id) continue;
    if (state == RunState::kFinished) {
      w->run = 0;
      w->failed_last = false;
      continue;
    }
    if (run.info.state == RunState::kPreparing && state == RunState::kFailed && !run.blaming())
      w->failed_last |= !m.prepared;
    const bool cancelled = state == RunState::kCancelled;
    const std::string told =
        cancelled ? absl::StrCat("the run was cancelled", reason.empty() ? "" : ": ", reason) : reason;
    Send(m.session, Abort{run.info.id, told});
    w->ending_since_ns = now_;
    w->told_late = false;
  }
  ++probe_.runs_ended[static_cast<int>(state)];
  live_.erase(std::find(live_.begin(), live_.end(), run.info.id));
  run.End(state, reason, now_);
  Changed(run);
  ended_.push_back(run.info.id);
  ForgetOldRuns();
}

void CoordinatorCore::ForgetOldRuns() {
  while (ended_.size() > options_.runs_kept) {
    const auto oldest = runs_.find(ended_.front());
    run_of_request_.erase(oldest->second.request);
    runs_.erase(oldest);
    ended_.pop_front();
  }
}

// ---- start

// Starts waiting runs in the order of submission. A run waits in one of two ways. If enough workers are
// connected and some are busy, it waits for its turn and holds back the runs behind it. If too few are
// connected, it waits for workers, with a deadline, and runs behind it that need fewer may pass.
void CoordinatorCore::StartWaiting() {
  const QueueState state{workers_.Free().size(), workers_.Connected(), live_.size(), next_run_};
  if (state == queue_state_) return;  // nothing that the queue depends on has changed
  uint64_t holds_back = 0;
  const std::vector<uint64_t> live = live_;
  for (uint64_t id : live) {
    Run& run = *FindRun(id);
    if (run.info.state > RunState::kWaiting) continue;
    std::vector<Worker*> free = workers_.Free();
    const size_t needed = run.info.processes, connected = workers_.Connected();
    if (holds_back == 0 && free.size() >= needed) {
      free.resize(needed);
      std::sort(free.begin(), free.end(),
                [](const Worker* a, const Worker* b) { return a->process < b->process; });
      Start(run, free);
      continue;
    }
    std::string reason =
        absl::StrCat("needs ", needed, needed == 1 ? " worker process, " : " worker processes, ", free.size(),
                     free.size() == 1 ? " is free (" : " are free (", connected, " connected)");
    if (connected < needed) {
      if (run.deadline == kNever) run.deadline = now_ + options_.waiting_ns;
    } else {
      run.deadline = kNever;
      if (holds_back != 0) reason = absl::StrCat("behind run ", holds_back, "; ", reason);
      if (holds_back == 0) holds_back = id;
    }
    for (const Worker* w : workers_.Ending())
      absl::StrAppend(&reason, "; ", w->Label(), " has not ended run ", w->run, " yet");
    if (run.info.state == RunState::kSubmitted || reason != run.info.reason) {
      run.info.state = RunState::kWaiting;
      run.info.reason = std::move(reason);
      Changed(run);
    }
  }
  queue_state_ = {workers_.Free().size(), workers_.Connected(), live_.size(), next_run_};
}

void CoordinatorCore::Start(Run& run, const std::vector<Worker*>& workers) {
  int64_t bytes = 0;  // bytes of each other's addresses that all processes together are sent
  for (const Worker* w : workers) bytes += w->hello.address.size() + w->Label().size();
  bytes *= static_cast<int64_t>(workers.size());
  if (bytes > options_.peer_bytes) {
    return Fail(
        run, absl::StrCat("each of its ", workers.size(), " processes would be sent the addresses of all, ",
                          Mebibytes(bytes), " together; the limit is ", Mebibytes(options_.peer_bytes),
                          ": use fewer processes"));
  }
  std::vector<Peer> peers;
  for (Worker* w : workers) {
    w->run = run.info.id;
    run.members.push_back({w->session, w->process, w->Label()});
    run.info.members.push_back(w->Label());
    peers.push_back({w->process, w->hello.address, w->Label()});
  }
  const Reduction reduction = ChooseReduction(*run.plan, workers);
  run.collective = reduction.collective;
  run.info.reduction = reduction.sentence;
  if (run.collective) run.plan = run.plan->collective;
  run.Lease(++epoch_, &next_token_);
  run.queue = std::make_unique<WorkQueue>(run.plan);
  if (!run.output.empty()) {
    run.checkpoints = std::make_unique<Checkpoints>(*run.plan, static_cast<int>(run.members.size()));
  }
  run.info.state = RunState::kPreparing;
  run.info.reason.clear();
  run.deadline = now_ + options_.preparing_ns;
  for (size_t m = 0; m < run.members.size(); ++m) {
    Send(run.members[m].session, run.AssignFor(static_cast<int>(m), peers));
  }
  Changed(run);
}

void CoordinatorCore::BeginRunning(Run& run) {
  run.info.state = RunState::kRunning;
  run.info.started_ns = now_;
  run.deadline = now_ + options_.progress_ns;
  run.all_may_grant = true;
  for (const RunMember& m : run.members) workers_.Find(m.session)->heard_ns = now_;
  if (run.checkpoints != nullptr) {
    run.checkpoints->Begin(now_);
    // All processes have written their initial weights to be prepared.
    if (run.plan->first_step == 0) {
      run.checkpoints->Announce(0, now_);
      Seal(run, 0, /*drop=*/false);
    }
    // Those weights are kept aside too then. An earlier run may not have come to it.
    if (run.checkpoints->ResumesWithValidation()) run.checkpoints->AddValidation(run.plan->first_step);
    BeginValidation(run);
  }
  Changed(run);
}

// ---- progress

void CoordinatorCore::EndSteps(Run& run) {
  std::vector<WorkQueue::EndedStep> ended;
  run.queue->TakeEndedSteps(&ended);
  if (ended.empty()) return;
  for (const auto& s : ended) {
    effects_.steps.push_back({run.info.id, s.step, s.loss, s.has_loss, s.end_ns, s.gradient_norm});
    run.info.loss = s.loss;
    run.info.has_loss = s.has_loss;
  }
  run.info.steps_done = run.queue->steps_done();
  run.all_may_grant = true;  // the window moved
  probe_.steps += ended.size();
  probe_.loss = run.info.loss;
  probe_.has_loss = run.info.has_loss;
  if (ended.back().gradient_norm.has_value()) probe_.gradient_norm = ended.back().gradient_norm;
  probe_.last_step_ns = now_;
  if (run.queue->all_done()) return BeginFinishing(run);
  if (run.stop_sealed) EndStopped(run);
}

void CoordinatorCore::GrantAll() {
  for (uint64_t id : live_) {
    Run& run = *FindRun(id);
    if (run.info.state != RunState::kRunning || run.blaming()) continue;
    AnnounceSnapshots(run);
    // Grants may have reached the next snapshot.
    do {
      GrantTo(run);
    } while (AnnounceSnapshots(run));
  }
}

// Puts the stalls into the run's reason while it runs: the first few processes that report one.
void CoordinatorCore::TellStalls(Run& run) {
  if (run.info.state != RunState::kRunning && run.info.state != RunState::kFinishing) return;
  std::vector<std::string> stalls;
  for (const RunMember& m : run.members) {
    if (!m.stalled.empty() && stalls.size() < 4) stalls.push_back(absl::StrCat(m.label, ": ", m.stalled));
  }
  std::string reason = absl::StrJoin(stalls, "; ");
  if (reason == run.info.reason) return;
  run.info.reason = std::move(reason);
  Changed(run);
}

void CoordinatorCore::GrantTo(Run& run) {
  const auto grant = [&](Rank rank) {
    const RunRank& r = run.ranks[rank];
    if (!run.queue->CanGrant(rank, r.credit)) return;
    Grant m{run.info.id, rank, r.token, {}};
    run.queue->Grant(rank, r.credit, &m.jobs);
    if (m.jobs.empty()) return;
    probe_.grants += m.jobs.size();
    Send(run.members[r.member].session, std::move(m));
  };
  if (run.all_may_grant) {
    for (Rank rank = 0; rank < static_cast<Rank>(run.ranks.size()); ++rank) grant(rank);
  } else {
    for (Rank rank : run.may_grant) grant(rank);
  }
  run.all_may_grant = false;
  run.may_grant.clear();
}

// ---- deadlines

int64_t CoordinatorCore::next_deadline() const {
  int64_t next = kNever;
  for (const auto& [session, w] : workers_.all()) {
    next = std::min(next, w.deadline);
    if (w.ending() && !w.told_late) next = std::min(next, w.ending_since_ns + options_.ending_ns);
    const auto it = w.serves() ? runs_.find(w.run) : runs_.end();
    if (it != runs_.end() && it->second.info.state == RunState::kRunning) {
      next = std::min(next, w.heard_ns + options_.silence_ns);
    }
  }
  for (uint64_t id : live_) {
    const Run& run = runs_.at(id);
    next = std::min({next, run.blame_deadline, run.deadline});
    if (run.info.state == RunState::kRunning && run.checkpoints != nullptr && !run.blaming())
      next = std::min(next, run.checkpoints->next_due());
  }
  return next;
}

void CoordinatorCore::CheckDeadlines() {
  if (now_ < next_deadline()) return;
  CheckWorkers();
  const std::vector<uint64_t> live = live_;
  for (uint64_t id : live) {
    Run* run = FindRun(id);
    if (run != nullptr && !IsFinal(run->info.state)) CheckRun(*run);
  }
}

// Returns the cause of a failure. A process that cannot be reached explains the failures of its peers, though
// it is not yet given up.
std::string CoordinatorCore::CauseOfFailure(const Run& run) const {
  for (const RunMember& m : run.members) {
    const Worker* w = workers_.Find(m.session);
    if (w == nullptr || !w->broken || m.session == run.failed_session) continue;
    return absl::StrCat(m.label, " was lost: ", w->broken_reason, " (then ", run.first_failure, ")");
  }
  return run.first_failure;
}

void CoordinatorCore::CheckRun(Run& run) {
  if (now_ >= run.blame_deadline) return Fail(run, CauseOfFailure(run));
  if (now_ < run.deadline) return;
  switch (run.info.state) {
    case RunState::kSubmitted:
    case RunState::kWaiting:
      return Fail(run, absl::StrCat("waited ", Seconds(options_.waiting_ns),
                                    " for worker processes: ", run.info.reason));
    case RunState::kPreparing:
      return Fail(run, absl::StrCat("not prepared after ", Seconds(options_.preparing_ns), ": ",
                                    run.Missing(&RunMember::prepared)));
    case RunState::kRunning:
      return Fail(run, absl::StrCat("no job ended for ", Seconds(options_.progress_ns),
                                    "; awaited: ", run.DescribeAwaited()));
    case RunState::kFinishing:
      if (run.checkpoints != nullptr && !run.checkpoints->idle()) {
        return Fail(run, absl::StrCat("not saved after ", Seconds(options_.finishing_ns), ": ",
                                      run.DescribeCheckpoint()));
      }
      if (run.checkpoints != nullptr && run.checkpoints->validating()) {
        return Fail(run, absl::StrCat("not validated after ", Seconds(options_.finishing_ns), ": ",
                                      run.DescribeValidation()));
      }
      return Fail(run, absl::StrCat("not finished ", Seconds(options_.finishing_ns),
                                    " after the last job: ", run.Missing(&RunMember::finished)));
    default:
      return;
  }
}

void CoordinatorCore::CheckWorkers() {
  std::vector<SessionId> sessions;
  for (const auto& [session, w] : workers_.all()) sessions.push_back(session);
  for (SessionId session : sessions) {
    Worker& w = *workers_.Find(session);
    if (now_ >= w.deadline) {
      if (!w.greeted) {
        Refuse(session, absl::DeadlineExceededError("the worker sent no Hello"));
      } else {
        Lose(w, WorkerChange::Kind::kLost,
             absl::StrCat("its session broke and did not come back within ", Seconds(now_ - w.broken_ns),
                          ": ", w.broken_reason));
      }
      continue;
    }
    if (w.ending() && !w.told_late && now_ >= w.ending_since_ns + options_.ending_ns) {
      w.told_late = true;
      effects_.workers.push_back(
          {WorkerChange::Kind::kBusy, w.Label(),
           absl::StrCat("it was told ", Seconds(options_.ending_ns), " ago that run ", w.run,
                        " is over, and still holds it; other runs go to others")});
    }
    Run* run = w.serves() ? FindRun(w.run) : nullptr;
    if (run == nullptr || run->info.state != RunState::kRunning || now_ < w.heard_ns + options_.silence_ns)
      continue;
    Lose(w, WorkerChange::Kind::kLost, absl::StrCat("it was silent for ", Seconds(options_.silence_ns)));
  }
}

// ---- questions

absl::StatusOr<RunInfo> CoordinatorCore::GetRun(uint64_t id) const {
  const auto it = runs_.find(id);
  if (it == runs_.end()) return absl::NotFoundError(absl::StrCat("no run ", id));
  RunInfo info = it->second.info;
  if (info.reports.empty()) {
    for (const auto& [rank, report] : it->second.reports) info.reports.push_back(report);
  }
  return info;
}

std::vector<RunInfo> CoordinatorCore::ListRuns() const {
  std::vector<RunInfo> list;
  for (const auto& [id, run] : runs_) {
    list.push_back(run.info);
    list.back().reports.clear();
    list.back().members.clear();
  }
  return list;
}

std::vector<WorkerInfo> CoordinatorCore::ListWorkers(int64_t now) const {
  std::vector<WorkerInfo> list;
  for (const auto& [session, w] : workers_.all()) {
    if (!w.greeted) continue;
    list.push_back({w.process, w.hello.worker, w.hello.host, w.hello.pid, w.hello.device,
                    w.broken     ? "broken"
                    : w.ending() ? "ending"
                                 : (w.run == 0 ? "free" : "busy"),
                    w.run, now - w.heard_ns});
  }
  std::sort(list.begin(), list.end(),
            [](const WorkerInfo& a, const WorkerInfo& b) { return a.process < b.process; });
  return list;
}

Probe CoordinatorCore::probe() const {
  Probe p = probe_;
  p.epoch = epoch_;
  for (const auto& [id, run] : runs_) ++p.runs[static_cast<int>(run.info.state)];
  for (uint64_t id : live_) {
    const Run& run = runs_.at(id);
    if (run.queue == nullptr) continue;
    p.jobs.blocked += run.queue->counts().blocked;
    p.jobs.ready += run.queue->counts().ready;
    p.jobs.claimed += run.queue->counts().claimed;
    p.jobs.done += run.queue->counts().done;
  }
  for (const auto& [session, w] : workers_.all()) {
    if (!w.greeted) continue;
    ++(w.broken     ? p.workers_broken
       : w.ending() ? p.workers_ending
                    : (w.run == 0 ? p.workers_free : p.workers_busy));
  }
  return p;
}

}  // namespace weft
