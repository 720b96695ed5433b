// Runs: submission, start, progress, end, deadlines. Sessions and their messages are in core_sessions.cc.
#include "coordinator/core/coordinator_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/reduction.h"

namespace weft {
namespace {

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
  // One entry a run and Step: the last state is the one that counts.
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
  Run& run = runs_[next_run_];
  run.info.id = *id = next_run_++;
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
  run.output = std::move(e.output);
  if (!e.request.empty()) run_of_request_[e.request] = *id;
  live_.push_back(*id);
  Changed(run);
  return absl::OkStatus();
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
    EndRun(*run, RunState::kCancelled,
           e.reason.empty() ? "cancelled" : absl::StrCat("cancelled: ", e.reason));
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
    if (state != RunState::kFinished) Send(m.session, Abort{run.info.id, reason});
    w->run = 0;
  }
  ++probe_.runs_ended[static_cast<int>(state)];
  live_.erase(std::find(live_.begin(), live_.end(), run.info.id));
  run.End(state, reason, now_);
  Changed(run);
  ForgetOldRuns();
}

void CoordinatorCore::ForgetOldRuns() {
  for (auto it = runs_.begin(); runs_.size() - live_.size() > options_.runs_kept && it != runs_.end();) {
    if (!IsFinal(it->second.info.state)) {
      ++it;
      continue;
    }
    run_of_request_.erase(it->second.request);
    it = runs_.erase(it);
  }
}

// ---- start

// In the order of submission: a run that does not find enough free workers holds back those behind it.
void CoordinatorCore::StartWaiting() {
  for (size_t i = 0; i < live_.size(); ++i) {
    Run& run = *FindRun(live_[i]);
    if (run.info.state > RunState::kWaiting) continue;
    std::vector<Worker*> free = workers_.Free();
    const size_t needed = run.info.processes;
    if (free.size() >= needed) {
      free.resize(needed);
      Start(run, free);
      continue;
    }
    const size_t connected = workers_.Connected();
    // While other runs hold the workers it waits for its turn, however long; the deadline is for workers that
    // do not come.
    if (connected >= needed) {
      run.deadline = kNever;
    } else if (run.deadline == kNever) {
      run.deadline = now_ + options_.waiting_ns;
    }
    std::string reason = absl::StrCat("needs ", needed, " worker processes, ", free.size(), " are free (",
                                      connected, " connected)");
    if (run.info.state == RunState::kSubmitted || reason != run.info.reason) {
      run.info.state = RunState::kWaiting;
      run.info.reason = std::move(reason);
      Changed(run);
    }
    return;
  }
}

void CoordinatorCore::Start(Run& run, const std::vector<Worker*>& workers) {
  std::vector<Peer> peers;
  for (Worker* w : workers) {
    w->run = run.info.id;
    run.members.push_back({w->session, w->process, w->Label()});
    peers.push_back({w->process, w->hello.address, w->Label()});
  }
  const Reduction reduction = ChooseReduction(*run.plan, workers);
  run.collective = reduction.collective;
  run.info.reduction = reduction.sentence;
  if (run.collective) run.plan = run.plan->collective;
  run.Lease(++epoch_, &next_token_);
  run.queue = std::make_unique<WorkQueue>(run.plan);
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
  if (!run.queue->all_done()) return;
  run.info.state = RunState::kFinishing;
  run.deadline = now_ + options_.finishing_ns;
  for (const RunMember& m : run.members) Send(m.session, Finish{run.info.id});
  Changed(run);
}

void CoordinatorCore::GrantAll() {
  for (uint64_t id : live_) {
    Run& run = *FindRun(id);
    if (run.info.state != RunState::kRunning || run.blaming()) continue;
    const auto grant = [&](Rank rank) {
      const RunRank& r = run.ranks[rank];
      if (!run.queue->CanGrant(rank, r.credit)) return;
      Grant m{id, rank, r.token, {}};
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
}

// ---- deadlines

int64_t CoordinatorCore::next_deadline() const {
  int64_t next = kNever;
  for (const auto& [session, w] : workers_.all()) {
    next = std::min(next, w.deadline);
    const auto it = w.run == 0 ? runs_.end() : runs_.find(w.run);
    if (it != runs_.end() && it->second.info.state == RunState::kRunning) {
      next = std::min(next, w.heard_ns + options_.silence_ns);
    }
  }
  bool first_waiting = true;
  for (uint64_t id : live_) {
    const Run& run = runs_.at(id);
    next = std::min(next, run.blame_deadline);
    // A run behind the first waiting one does not wait for processes but for its turn.
    if (run.info.state <= RunState::kWaiting && !std::exchange(first_waiting, false)) continue;
    next = std::min(next, run.deadline);
  }
  return next;
}

void CoordinatorCore::CheckDeadlines() {
  if (now_ < next_deadline()) return;
  CheckWorkers();
  const std::vector<uint64_t> live = live_;
  bool first_waiting = true;
  for (uint64_t id : live) {
    Run* run = FindRun(id);
    if (run == nullptr || IsFinal(run->info.state)) continue;
    if (run->info.state <= RunState::kWaiting && !std::exchange(first_waiting, false)) continue;
    CheckRun(*run);
  }
}

void CoordinatorCore::CheckRun(Run& run) {
  if (now_ >= run.blame_deadline) return Fail(run, run.first_failure);
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
             absl::StrCat("its session broke and did not come back within ", Seconds(options_.grace_ns), ": ",
                          w.broken_reason));
      }
      continue;
    }
    Run* run = w.run == 0 ? nullptr : FindRun(w.run);
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
  }
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
    ++(w.broken ? p.workers_broken : (w.run == 0 ? p.workers_free : p.workers_busy));
  }
  return p;
}

}  // namespace weft
