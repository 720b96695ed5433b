// Implements the coordinator as a pure state machine: runs, workers, leases, jobs. Events and the time go in,
// effects come out.
//
// It decides everything and does nothing: no thread, clock, socket, file. The shell reports events and
// carries the effects out; the seeded simulation does the same with a network that fails (events.h). The core
// itself only joins four state machines, which do not know each other's decisions:
//
//   WorkerSessions  the sessions of worker processes, from Hello to their end (worker_sessions.h)
//   RunTable        the runs: submission, limits, requests, what is remembered (run_table.h)
//   RunQueue        which waiting run starts, on which workers (run_queue.h)
//   Run             one run, from its assignment to its end, with its checkpoints (run.h, run_checkpoints.h)
//
// It hands each message to the run that its worker serves, tells a run the loss of a worker, and, when a run
// wishes to end, frees its workers and closes it.
//
// Invariants:
//   1. A message with a token other than the rank's current one changes nothing but a counter.
//   2. A job is done once; a completion of a job that was never granted ends the run and names the process.
//   3. A worker serves at most one run at a time; after an abort it is free only when it has reported that it
//      forgot the run. Runs start in the order of their queue (run_queue.h), each when as many workers are
//      free as it needs; one that needs more workers than are connected does not hold back the others.
//   4. Every wait has a deadline, and ends in a reason that names what was awaited.
//   5. The effects name the records on which they rest (records.h). A core that gets these back as RestoreRun
//      events takes each run up at a point that no message has passed.
//   6. The reported cause is the first: a failure reported by a process waits a moment for the death of
//      another that explains it.
//
// A Step that only takes what workers say of the work of their runs looks at no worker but those that speak,
// and at no run but theirs.
//
// One thread owns it. Memory: per worker, per live run a window of steps, and the `runs_kept` runs that ended
// last.
#ifndef WEFT_COORDINATOR_CORE_COORDINATOR_CORE_H_
#define WEFT_COORDINATOR_CORE_COORDINATOR_CORE_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/core_options.h"
#include "coordinator/core/events.h"
#include "coordinator/core/probe.h"
#include "coordinator/core/run_queue.h"
#include "coordinator/core/run_table.h"
#include "coordinator/core/span_requests.h"
#include "coordinator/core/step_effects.h"
#include "coordinator/core/worker_sessions.h"
#include "proto/session/worker_info.h"

namespace weft {

class CoordinatorCore {
 public:
  explicit CoordinatorCore(CoreOptions options);

  Effects Step(int64_t now, Event event);
  // Does the same as one by one, but grants jobs once, behind the last: grants of a batch travel together.
  Effects Step(int64_t now, std::vector<Event> events);

  // Returns when Step should be called though nothing happened; INT64_MAX for never.
  int64_t next_deadline() const;

  // Reserves a number for a run that is not submitted yet; ReturnRun gives it back, if none was reserved
  // since.
  uint64_t ReserveRun() { return runs_.Reserve(); }
  void ReturnRun(uint64_t run) { runs_.Return(run); }
  // Returns true if a run of this request, not "", is known.
  bool KnowsRequest(const std::string& request) const { return runs_.KnowsRequest(request); }
  bool Knows(uint64_t run) const { return runs_.Find(run) != nullptr; }

  // Return runs by number, with reports of the ranks so far; runs that ended long ago are forgotten.
  absl::StatusOr<RunInfo> GetRun(uint64_t run) const { return runs_.Info(run); }
  std::vector<RunInfo> ListRuns() const { return runs_.List(); }  // without reports
  std::vector<WorkerInfo> ListWorkers(int64_t now) const { return sessions_.List(now); }
  // Returns the worker of that name, or whose process has that number.
  absl::StatusOr<WorkerInfo> GetWorker(int64_t now, const std::string& worker) const;
  Probe probe() const;
  const RunTable& runs() const { return runs_; }
  const WorkerSessions& sessions() const { return sessions_; }

 private:
  void On(SubmitRun& e);
  void On(RestoreRun& e);
  void On(CancelRun& e);
  void On(MoveRanks& e);
  void On(ReplanRun& e);
  void On(DrainWorker& e);
  void On(AskSpans& e);
  void On(SessionOpened& e) { sessions_.Open(out_.now, e.session); }
  void On(SessionMessage& e);
  void On(SessionBroken& e) { sessions_.Break(out_, e.session, e.reason); }
  void On(SessionResumed& e) { sessions_.Resume(out_.now, e.session); }
  void On(SessionClosed& e);
  void On(WorkerExited& e);
  void On(StopAll& e);
  void On(Tick&) {}
  void On(ChangeLimits& e) { static_cast<CoreLimits&>(options_) = e.limits; }

  void OnMessage(Worker& worker, Hello& m);
  void OnMessage(Worker& worker, Prepared& m);
  void OnMessage(Worker& worker, Failed& m);
  void OnMessage(Worker& worker, Leaving& m) { Drain(worker, m.reason); }
  void OnMessage(Worker& worker, CopiesHeld& m);
  void OnMessage(Worker& worker, Reattach& m);
  void OnMessage(Worker& worker, LogLines& m);
  void OnMessage(Worker& worker, Spans& m);
  void OnMessage(Worker& worker, Forgotten& m);
  // Hands any other message to the run that the worker serves.
  template <class Message>
  void OnMessage(Worker& worker, Message& m) {
    Run* run = ServedRun(worker, m.run);
    if (run == nullptr) return;
    if (!run->Defer(worker.session, m)) run->Take(out_, worker.session, m);
    Settle(*run);
  }

  // Tells runs whose processes come back that a worker does not come back to them.
  void NoteFresh(const Worker& worker);
  // Returns the processes of the run that can be asked for its spans.
  std::vector<SessionId> SpanTellers(const Run& run);
  // Returns the run that the worker serves if it is `id`, else null, and counts the message as fenced.
  Run* ServedRun(const Worker& worker, uint64_t id);
  absl::Status Move(const MoveRanks& order);
  void Drain(Worker& worker, const std::string& reason);
  // Ends the run if it wishes to. The run may be forgotten after this.
  void Settle(Run& run) {
    if (run.ending().has_value()) EndRun(run);
  }
  void EndRun(Run& run);
  void BeginLeases(Run& run);
  void StartWaiting();
  void ExpandRuns();
  bool IsWaitedFor(const std::string& pool) const;
  void BeginStep(int64_t now);
  void Take(Event& event);
  Effects EndStep();

  // Removes a worker that is gone for good, and tells its run. `worker` is dead after this.
  // `wrote`: as in WorkerExited.
  void Lose(Worker& worker, WorkerChange::Kind kind, const std::string& reason,
            const std::string& wrote = {});
  // Ends a session that broke the rules or never greeted.
  void Refuse(SessionId session, const absl::Status& status);

  void CheckDeadlines();
  void EndBlame(Run& run);

  // Returns the active runs that this Step may have changed: all, if it stirred; else those that it took
  // work of.
  std::vector<Run*> Changed();

  CoreOptions options_;
  RunTable runs_;
  WorkerSessions sessions_;
  RunQueue queue_;
  FencingNumbers numbers_;
  SpanRequests span_requests_;
  // True if this Step may have changed more than the work of runs. Only then are all workers looked at: there
  // may be many, and most Steps are work.
  bool stirred_ = false;
  std::set<uint64_t> worked_;      // runs that this Step took work of
  int64_t sessions_due_ = kNever;  // a time before which no session is overdue
  StepEffects out_;                // of the present Step; its counters are of the core's life
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_COORDINATOR_CORE_H_
