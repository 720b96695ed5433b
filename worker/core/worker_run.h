// Decides, for one run and the ranks of one process, which job each rank starts, and what it publishes and
// reports.
//
// A job comes to run in four steps. The coordinator grants it (claimed, ahead of time). The worker wants its
// tensors that come from other processes. As inputs arrive and earlier jobs end, its count of missing inputs
// falls to zero. Then it is ready, and starts when its rank is idle and it has the smallest priority among
// the admissible ready jobs (the greedy rule of schedules/dispatch/dispatch.h). If the schedule has
// overlapped pairs, the second of a pair also starts while its rank computes the forward alone.
//
// A device is given jobs and does them later, in order. There a job is first launched: its rank's thread is
// free, and the job has ended as far as ranks of this process are concerned, whose jobs the device does
// behind it, on its outputs and in the memory that it gives up. So the rank starts the next, until as many as
// the device takes have not been done. The rest of the world learns of a job (completions, notices of order
// to other ranks, the end of the run) only when it is done. Tensors for other processes are published when
// the job is launched; their sender waits for their bytes. On a device whose jobs are done when their calls
// return, no job is launched.
//
// Each part of this that has a state of its own is a machine of its own, which this class steps: granted jobs
// until they can start (pending_jobs.h), the inputs that are wanted (tensor_wants.h), versions of weights
// (rank_versions.h), snapshots (announced_snapshots.h), copies of the state (state_copies.h), and of each
// rank its jobs in flight, activations and clock (local_ranks.h).
//
// Invariants:
//   1. A rank runs one job at a time, or a forward and, beside it, one of the jobs that its order pairs with
//      it, started while the forward was in flight. A job that is not of the pair starts when the rank is
//      idle. A job starts once, after all its predecessors ended. Behind launched jobs: it starts when the
//      rank's threads are free, and its predecessors ended or are launched in this process. A job that starts
//      beside a launched forward needs nothing of that.
//   2. Forwards of a stage with a limit are admitted in claim order, so whatever the durations, a job that is
//      earlier in the claim order never waits for one that is later.
//   3. Under a byte budget a forward starts only with its ticket (schedules/dispatch/admission.h).
//   4. After a failure or an abort no job starts; jobs that are still running or launched are waited for.
//
// Pure; the owner calls one method at a time. Failure: the first one of the run is reported once.
#ifndef WEFT_WORKER_CORE_WORKER_RUN_H_
#define WEFT_WORKER_CORE_WORKER_RUN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/session/messages.h"
#include "schedules/dispatch/admission.h"
#include "schedules/sync/given_tensors.h"
#include "worker/core/announced_snapshots.h"
#include "worker/core/local_ranks.h"
#include "worker/core/local_run.h"
#include "worker/core/pending_jobs.h"
#include "worker/core/rank_versions.h"
#include "worker/core/run_preparation.h"
#include "worker/core/state_copies.h"
#include "worker/core/tensor_wants.h"
#include "worker/core/worker_effects.h"

namespace weft {

class WorkerRun {
 public:
  // `launch_ahead`: see WorkerCore.
  WorkerRun(int64_t now, const Assign& assign, LocalRun::Shape shape, int launch_ahead);

  PrepareEffect Preparation() const;
  void OnPrepared(int64_t now, WorkerEffects* out);
  // Returns true if the grant is for a rank of this process, under its lease.
  bool Takes(const Grant& grant) const;
  // The next six require that the run has not failed, but for the jobs, which end in any case.
  void OnGrant(int64_t now, const Grant& grant, WorkerEffects* out);
  void OnTensor(int64_t now, const TensorKey& key, const TensorArrival& arrival, WorkerEffects* out);
  void OnJointOperationDone(int64_t now, Rank rank, const Job& job, WorkerEffects* out);
  void OnJobLaunched(int64_t now, Rank rank, const Job& job, bool last,
                     std::optional<int64_t> activation_bytes, WorkerEffects* out);
  void OnJobDone(int64_t now, const JobDone& done, WorkerEffects* out);
  void OnTensorTaken(int64_t now, const TakenTensor& taken, WorkerEffects* out);
  // Notes that the ranks have begun with copies of their state; that copies of the step are in this process's
  // memory.
  void OnResumed(int64_t now, WorkerEffects* out);
  void OnCopiesMade(int step, WorkerEffects* out) { copies_.Made(step, out); }
  // Returns the same as that of WorkerCore.
  bool AwaitsTaking(const Job& job) const {
    return job.kind == run_.graph().final_backward() && admission_.HandsOut(job.stage);
  }
  // Announces a snapshot of the step. Returns how many stages, or slices of stages, of this process are in
  // it; -1 if one of their updates has begun, or the step is not one of the run.
  int AnnounceSnapshot(int step);

  // Notes that the weights of the step are to be validated: their checkpoint, if there is one, is complete.
  void OnValidate(int step) { has_results_ = has_results_ || step == run_.steps(); }

  // The ends of a run: it fails here, the coordinator aborts it, all its jobs are done, and it is over.
  void OnFailure(int64_t now, Failed failure, WorkerEffects* out);
  void Abort(WorkerEffects* out);
  void Finish(int64_t now);
  void End() { finishing_ = failed_ = true; }
  // True after any end but Finish: no job starts any more.
  bool failed() const { return failed_; }
  bool aborted() const { return aborted_; }
  bool finishing() const { return finishing_; }
  // Returns true if the run has finished but for a validation of its last weights by this process.
  bool has_results() const { return has_results_; }
  // Returns true if this process has no job until the coordinator grants one, but for gradients to take.
  bool AwaitsGrants() const { return prepared_ && !failed_ && pending_.claimed() == 0; }

  const LocalRun& facts() const { return run_; }
  std::vector<Rank> ranks() const { return ranks_.Numbers(); }
  // Return the same as those of WorkerCore.
  const RankClock& ClockAt(int64_t now, Rank rank) { return ranks_.ClockAt(now, rank); }
  const LocalRank& StateOf(Rank rank) const { return ranks_.Of(rank); }
  const RankVersions& versions() const { return versions_; }

 private:
  // Hands on what others begin with, and drops what nobody reads.
  void BeginVersions(WorkerEffects* out);
  void PublishInitialWeights(WorkerEffects* out);
  bool InstallsLate(const Job& update) const;
  void InputArrived(JobId id, int microbatch, WorkerEffects* out);
  // Wants the inputs of a claimed job, and those of forwards that have their ticket now.
  void WantInputs(int64_t now, LocalRank& rank, const Job& job, WorkerEffects* out);
  void WantAdmitted(int64_t now, LocalRank& rank, WorkerEffects* out);
  void StartJobs(int64_t now, WorkerEffects* out);
  std::optional<StartEffect> TakeJob(int64_t now, LocalRank& rank, WorkerEffects* out);
  std::optional<JobId> TakeOverlapped(LocalRank& rank, bool* waits) const;
  StartEffect MakeStart(LocalRank& rank, JobId id, WorkerEffects* out);
  OldVersion OldVersionOf(const Job& update, int version);
  void NextRound(int64_t now, JobId id, WorkerEffects* out);
  enum class Outputs : uint8_t { kAll, kAtLaunch, kWhenDone };
  // Hands on what the rank and the waiting jobs may go on with. Returns false if the run has failed in it.
  bool HandOn(int64_t now, LocalRank& rank, const Job& job, std::optional<int64_t> activation_bytes,
              Outputs outputs, WorkerEffects* out);
  // `made`: the time, where the job is done.
  void PublishOutputs(const Job& job, Outputs outputs, WorkerEffects* out, int64_t made = 0);
  // Returns true if the room of a micro-batch comes back when the device has done the backward: within a
  // budget, the device has the memory until then.
  bool FreesWhenDone() const { return run_.graph().terms().memory.has_value(); }
  void PublishEdge(const Edge& edge, WorkerEffects* out);
  // Lets jobs wait until what is published has been taken, if they must. Returns the note to be given then.
  std::optional<TakenTensor> AwaitTaking(const Edge& edge);
  // Notes when an input of a launched job was made on the device.
  void NoteMade(const Job& consumer, int64_t made);
  void LeaveEndedSteps(WorkerEffects* out);
  // Keeps the versions of weights that the copies of the next steps need.
  void KeepVersionsForCopies();
  IdleCause CauseOf(const LocalRank& rank) const;
  void UpdateIdle(int64_t now);

  const LocalRun run_;
  const int launch_ahead_;
  const AdmissionOrder admission_;
  const GivenTensors given_;
  const ComputedStages computed_;
  LocalRanks ranks_;
  PendingJobs pending_;
  TensorWants wants_;
  RankVersions versions_;
  AnnouncedSnapshots snapshots_;
  StateCopies copies_;
  int versions_kept_for_;  // first step whose copy has not told `versions_` what it needs
  bool prepared_ = false;
  // The way of an attempt that begins with copies: it wants them with its first grant, when all processes
  // have begun the attempt; until they are here no job starts. Any other attempt has its state when it is
  // prepared.
  enum class State : uint8_t { kAwaited, kWanted, kHere } state_ = State::kHere;
  bool finishing_ = false, failed_ = false, aborted_ = false, has_results_ = false;
  int running_ = 0;  // jobs in flight
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_WORKER_RUN_H_
