// Leads the sessions of worker processes through their lives: opened, greeted, broken, resumed, gone.
//
// opened --Hello--> connected --connection lost--> broken --resumed in time--> connected
// (from any state) --> gone: closed by the worker, refused, replaced by its successor, late, silent
//
// It knows what a worker does only as far as WorkerTable says: which run it serves or ends. Every loss of a
// worker is reported to the caller once (LostWorker), which decides what that means to the run.
//
// Invariants: the first message of a session is Hello, in time; one connected session a name and a process
// number; a broken session ends after a grace time, and both ends count the same outage; a worker that was
// told to end a run and does not is reported as late once, and as back once. Refers to the runs, of which it
// asks whether they run, because workers of a running run report twice a second. Pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_WORKER_SESSIONS_H_
#define WEFT_COORDINATOR_CORE_WORKER_SESSIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/core_options.h"
#include "coordinator/core/run_table.h"
#include "coordinator/core/step_effects.h"
#include "coordinator/core/worker_table.h"
#include "proto/session/worker_info.h"

namespace weft {

// A worker that is gone for good.
struct LostWorker {
  SessionId session = 0;
  uint64_t run = 0;  // run that it served; 0 for none
};

class WorkerSessions {
 public:
  WorkerSessions(const CoreOptions& options, const RunTable* runs) : options_(options), runs_(*runs) {}

  WorkerTable& workers() { return workers_; }
  const WorkerTable& workers() const { return workers_; }
  std::vector<SessionId> Ids() const;

  void Open(int64_t now, SessionId session);
  // Reports that the connection of a session is gone. Ends the session of a worker that has not greeted.
  void Break(StepEffects& out, SessionId session, const std::string& reason);
  void Resume(int64_t now, SessionId session);

  // Checks a Hello: FailedPrecondition for a second one, AlreadyExists if a worker of this name is connected.
  // Returns the broken session that the worker comes back from as a new process, which is to be removed; null
  // for none.
  absl::StatusOr<Worker*> Check(const Worker& worker, const Hello& hello);
  // Takes the checked Hello. AlreadyExists if its process number is taken.
  absl::Status Greet(StepEffects& out, Worker& worker, Hello& hello);

  // Ends the session of a worker that is gone for good. `worker` is dead after this.
  LostWorker Remove(StepEffects& out, Worker& worker, WorkerChange::Kind kind, const std::string& reason);

  // Tells a worker that its run is over, before it has done its part; from now on it ends the run.
  void Abort(StepEffects& out, Worker& worker, const std::string& reason);
  // Frees a worker that has done its part of its run.
  static void Free(StepEffects& out, Worker& worker);
  // Notes that the worker wants to end. It may do so once it is free.
  static void Leave(StepEffects& out, Worker& worker);
  // Ends a worker that hangs: it takes no other run, and its supervisor may start it again.
  static void Expel(StepEffects& out, Worker& worker, const std::string& reason);
  // Takes the worker's word that it has forgotten an aborted run: it is free.
  static void Forgotten(StepEffects& out, Worker& worker, uint64_t run);

  // Counts the silence of all workers anew, because the coordinator itself stood still.
  void Excuse(int64_t now);
  // Returns when Overdue has something to say though nothing happened; INT64_MAX for never.
  int64_t next_due() const;
  // Checks the deadlines of one session. Ends it if no Hello came in time; reports a worker that ends its run
  // late. Returns the reason if the worker is to be removed as lost.
  std::optional<std::string> Overdue(StepEffects& out, Worker& worker);

  // Returns true if the worker has said nothing for longer than workers of a running run should.
  bool IsSilent(const Worker& worker, int64_t now) const;
  WorkerInfo Describe(const Worker& w, int64_t now) const;
  std::vector<WorkerInfo> List(int64_t now) const;  // by process number
  void Count(Probe* probe) const;

 private:
  // Lets a worker that wants to end do so, if it is free.
  static void LetGo(StepEffects& out, const Worker& worker);
  // Describes the known cause why a session broke, and until when it may come back.
  std::string CauseOfBreak(int64_t now, const Worker& worker, const std::string& reason) const;
  int64_t GraceEnd(int64_t now, const Worker& worker) const;

  const CoreOptions& options_;
  const RunTable& runs_;
  WorkerTable workers_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_WORKER_SESSIONS_H_
