// Implements the coordinator as a pure state machine: runs, workers, leases, jobs. Events and the time go in,
// effects come out.
//
// It decides everything and does nothing: no thread, clock, socket, file. The shell reports events and
// carries the effects out; the seeded simulation does the same with a network that fails (events.h).
//
// Invariants:
//   1. A message with a token other than the rank's current one changes nothing but a counter.
//   2. A job is done once; a completion of a job that was never granted ends the run and names the process.
//   3. A worker serves at most one run at a time; after an abort it is free only when it has reported that it
//      forgot the run. Runs start in the order of submission, each when as many workers are free as it needs;
//      one that needs more workers than are connected does not hold back the others.
//   4. Every wait has a deadline, and ends in a reason that names what was awaited.
//   5. The reported cause is the first: a failure reported by a process waits a moment for the death of
//      another that explains it.
//
// One thread owns it. Memory: per worker, per live run a window of steps, and the `runs_kept` runs that ended
// last.
#ifndef WEFT_COORDINATOR_CORE_COORDINATOR_CORE_H_
#define WEFT_COORDINATOR_CORE_COORDINATOR_CORE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/events.h"
#include "coordinator/core/probe.h"
#include "coordinator/core/run.h"
#include "coordinator/core/worker_table.h"
#include "proto/session/worker_info.h"

namespace weft {

struct CoreOptions {
  uint64_t epoch = 1;  // number that grows with every life of the coordinator
  // True if the coordinator's owner starts the workers: then a worker that ends before it connects fails the
  // runs that wait.
  bool fixed_workers = false;

  int64_t hello_ns = 30'000'000'000;  // time from opening a session to Hello
  // Time for a broken session to come back, once its worker must know.
  int64_t grace_ns = 10'000'000'000;
  int64_t detection_ns = 15'000'000'000;   // time in which a worker notices that its connection is dead
  int64_t waiting_ns = 600'000'000'000;    // time for as many worker processes as a run needs to connect
  int64_t preparing_ns = 300'000'000'000;  // time for every process to be Prepared
  int64_t progress_ns = 600'000'000'000;   // time without any job done
  // Silence of one process of a running run; workers report every second.
  int64_t silence_ns = 120'000'000'000;
  int64_t finishing_ns = 600'000'000'000;  // time for every process to be Finished
  int64_t blame_ns = 1'000'000'000;        // see invariant 5
  int64_t ending_ns = 10'000'000'000;  // time for Forgotten after Abort; then the worker is reported as late

  size_t runs_waiting = 1000;  // most submitted runs that have not ended
  // Most bytes of the plans of runs that have not ended (RunPlan::bytes).
  int64_t plan_bytes = int64_t{8} << 30;
  // Most bytes of the addresses that the processes of one run are sent.
  int64_t peer_bytes = int64_t{512} << 20;
  size_t runs_kept = 100;  // number of ended runs that are remembered: the last ones
};

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
  uint64_t ReserveRun() { return next_run_++; }
  void ReturnRun(uint64_t run) { next_run_ -= run + 1 == next_run_ ? 1 : 0; }
  // True if a run of this request, not "", is known.
  bool KnowsRequest(const std::string& request) const {
    return !request.empty() && run_of_request_.count(request) > 0;
  }

  // Return runs by number, with reports of the ranks so far; runs that ended long ago are forgotten.
  absl::StatusOr<RunInfo> GetRun(uint64_t run) const;
  std::vector<RunInfo> ListRuns() const;                   // without reports
  std::vector<WorkerInfo> ListWorkers(int64_t now) const;  // by process number
  Probe probe() const;

 private:
  void Handle(Event event);
  void On(SubmitRun& e);
  void On(CancelRun& e);
  void On(SessionOpened& e);
  void On(SessionMessage& e);
  void On(SessionBroken& e);
  void On(SessionResumed& e);
  void On(SessionClosed& e);
  void On(WorkerExited& e);
  void On(StopAll& e);
  void On(Tick&) {}

  void OnMessage(Worker& worker, Hello& m);
  void OnMessage(Worker& worker, Prepared& m);
  void OnMessage(Worker& worker, Credit& m);
  void OnMessage(Worker& worker, GroupId& m);
  void OnMessage(Worker& worker, Completions& m);
  void OnMessage(Worker& worker, Report& m);
  void OnMessage(Worker& worker, Failed& m);
  void OnMessage(Worker& worker, Finished& m);
  void OnMessage(Worker& worker, Forgotten& m);
  void OnMessage(Worker& worker, Stalled& m);
  void OnMessage(Worker& worker, SnapshotSaved& m);
  void OnMessage(Worker& worker, CheckpointSealed& m);
  void OnMessage(Worker& worker, Validation& m);

  // Returns the run that the worker serves if it is `id`, else null, and counts the message as fenced.
  Run* ServedRun(const Worker& worker, uint64_t id);
  // Does the same, and checks that the rank is the worker's and the token current.
  Run* LeasedRun(const Worker& worker, uint64_t id, Rank rank, const Token& token);
  Run* FindRun(uint64_t id);

  absl::Status Submit(SubmitRun& e, uint64_t* id);
  absl::Status CheckPlanBytes(const RunPlan& plan) const;
  void StartWaiting();
  void Start(Run& run, const std::vector<Worker*>& workers);
  void BeginRunning(Run& run);
  void Complete(Run& run, Completions& m, const Worker& worker);
  void EndSteps(Run& run);
  void MergeReports(Run& run, std::vector<RankReport>& reports, const Worker& worker);
  void GrantAll();
  void GrantTo(Run& run);
  bool AnnounceSnapshots(Run& run);
  void Announce(Run& run, int32_t step);
  void Seal(Run& run, int32_t step, bool drop);
  void BeginValidation(Run& run);
  void TellNotValidated(Run& run, int32_t step, const std::string& cause);
  void SaveAndCancel(Run& run, const std::string& reason);
  void EndStopped(Run& run);
  void BeginFinishing(Run& run);
  void Fail(Run& run, const std::string& reason);
  void EndRun(Run& run, RunState state, const std::string& reason);
  void TellStalls(Run& run);
  void ForgetOldRuns();
  void Lose(Worker& worker, WorkerChange::Kind kind, const std::string& reason);
  void Refuse(SessionId session, const absl::Status& status);
  void CheckDeadlines();
  void CheckRun(Run& run);
  std::string CauseOfFailure(const Run& run) const;
  // Describes the known cause why a session broke, and until when it may come back.
  std::string CauseOfBreak(const Worker& worker, const std::string& reason) const;
  int64_t GraceEnd(const Worker& worker) const;
  void CheckWorkers();
  void Send(SessionId session, FromCoordinator message);
  void Changed(const Run& run);

  const CoreOptions options_;
  WorkerTable workers_;
  std::map<uint64_t, Run> runs_;
  std::map<std::string, uint64_t> run_of_request_;
  std::vector<uint64_t> live_;  // runs that have not ended, by number
  std::deque<uint64_t> ended_;  // ended runs that are remembered, in the order of their ends
  uint64_t next_run_ = 1;
  uint64_t epoch_;
  uint64_t next_token_ = 1;
  bool stopped_ = false;
  Probe probe_;
  // The state on which the queue of waiting runs depends, as of the last look.
  struct QueueState {
    size_t free = 0, connected = 0, live = 0;
    uint64_t next_run = 0;
    friend bool operator==(const QueueState&, const QueueState&) = default;
  } queue_state_;

  // Values of the current Step.
  int64_t now_ = 0;
  Effects effects_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_COORDINATOR_CORE_H_
