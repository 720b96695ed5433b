#include "coordinator/core/worker_sessions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/seconds.h"

namespace weft {
namespace {

// The time within which a worker counts as reporting: workers of a running run report twice a second.
constexpr int64_t kSoonAfter = 3'000'000'000;

}  // namespace

std::vector<SessionId> WorkerSessions::Ids() const {
  std::vector<SessionId> ids;
  for (const auto& [session, w] : workers_.all()) ids.push_back(session);
  return ids;
}

// ---- connections

void WorkerSessions::Open(int64_t now, SessionId session) {
  workers_.Open(session, now + options_.hello_ns).heard_ns = now;
}

void WorkerSessions::Break(StepEffects& out, SessionId session, const std::string& reason) {
  Worker* w = workers_.Find(session);
  if (w == nullptr || w->broken) return;
  if (!w->greeted) {
    workers_.Remove(session);
    out.effects.closed.push_back({session, absl::UnavailableError(reason)});
    return;
  }
  w->broken = true;
  w->broken_ns = out.now;
  w->broken_reason = CauseOfBreak(out.now, *w, reason);
  w->deadline = GraceEnd(out.now, *w);
}

std::string WorkerSessions::CauseOfBreak(int64_t now, const Worker& worker, const std::string& reason) const {
  if (!runs_.IsRunning(worker.run)) return reason;
  const int64_t silent = now - worker.heard_ns;
  if (silent < kSoonAfter)
    return absl::StrCat(reason, " at once: its process has ended, or the connection was reset");
  return absl::StrCat(reason, " after ", Seconds(silent),
                      " of silence: its process is stopped, or its machine or network cannot be reached");
}

// Returns the end of the grace. Both ends must see the same outage. The worker notices a dead connection at
// most `detection_ns` after the last message, and then tries to come back; the coordinator may have noticed
// earlier. A connection that was reset is known to both at once.
int64_t WorkerSessions::GraceEnd(int64_t now, const Worker& worker) const {
  if (!runs_.IsRunning(worker.run)) return now + options_.detection_ns + options_.grace_ns;
  if (now - worker.heard_ns < kSoonAfter) return now + options_.grace_ns;
  return std::max(now, worker.heard_ns + options_.detection_ns) + options_.grace_ns;
}

void WorkerSessions::Resume(int64_t now, SessionId session) {
  Worker* w = workers_.Find(session);
  if (w == nullptr || !w->broken) return;
  w->broken = false;
  w->deadline = w->returning ? now + options_.hello_ns : kNever;
  w->heard_ns = now;
}

// ---- Hello and the end

absl::StatusOr<Worker*> WorkerSessions::Check(const Worker& worker, const Hello& hello) {
  if (worker.greeted) return absl::FailedPreconditionError("a second Hello in one session");
  Worker* same = workers_.FindByName(hello.worker);
  if (same == nullptr || same->broken) return same;
  return absl::AlreadyExistsError(absl::StrCat("a worker of this name is connected: ", same->Label(),
                                               "; give each worker another --name"));
}

absl::Status WorkerSessions::Greet(StepEffects& out, Worker& worker, Hello& hello) {
  const auto reserved = [this](int32_t process) { return runs_.Awaits(process); };
  absl::StatusOr<int32_t> number = workers_.NumberFor(hello.process, reserved);
  // One that comes back asks for the number of its attempt, which cannot go on if another has it.
  if (!number.ok() && hello.returns) number = workers_.NumberFor(-1, reserved);
  if (!number.ok()) return number.status();
  worker.greeted = true;
  worker.returning = hello.returns;
  worker.hello = std::move(hello);
  worker.process = *number;
  worker.deadline = worker.returning ? out.now + options_.hello_ns : kNever;
  out.Send(worker.session, Welcome{options_.epoch, worker.process});
  out.effects.workers.push_back({WorkerChange::Kind::kJoined, worker.Label(), ""});
  return absl::OkStatus();
}

LostWorker WorkerSessions::Remove(StepEffects& out, Worker& worker, WorkerChange::Kind kind,
                                  const std::string& reason) {
  const LostWorker lost{worker.session, worker.serves() ? worker.run : 0};
  const std::string label = worker.Label();
  workers_.Remove(lost.session);
  if (kind == WorkerChange::Kind::kLost) ++out.counts.workers_lost;
  out.effects.workers.push_back({kind, label, reason, lost.run});
  auto& closed = out.effects.closed;
  const bool reported = std::any_of(closed.begin(), closed.end(),
                                    [&](const CloseSession& c) { return c.session == lost.session; });
  if (!reported) closed.push_back({lost.session, absl::AbortedError(absl::StrCat(label, ": ", reason))});
  return lost;
}

// ---- the end of a run

void WorkerSessions::Abort(StepEffects& out, Worker& worker, const std::string& reason) {
  out.Send(worker.session, weft::Abort{worker.run, reason});
  worker.ending_since_ns = out.now;
  worker.reported_late = false;
}

void WorkerSessions::Free(StepEffects& out, Worker& worker) {
  worker.run = 0;
  worker.failed_last = false;
  LetGo(out, worker);
}

void WorkerSessions::Leave(StepEffects& out, Worker& worker) {
  worker.leaving = true;
  LetGo(out, worker);
}

void WorkerSessions::Expel(StepEffects& out, Worker& worker, const std::string& reason) {
  worker.leaving = true;
  out.Send(worker.session, Shutdown{reason});
}

void WorkerSessions::Forgotten(StepEffects& out, Worker& worker, uint64_t run) {
  if (!worker.ending() || worker.run != run) return;  // after Finished it was free already
  worker.run = 0;
  worker.ending_since_ns = 0;
  LetGo(out, worker);
  if (!std::exchange(worker.reported_late, false)) return;
  out.effects.workers.push_back(
      {WorkerChange::Kind::kBack, worker.Label(), absl::StrCat("it has ended run ", run)});
}

void WorkerSessions::LetGo(StepEffects& out, const Worker& worker) {
  if (worker.leaving && worker.run == 0 && !worker.returning)
    out.Send(worker.session, Shutdown{/*reason=*/""});
}

// ---- time

int64_t WorkerSessions::next_due() const {
  int64_t next = kNever;
  for (const auto& [session, w] : workers_.all()) {
    next = std::min(next, w.deadline);
    if (w.ending() && !w.reported_late) next = std::min(next, w.ending_since_ns + options_.ending_ns);
    if (w.serves() && runs_.IsRunning(w.run)) next = std::min(next, w.heard_ns + options_.lease_ns);
  }
  return next;
}

void WorkerSessions::Excuse(int64_t now) {
  for (auto& [session, worker] : workers_.all()) worker.heard_ns = now;
}

std::optional<std::string> WorkerSessions::Overdue(StepEffects& out, Worker& worker) {
  const int64_t now = out.now;
  if (now >= worker.deadline && !worker.greeted) {
    out.effects.closed.push_back({worker.session, absl::DeadlineExceededError("the worker sent no Hello")});
    workers_.Remove(worker.session);
    return std::nullopt;
  }
  if (now >= worker.deadline && !worker.broken) {
    return absl::StrCat("it did not tell within ", Seconds(options_.hello_ns),
                        " what it has of the time before its session");
  }
  if (now >= worker.deadline) {
    return absl::StrCat("its session broke and did not come back within ", Seconds(now - worker.broken_ns),
                        ": ", worker.broken_reason);
  }
  if (worker.ending() && !worker.reported_late && now >= worker.ending_since_ns + options_.ending_ns) {
    worker.reported_late = true;
    out.effects.workers.push_back(
        {WorkerChange::Kind::kBusy, worker.Label(),
         absl::StrCat("it was told ", Seconds(options_.ending_ns), " ago that run ", worker.run,
                      " is over, and still holds it; other runs go to others")});
  }
  if (!worker.serves() || !runs_.IsRunning(worker.run) || now < worker.heard_ns + options_.lease_ns)
    return std::nullopt;
  ++out.counts.leases_expired;
  return absl::StrCat("it was silent for ", Seconds(options_.lease_ns), worker.broken ? "; " : "",
                      worker.broken ? worker.broken_reason : "");
}

// ---- questions

bool WorkerSessions::IsSilent(const Worker& worker, int64_t now) const {
  return worker.serves() && runs_.IsRunning(worker.run) && now - worker.heard_ns >= kSoonAfter;
}

WorkerInfo WorkerSessions::Describe(const Worker& w, int64_t now) const {
  const char* const state = w.broken           ? "broken"
                            : IsSilent(w, now) ? "silent"
                            : w.leaving        ? "leaving"
                            : w.ending()       ? "ending"
                            : w.free()         ? "free"
                                               : "busy";
  return {
      w.process, w.hello.worker,   w.hello.host, w.hello.pid,           w.hello.device,  state,
      w.run,     now - w.heard_ns, w.hello.pool, std::string(w.node()), w.hello.release, w.hello.libraries};
}

std::vector<WorkerInfo> WorkerSessions::List(int64_t now) const {
  std::vector<WorkerInfo> list;
  for (const auto& [session, w] : workers_.all()) {
    if (w.greeted) list.push_back(Describe(w, now));
  }
  std::sort(list.begin(), list.end(),
            [](const WorkerInfo& a, const WorkerInfo& b) { return a.process < b.process; });
  return list;
}

void WorkerSessions::Count(Probe* probe) const {
  for (const auto& [session, w] : workers_.all()) {
    if (!w.greeted) continue;
    probe->workers_chosen_last += w.failed_last ? 1 : 0;
    ++(w.broken     ? probe->workers_broken
       : w.ending() ? probe->workers_ending
                    : (w.run == 0 ? probe->workers_free : probe->workers_busy));
  }
}

}  // namespace weft
