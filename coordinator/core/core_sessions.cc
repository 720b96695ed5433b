// Implements the sessions of the coordinator's core: workers come, speak, break, leave.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/coordinator_core.h"

namespace weft {

void CoordinatorCore::On(SessionOpened& e) {
  Worker& w = workers_.Open(e.session, now_ + options_.hello_ns);
  w.heard_ns = now_;
}

void CoordinatorCore::On(SessionMessage& e) {
  Worker* w = workers_.Find(e.session);
  if (w == nullptr) return;  // the core had closed it, and the shell did not know yet
  ++probe_.messages_received;
  w->heard_ns = now_;
  if (!w->greeted && !std::holds_alternative<Hello>(e.message)) {
    return Refuse(e.session, absl::FailedPreconditionError("the first message of a session must be Hello"));
  }
  std::visit([&](auto& m) { OnMessage(*w, m); }, e.message);
}

void CoordinatorCore::On(SessionBroken& e) {
  Worker* w = workers_.Find(e.session);
  if (w == nullptr || w->broken) return;
  if (!w->greeted) {
    workers_.Remove(e.session);
    effects_.closed.push_back({e.session, absl::UnavailableError(e.reason)});
    return;
  }
  w->broken = true;
  w->broken_ns = now_;
  w->broken_reason = CauseOfBreak(*w, e.reason);
  w->deadline = GraceEnd(*w);
}

namespace {

// The time within which a worker counts as reporting: workers of a running run report every second.
constexpr int64_t kSoonAfter = 3'000'000'000;

}  // namespace

std::string CoordinatorCore::CauseOfBreak(const Worker& worker, const std::string& reason) const {
  const auto run = runs_.find(worker.run);
  if (run == runs_.end() || run->second.info.state != RunState::kRunning) return reason;
  const int64_t silent = now_ - worker.heard_ns;
  if (silent < kSoonAfter)
    return absl::StrCat(reason, " at once: its process has ended, or the connection was reset");
  return absl::StrCat(reason, " after ", silent / 1'000'000'000,
                      " s of silence: its process is stopped, or its machine or network cannot be reached");
}

// Returns the end of the grace. Both ends must see the same outage. The worker notices a dead connection at
// most `detection_ns` after the last message, and then tries to come back; the coordinator may have noticed
// earlier. A connection that was reset is known to both at once.
int64_t CoordinatorCore::GraceEnd(const Worker& worker) const {
  const auto run = runs_.find(worker.run);
  const bool reports = run != runs_.end() && run->second.info.state == RunState::kRunning;
  if (!reports) return now_ + options_.detection_ns + options_.grace_ns;
  if (now_ - worker.heard_ns < kSoonAfter) return now_ + options_.grace_ns;
  return std::max(now_, worker.heard_ns + options_.detection_ns) + options_.grace_ns;
}

void CoordinatorCore::On(SessionResumed& e) {
  Worker* w = workers_.Find(e.session);
  if (w == nullptr || !w->broken) return;
  w->broken = false;
  w->deadline = kNever;
  w->heard_ns = now_;
}

void CoordinatorCore::On(SessionClosed& e) {
  Worker* w = workers_.Find(e.session);
  if (w == nullptr) return;
  if (!w->greeted) return workers_.Remove(e.session);
  Lose(*w, w->serves() ? WorkerChange::Kind::kLost : WorkerChange::Kind::kLeft, e.reason);
}

void CoordinatorCore::On(WorkerExited& e) {
  if (Worker* w = workers_.FindByPid(e.pid)) return Lose(*w, WorkerChange::Kind::kLost, e.reason);
  if (!options_.fixed_workers) return;
  const std::vector<uint64_t> live = live_;
  for (uint64_t id : live) {
    Run& run = *FindRun(id);
    if (run.info.state > RunState::kWaiting) continue;
    Fail(run, absl::StrCat("a worker process (pid ", e.pid, ") ended before it connected: ", e.reason));
  }
}

// Ends a session that broke the rules or never greeted.
void CoordinatorCore::Refuse(SessionId session, const absl::Status& status) {
  Worker* w = workers_.Find(session);
  effects_.closed.push_back({session, status});
  if (w != nullptr && w->greeted) return Lose(*w, WorkerChange::Kind::kLost, std::string(status.message()));
  workers_.Remove(session);
}

// Removes a worker that is gone for good. `worker` is dead after this.
void CoordinatorCore::Lose(Worker& worker, WorkerChange::Kind kind, const std::string& reason) {
  const SessionId session = worker.session;
  const std::string label = worker.Label();
  Run* run = worker.serves() ? FindRun(worker.run) : nullptr;
  workers_.Remove(session);
  if (kind == WorkerChange::Kind::kLost) ++probe_.workers_lost;
  effects_.workers.push_back({kind, label, reason});
  const bool told = std::any_of(effects_.closed.begin(), effects_.closed.end(),
                                [&](const CloseSession& c) { return c.session == session; });
  if (!told) effects_.closed.push_back({session, absl::AbortedError(absl::StrCat(label, ": ", reason))});
  if (run == nullptr || IsFinal(run->info.state)) return;
  RunMember* member = run->MemberOf(session);
  member->alive = false;
  if (member->finished) return;  // it has done its part
  std::string cause = absl::StrCat(label, " was lost: ", reason);
  if (run->blaming()) {
    // A process's own report before it ends is the better cause.
    cause = run->failed_session == session
                ? absl::StrCat(run->first_failure, " (then it was lost: ", reason, ")")
                : absl::StrCat(cause, " (then ", run->first_failure, ")");
  }
  Fail(*run, cause);
}

// ---- messages

void CoordinatorCore::OnMessage(Worker& worker, Hello& m) {
  if (worker.greeted)
    return Refuse(worker.session, absl::FailedPreconditionError("a second Hello in one session"));
  if (Worker* same = workers_.FindByName(m.worker)) {
    if (!same->broken) {
      return Refuse(worker.session, absl::AlreadyExistsError(
                                        absl::StrCat("a worker of this name is connected: ", same->Label(),
                                                     "; give each worker another --name")));
    }
    Lose(*same, WorkerChange::Kind::kLost, "it was restarted");
  }
  absl::StatusOr<int32_t> number = workers_.NumberFor(m.process);
  if (!number.ok()) return Refuse(worker.session, number.status());
  worker.greeted = true;
  worker.hello = std::move(m);
  worker.process = *number;
  worker.deadline = kNever;
  Send(worker.session, Welcome{options_.epoch, worker.process});
  if (stopped_) Send(worker.session, Shutdown{"the coordinator is stopping"});
  effects_.workers.push_back({WorkerChange::Kind::kJoined, worker.Label(), ""});
}

Run* CoordinatorCore::ServedRun(const Worker& worker, uint64_t id) {
  if (id == 0 || worker.run != id || !worker.serves()) {
    ++probe_.fenced;
    return nullptr;
  }
  return FindRun(id);
}

Run* CoordinatorCore::LeasedRun(const Worker& worker, uint64_t id, Rank rank, const Token& token) {
  Run* run = ServedRun(worker, id);
  if (run == nullptr) return nullptr;
  const bool known = rank >= 0 && rank < static_cast<Rank>(run->ranks.size());
  if (known && run->members[run->ranks[rank].member].session == worker.session &&
      run->ranks[rank].token == token) {
    return run;
  }
  ++probe_.fenced;
  return nullptr;
}

void CoordinatorCore::OnMessage(Worker& worker, Prepared& m) {
  Run* run = ServedRun(worker, m.run);
  if (run == nullptr || run->info.state != RunState::kPreparing) return;
  run->MemberOf(worker.session)->prepared = true;
  if (run->AllAlive(&RunMember::prepared)) BeginRunning(*run);
}

void CoordinatorCore::OnMessage(Worker& worker, Credit& m) {
  Run* run = LeasedRun(worker, m.run, m.rank, m.token);
  if (run == nullptr) return;
  run->ranks[m.rank].credit = m.jobs;
  run->may_grant.push_back(m.rank);
}

// Passes the id from the process of a group's first member to those of the others.
void CoordinatorCore::OnMessage(Worker& worker, GroupId& m) {
  Run* run = ServedRun(worker, m.run);
  if (run == nullptr) return;
  const auto& groups = run->plan->graph.joint_order().groups();
  const auto session_of = [&](Rank rank) { return run->members[run->ranks[rank].member].session; };
  const bool its_own = run->collective && m.epoch == run->epoch && run->info.state == RunState::kPreparing &&
                       m.group < static_cast<int32_t>(groups.size()) &&
                       session_of(groups[m.group].front()) == worker.session;
  if (!its_own) {
    ++probe_.fenced;
    return;
  }
  for (const Rank rank : groups[m.group]) {
    if (session_of(rank) != worker.session) Send(session_of(rank), m);
  }
}

void CoordinatorCore::OnMessage(Worker& worker, Completions& m) {
  Run* run = LeasedRun(worker, m.run, m.rank, m.token);
  if (run == nullptr) return;
  if (run->info.state < RunState::kRunning) {
    ++probe_.violations;
    return Fail(*run, absl::StrCat(worker.Label(),
                                   " reports jobs done before any was granted: a fault in the worker"));
  }
  Complete(*run, m, worker);
}

void CoordinatorCore::Complete(Run& run, Completions& m, const Worker& worker) {
  size_t kept = 0;
  for (size_t i = 0; i < m.jobs.size(); ++i) {
    const WorkQueue::Outcome outcome = run.queue->Complete(m.rank, m.jobs[i]);
    if (outcome == WorkQueue::Outcome::kViolation) {
      ++probe_.violations;
      return Fail(run, absl::StrCat(worker.Label(), " reports ", Describe(m.jobs[i].job), " done on rank ",
                                    m.rank, ", which was not granted there: a fault in the worker"));
    }
    if (outcome == WorkQueue::Outcome::kDuplicate) {
      ++probe_.duplicate_completions;
      continue;
    }
    ++probe_.completions[static_cast<int>(m.jobs[i].job.kind)];
    if (kept != i) m.jobs[kept] = m.jobs[i];
    ++kept;
  }
  if (kept == 0) return;
  m.jobs.resize(kept);
  run.deadline = now_ + options_.progress_ns;
  run.may_grant.push_back(m.rank);
  effects_.jobs.push_back({run.info.id, m.rank, worker.process, std::move(m.jobs)});
  EndSteps(run);
}

void CoordinatorCore::MergeReports(Run& run, std::vector<RankReport>& reports, const Worker& worker) {
  for (RankReport& r : reports) {
    const bool own = r.rank < static_cast<Rank>(run.ranks.size()) &&
                     run.members[run.ranks[r.rank].member].session == worker.session;
    if (!own) continue;
    // Observers have had the spans; a history of runs would grow with them.
    r.idle_spans = {};
    r.transfer_spans = {};
    run.reports[r.rank] = std::move(r);
  }
}

void CoordinatorCore::OnMessage(Worker& worker, Report& m) {
  Run* run = ServedRun(worker, m.run);
  // The last figures of a process came with Finished; it frees its memory since then.
  if (run == nullptr || run->MemberOf(worker.session)->finished) return;
  effects_.reports.push_back(m);
  MergeReports(*run, m.ranks, worker);
}

void CoordinatorCore::OnMessage(Worker& worker, Failed& m) {
  Run* run = ServedRun(worker, m.run);
  if (run == nullptr || run->blaming()) return;
  run->first_failure = absl::StrCat(worker.Label(), " failed: ", m.reason);
  run->failed_session = worker.session;
  worker.failed_last = true;
  run->blame_deadline = now_ + options_.blame_ns;
}

void CoordinatorCore::OnMessage(Worker& worker, Finished& m) {
  Run* run = ServedRun(worker, m.run);
  if (run == nullptr) return;
  if (run->info.state != RunState::kFinishing) {
    ++probe_.violations;
    return Fail(*run, absl::StrCat(worker.Label(),
                                   " says it has finished before all jobs were done: a fault in the worker"));
  }
  effects_.reports.push_back({m.run, m.ranks});
  MergeReports(*run, m.ranks, worker);
  run->MemberOf(worker.session)->finished = true;
  bool all = true;
  for (const RunMember& member : run->members) all &= member.finished;
  if (all) EndRun(*run, RunState::kFinished, "");
}

void CoordinatorCore::OnMessage(Worker& worker, Forgotten& m) {
  if (!worker.ending() || worker.run != m.run) return;  // after Finished it was free already
  worker.run = 0;
  worker.ending_since_ns = 0;
  if (!std::exchange(worker.told_late, false)) return;
  effects_.workers.push_back(
      {WorkerChange::Kind::kBack, worker.Label(), absl::StrCat("it has ended run ", m.run)});
}

void CoordinatorCore::OnMessage(Worker& worker, Stalled& m) {
  Run* run = ServedRun(worker, m.run);
  if (run == nullptr) return;
  run->MemberOf(worker.session)->stalled = std::move(m.reason);
  TellStalls(*run);
}

}  // namespace weft
