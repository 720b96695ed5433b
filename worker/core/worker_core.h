// Decides what a worker process does next: which tensors to want, which job each of its ranks starts, what to
// publish and report.
//
// It is the worker without threads, clock, sockets and LibTorch: events come in with the time, effects go out
// in order (worker_effects.h). The shell (worker/shell/loop/worker_loop.h) carries the effects out; the
// seeded simulation does so on a virtual clock. One core serves all ranks of one process, and one run at a
// time: it takes the messages of the session, and gives those of its present run to that (worker_run.h),
// which says how a job comes to run.
//
// Invariants:
//   1. A run that is assigned while an aborted one still computes begins when that is forgotten.
//   2. A grant under another token than the lease's changes nothing.
//   3. The process reports again, to a restarted coordinator, all of a run that it cannot know to be stored
//      (unsettled_work.h, held_copies.h).
//   4. A message of another run than the present one, or of one that has failed, changes nothing; an Abort is
//      answered in any case.
//
// Threads: none; the owner calls one method at a time.
#ifndef WEFT_WORKER_CORE_WORKER_CORE_H_
#define WEFT_WORKER_CORE_WORKER_CORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/session/messages.h"
#include "schedules/graph/graph.h"
#include "worker/core/held_copies.h"
#include "worker/core/local_run.h"
#include "worker/core/rank_clock.h"
#include "worker/core/tensor_key.h"
#include "worker/core/worker_effects.h"

namespace weft {

class UnsettledWork;
class WorkerRun;

class WorkerCore {
 public:
  using RunShape = LocalRun::Shape;
  // Makes a run's shape from its specification. InvalidArgument for a spec that cannot be run. The shell
  // gives it so that the core parses no files.
  using ParseSpec = std::function<absl::StatusOr<RunShape>(const std::string& spec)>;

  // `launch_ahead`: how many jobs of a rank the device is given before the first of them is done, and how
  // many more beside forwards.
  explicit WorkerCore(ParseSpec parse, int launch_ahead = 1);
  ~WorkerCore();

  void OnMessage(int64_t now, const FromCoordinator& message, WorkerEffects* out);
  // Returns true if there is something to tell a coordinator that does not know this process's session.
  bool has_to_tell() const { return GoesOn() || !copies_.empty(); }
  // Tells it that, behind a new Hello. Leaves a run that cannot be gone on with, as Abort does, and what was
  // to follow it.
  void Return(WorkerEffects* out);
  void OnPrepared(int64_t now, WorkerEffects* out);
  // Notes that the ranks have begun with copies of their state.
  void OnResumed(int64_t now, WorkerEffects* out);
  void OnTensor(int64_t now, const TensorKey& key, const TensorArrival& arrival, WorkerEffects* out);
  // Notes that the device has been given the job. `last` and `activation_bytes` as in JobDone.
  void OnJobLaunched(int64_t now, Rank rank, const Job& job, bool last,
                     std::optional<int64_t> activation_bytes, WorkerEffects* out);
  // Notes that a job is done. The launched jobs of a rank are done in the order in which they started; those
  // that started beside forwards in their own order.
  void OnJobDone(int64_t now, const JobDone& done, WorkerEffects* out);
  // Notes that a tensor has been taken by all: a gradient whose job AwaitsTaking, or one that was published
  // with a note. Of another attempt than the present one, that changes nothing.
  void OnTensorTaken(int64_t now, const TakenTensor& taken, WorkerEffects* out);
  // Takes the id of a group whose first member is here.
  void OnGroupId(int group, const std::string& id, WorkerEffects* out);
  // Notes that the collective that the job began is over; its result is on the device.
  void OnJointOperationDone(int64_t now, Rank rank, const Job& job, WorkerEffects* out);
  // Take the end of the writing that SnapshotEffect or SaveEffect asked for; `failure` says why it is not on
  // the disk.
  void OnSnapshotSaved(int step, const std::string& failure, WorkerEffects* out);
  // Notes that all copies of the step that this process makes are in its memory; or why one is not, which
  // fails the run.
  void OnCopiesMade(int64_t now, int step, const std::string& failure, WorkerEffects* out);
  void OnSealed(int step, const std::string& failure, WorkerEffects* out);
  // `validation` is of the present run.
  void OnValidation(Validation validation, WorkerEffects* out);
  void OnFinished(std::vector<RankReport> reports, WorkerEffects* out);
  // Notes a failure of the run here. The first one is reported to the coordinator. `failure.run` plays no
  // part.
  void OnFailure(int64_t now, Failed failure, WorkerEffects* out);

  // Notes that the shell has dropped the run; its figures are gone after this. The next run may have been
  // assigned meanwhile.
  void Forget(int64_t now, WorkerEffects* out);

  bool has_run() const { return run_ != nullptr; }
  // Returns true if this process has no job of its run until the coordinator grants one.
  bool AwaitsGrants() const;
  // Returns true if the last checkpoint of the run is complete: this process needs nothing of its peers.
  bool has_results() const;
  // Returns true if the core has to know when all have taken the gradient that the job of this run hands out.
  bool AwaitsTaking(const Job& job) const;
  uint64_t run_id() const;
  uint64_t epoch() const;
  const Graph* graph() const;

  // Returns the ranks of this process in the present run, ascending.
  std::vector<Rank> ranks() const;
  // Closes the open interval of the rank's clock at `now` and returns the clock.
  const RankClock& ClockAt(int64_t now, Rank rank);
  // Return the last intervals in which the rank was idle, and the last tensors that came to it from other
  // processes; a bounded number of each.
  std::vector<IdleSpan> idle_spans(Rank rank) const;
  std::vector<TransferSpan> transfer_spans(Rank rank) const;
  int peak_activations(Rank rank) const;
  // Returns the most versions of one stage's weights that the rank held; 0 if it holds none.
  int peak_weight_versions(Rank rank) const;
  // Returns the most that it holds now.
  int weight_versions(Rank rank) const;
  // Returns the grants, and ids of groups, of an attempt that is not the present one.
  uint64_t stale_grants() const { return stale_grants_; }

 private:
  // Returns true if the present run can go on under another coordinator.
  bool GoesOn() const;
  // Returns true if it is the present run, and has not failed.
  bool IsLive(uint64_t run) const;
  void OnAssign(int64_t now, const Assign& assign, WorkerEffects* out);
  void OnGrant(int64_t now, const Grant& grant, WorkerEffects* out);
  void OnTakeSnapshot(const TakeSnapshot& take, WorkerEffects* out);
  void OnIdOfGroup(const GroupId& id, WorkerEffects* out);
  void OnAbort(const Abort& abort, WorkerEffects* out);
  void OnTellSpans(int64_t now, const TellSpans& tell, WorkerEffects* out);

  // Notes, at the end of a call of the core, the messages of the run that it adds to the effects.
  class SendNote;
  void NoteSent(const FromWorker& message);

  ParseSpec parse_;
  const int launch_ahead_;
  std::unique_ptr<WorkerRun> run_;
  std::unique_ptr<UnsettledWork> unsettled_;  // of the run
  HeldCopies copies_;
  std::optional<Assign> next_;  // assignment that came while an ended run still has jobs that run
  std::vector<GroupId> next_ids_;
  uint64_t stale_grants_ = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_WORKER_CORE_H_
