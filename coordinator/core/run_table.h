// Keeps the runs: by number, by the request that submitted them, and in the order in which they ended.
//
// It takes submissions within the limits of the options, knows a repeated request again, and forgets the runs
// that ended longest ago. The effects carry the records from which a store can begin this table anew
// (records.h).
//
// Invariants: a number is given once; `live` holds the runs that have not ended, ascending, and each of them
// is either in `waiting` or in `active`; at most `runs_kept` runs that ended are remembered. Addresses of
// runs are stable until they are forgotten. Submitting and ending a run take no time that grows with those
// that wait. Pure; one thread; owns the runs.
#ifndef WEFT_COORDINATOR_CORE_RUN_TABLE_H_
#define WEFT_COORDINATOR_CORE_RUN_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/run.h"
#include "coordinator/core/running_time.h"
#include "coordinator/core/waiting_runs.h"

namespace weft {

class RunTable {
 public:
  explicit RunTable(const CoreOptions& options) : options_(options), next_run_(options.last_run + 1) {}

  // Reserves a number for a run that is not submitted yet; Return gives it back, if none was reserved since.
  uint64_t Reserve() { return next_run_++; }
  void Return(uint64_t run) { next_run_ -= run + 1 == next_run_ ? 1 : 0; }
  uint64_t next_run() const { return next_run_; }

  // Takes a submission and sets its run's number; for a repeated request, the number that it has.
  // AlreadyExists if the request had other content; Unavailable after Close; ResourceExhausted,
  // InvalidArgument.
  absl::Status Submit(StepEffects& out, SubmitRun& submission, uint64_t* id);
  // Takes up a run as it was stored. It may wish to end at once.
  Run& Restore(StepEffects& out, RestoreRun& run);
  // Takes no new submissions any more.
  void Close() { closed_ = true; }
  bool closed() const { return closed_; }

  // Files a run under those that wait or those that are active, whose state or deadline has changed.
  void File(Run& run);
  // Files a run that has been closed under those that ended, and forgets the oldest. May forget the run
  // itself.
  void Retire(StepEffects& out, uint64_t id);

  Run* Find(uint64_t id);
  const Run* Find(uint64_t id) const;
  bool KnowsRequest(const std::string& request) const {
    return !request.empty() && run_of_request_.count(request) > 0;
  }
  // Returns true if a run awaits a process of this number, to go on with its attempt.
  bool Awaits(int32_t process) const;
  bool IsRunning(uint64_t id) const;
  const std::vector<uint64_t>& live() const { return live_; }
  // Return the runs that wait for worker processes, and the others that have not ended, by number: they have
  // processes, or await those that they had.
  WaitingRuns& waiting() { return waiting_; }
  const WaitingRuns& waiting() const { return waiting_; }
  const std::map<uint64_t, Run*>& active() const { return active_; }
  // Notes that the deadline of an active run, or whether it is running, may have changed.
  void NoteChange(const Run& run) {
    active_dues_.Set(run.id(), run.next_due());
    if (run.state() != RunState::kRunning) {
      running_.erase(run.id());
    } else {
      running_.insert(run.id());
    }
  }
  // Returns the earliest deadline of the runs, as they were filed or noted last.
  int64_t next_due() const { return std::min(waiting_.dues().earliest(), active_dues_.earliest()); }
  // Notes, at the end of a step of the core, whether a run is running from now on.
  void NoteRunning() { running_time_.Set(!running_.empty()); }
  // Lets the time pass since the last step of the core. `steps` as in RunningTime.
  void PassTime(int64_t now, uint64_t steps) { running_time_.Pass(now, steps); }
  // Counts the runs by state, and what the active ones do.
  void Count(int64_t now, Probe* probe) const;

  // Returns NotFound for a run that is not known, or not any more.
  absl::StatusOr<RunInfo> Info(uint64_t id) const;
  std::vector<RunInfo> List() const;  // by number; without reports and members

 private:
  void ForgetOldest(StepEffects& out);
  absl::Status CheckLimits(const SubmitRun& submission, int32_t processes) const;

  void AddLive(Run& run);

  const CoreOptions& options_;
  std::map<uint64_t, Run> runs_;
  std::map<std::string, uint64_t> run_of_request_;
  std::vector<uint64_t> live_;
  WaitingRuns waiting_;
  std::map<uint64_t, Run*> active_;
  RunDues active_dues_;
  std::set<uint64_t> running_;  // of the active runs, those that run
  RunningTime running_time_;
  std::map<uint64_t, int64_t> plan_bytes_of_;  // of the live runs, as they were taken in
  int64_t plan_bytes_ = 0;                     // sum of these
  std::deque<uint64_t> ended_;                 // in the order of their ends
  uint64_t next_run_;
  bool closed_ = false;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_TABLE_H_
