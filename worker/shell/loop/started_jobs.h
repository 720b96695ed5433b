// Follows the jobs of this process's ranks from their start to their end: gathers what a job reads, takes
// what its thread returns, and what the device says of it later.
//
// A job returns done, or launched: then the device has it, and says later that it is done. One that begins
// with a joint operation hands its tensor to that (communicators.h) and is started again at its end. Where
// states migrate, the holders of a stage's state are followed (state_holders.h). In a run that records
// hashes, those of all rounds of a job are gathered until its end.
//
// Not thread-safe; the owner locks. Ownership: borrows what the constructor takes.
// Failure: of a joint operation, and of a job on the device, with the status that names it.
#ifndef WEFT_WORKER_SHELL_LOOP_STARTED_JOBS_H_
#define WEFT_WORKER_SHELL_LOOP_STARTED_JOBS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "run/run_spec.h"
#include "schedules/graph/graph.h"
#include "worker/core/worker_core.h"
#include "worker/shell/loop/communicators.h"
#include "worker/shell/loop/device_work.h"
#include "worker/shell/loop/job_runner.h"
#include "worker/shell/loop/loop_events.h"
#include "worker/shell/loop/rank_seats.h"
#include "worker/shell/loop/state_holders.h"
#include "worker/shell/loop/tensor_exchange.h"

namespace weft {

class StartedJobs {
 public:
  // The facts of a start that outlive its task.
  struct Start {
    Rank rank = 0;
    Job job;
    bool last = true, overlapped = false;  // as in StartEffect
    bool sends_state = false;
    LeftByUpdate leaves;
  };
  static Start FactsOf(const StartEffect& start);

  StartedJobs(RankSeats& seats, TensorExchange& exchange, Communicators& communicators,
              DeviceWork& device_work, const LoopEvents& events)
      : seats_(seats),
        exchange_(exchange),
        communicators_(communicators),
        device_work_(device_work),
        events_(events) {}

  // Begins a run. `graph` stays until Clear.
  void BeginRun(const Graph& graph, std::shared_ptr<const RunSpec> spec);
  // Forgets the run.
  void Clear();

  // Gathers all that the job reads.
  JobTask Gather(StartEffect effect);
  // Takes what the job's thread returned; if the device has the job, its work is followed from now on.
  // Returns the failure of the joint operation that begins, if one does.
  absl::Status Returned(int64_t now, const Start& start, const JobOutcome& outcome);
  // Returns what the core is to know of the end of a job that returned done.
  JobDone Done(const Start& start, const JobOutcome& outcome);
  // Returns it of a job that the device has done, or failed to do: then `ended` says why.
  JobDone DoneOnDevice(int64_t now, const LaunchedJobs::Launch& launch, LaunchedJobs::Ended* ended);

 private:
  absl::Status BeginJointOperation(int64_t now, const Start& start, const JobOutcome& outcome);
  std::vector<ValueHash> TakeHashes(const Job& job);

  RankSeats& seats_;
  TensorExchange& exchange_;
  Communicators& communicators_;
  DeviceWork& device_work_;
  const LoopEvents& events_;
  const Graph* graph_ = nullptr;  // null where there is no run
  std::shared_ptr<const RunSpec> spec_;
  StateHolders holders_;
  // Hashes of jobs that have more rounds to come, or that a device has been given.
  std::map<Job, std::vector<ValueHash>> hashes_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_STARTED_JOBS_H_
