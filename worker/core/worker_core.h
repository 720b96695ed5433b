// Decides what a worker process does next: which tensors to want, which job each of its ranks starts, what to
// publish and report.
//
// It is the worker without threads, clock, sockets and LibTorch: events come in with the time, effects go out
// in order. The shell (worker/shell/loop/worker_loop.h) carries the effects out; the seeded simulation does
// so on a virtual clock. One core serves all ranks of one process, and one run at a time.
//
// How a job comes to run: the coordinator grants it (claimed, ahead of time); the core wants the tensors that
// come from other processes; as inputs arrive and earlier jobs end, its count of missing inputs falls to
// zero; then it is ready, and starts when its rank is idle and it has the smallest priority among the
// admissible ready jobs (the greedy rule of schedules/dispatch/dispatch.h). Where the schedule has overlapped
// pairs, the second of a pair also starts while its rank computes the forward alone.
//
// A device is given jobs and does them later, in order. There a job is first launched: its rank's thread is
// free, and the job has ended as far as ranks of this process are concerned, whose jobs the device does
// behind it, on its outputs and in the memory that it gives up. So the rank starts the next, until as many as
// the device takes have not been done. The rest of the world learns of a job (completions, notices of order
// to other ranks, the end of the run) only when it is done. Tensors for other processes are published when
// the job is launched; their sender waits for their bytes. Where jobs are done when their calls return
// nothing is launched.
//
// Where holders reduce by collectives (schedules/sync/joint_order.h), a reduce is started twice. First, when
// the backwards of its own rank have ended and the rank has begun the collective before it: it gives the
// rank's sum to the device's collective. Then, when OnJointOperationDone has told that this is over: it hands
// the result on. Between the two the rank goes on with other jobs. So is a forward or backward whose weights
// collectives gather: first, in the turn of its collective, it gives the rank's slice and room for the whole;
// then, when its other inputs are there too, it computes.
//
// Invariants:
//   1. A rank runs one job at a time, or a forward and, beside it, one of the jobs that its order pairs with
//      it, started while the forward was in flight. A job that is not of the pair starts when the rank is
//      idle. A job starts once, after all its predecessors ended. Behind launched jobs: it starts when the
//      rank's threads are free, and its predecessors ended or are launched in this process. A job that starts
//      beside a launched forward needs nothing of that.
//   2. Forwards of a stage with a limit are admitted in claim order, so whatever the durations, a job that is
//      earlier in the claim order never waits for one that is later.
//   3. Under a byte budget a forward starts only with its ticket (schedules/dispatch/admission.h). The
//   tickets of a
//      stage cost the counted bytes first, and the measured ones once its first forward has ended; a forward
//      that keeps more than was counted ends the run.
//   4. Micro-batch gradients are consumed in order of micro-batches, each once, as they arrive.
//   5. After a failure or an abort no job starts; jobs that are still running or launched are waited for.
//   6. A run that is assigned while an aborted one still computes begins when that is forgotten.
//   7. A grant under another token than the lease's changes nothing.
//   8. The weights of at most two jobs of a rank have been wanted from other processes and not dropped: of
//   the first two in claim order that fetch any and have not ended. Likewise of the jobs to which the state
//   of their stage comes from other processes.
//   9. A holder keeps a version of its weights as long as a job that reads it is pending, and the newest; an
//      older one is dropped when its last reader has ended and it has been handed to all that fetch it. A
//      rank that writes checkpoints keeps every version that later steps would read: to the end of the run,
//      and until an announced snapshot has been taken.
//   10. A snapshot of step k is taken of each stage behind its update of step k - 1 and before anything else
//       on that rank, by the rank that saves the stage, or, where states migrate, that makes version k.
//
// Threads: none; the owner calls one method at a time.
#ifndef WEFT_WORKER_CORE_WORKER_CORE_H_
#define WEFT_WORKER_CORE_WORKER_CORE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "proto/session/messages.h"
#include "schedules/dispatch/dispatch.h"
#include "schedules/graph/graph.h"
#include "worker/core/rank_clock.h"
#include "worker/core/tensor_key.h"

namespace weft {

// ---- effects, in the order in which they are to be carried out

struct SendEffect {
  FromWorker message;
};
// Connect to the peers, make the ranks and load their stages, write initial checkpoints, then call OnPrepared
// or OnFailure.
struct PrepareEffect {
  struct Stage {
    Rank rank;
    int stage;
    bool holds_weights;
    bool saves;           // true if this rank writes the stage, or its slice of it, into checkpoints
    bool adopts = false;  // true if it holds the weights, and another rank makes their versions
    // Its part of the stage: the whole, or slice `part` of `parts`.
    int part = 0, parts = 1;
    bool sums_own = false;  // true if it reduces by collectives: StageRole::sums_own
    // The stage's state comes with its jobs and leaves with them; who saves has it at the end of the run.
    bool state_travels = false;
  };
  // Ranks that have collectives together, the present one among them. The process of the first member makes
  // an id (OnGroupId), the others' get it by a JoinEffect; all join, one group after the other, before
  // OnPrepared.
  struct Group {
    int number;
    Rank rank;
    std::vector<Rank> members;
    int self;  // index among the members
  };
  Assign assignment;
  std::vector<Stage> stages;
  std::vector<Group> groups;  // ascending by number
};
// Take the id of a group, which has come.
struct JoinEffect {
  int group;
  std::string id;
};
// Ask process `process` for the tensor.
struct WantEffect {
  int32_t process;
  TensorKey key;
};
// How a job that begins with a joint operation is started (Graph::IsJoint).
enum class JointPart : uint8_t {
  kNone,   // it begins with none
  kBegin,  // give the rank's sum, or its slice of the weights, to the operation; then it is not the `last`.
           // OnJointOperationDone tells of its end.
  kEnd,    // its result is there
};
// Run the job on the rank's thread, or on its second thread, with these inputs, then call OnJobDone; or, once
// the device has been given it, OnJobLaunched, and OnJobDone when it has done it.
struct StartEffect {
  Rank rank;
  Job job;
  std::vector<TensorKey> inputs;  // inputs without gradients of micro-batches
  // Gradients for a job that consumes those of micro-batches: those to add now, in order; `last` when the job
  // can be finished after them.
  std::vector<TensorKey> gradients;
  bool last = true;
  // What the rank does for the job, in order; of a job that is started in two parts, what it does in both.
  std::vector<Operation> operations;
  bool Does(Operation operation) const {
    return std::find(operations.begin(), operations.end(), operation) != operations.end();
  }
  // Of a forward or backward: the version of the weights that it computes with. Of an update: the version
  // that it begins with, and whether jobs will still read that one, so that it has to stay beside the next.
  int version = 0;
  bool keeps_version = false;
  // The stage's state is on the rank while the job runs, and its weights are in that (Layout::kTravelling).
  bool has_state = false;
  JointPart part = JointPart::kNone;
  // A forward of the rank may still be computed: run the job on the second thread, beside it. There is at
  // most one such job of a rank at a time, and at most one other.
  bool beside = false;
  // True for an update behind which the rank takes a snapshot of the stage, of step job.step + 1.
  bool takes_snapshot = false;
};
// Hand an output of the job that just ended or was launched (or weights that the run begins with) to a rank
// of another process, once its bytes are there, or of this one (process -1).
struct PublishEffect {
  int32_t process;
  TensorKey key;
  int parts = 1;  // number of slices of a sliced gradient; the slice is key.part
};
// Drop this version of the rank's weights: only launched jobs still read it, and it has been published to all
// that fetch it.
struct DropEffect {
  Rank rank;
  int stage;
  int version;
};
// Expect so many stages, or slices of stages, of this process in the snapshot of the step: each comes with
// the end of an update that was started with `takes_snapshot`. When all have been written into the run's
// output, or one could not be, call OnSnapshotSaved.
struct SnapshotEffect {
  int step;
  int pieces;
};
// Write this process's part of the stages, as it is, into the run's output, since no job will run any more;
// then call OnSnapshotSaved.
struct SaveEffect {
  int step;
};
// Complete the checkpoint of the step, of which all processes have written their parts, or drop it; then call
// OnSealed.
struct SealEffect {
  int step;
  int keep;
  bool drop;
  bool validate = false, passing = false;  // as in SealCheckpoint
};
// Compute loss and accuracy of the weights that stay aside from that step; call OnValidation now and then,
// and at the end.
struct ValidateEffect {
  int step;
};
// Call OnFinished with the last reports.
struct FinishEffect {};
// Drop everything of the run, cancel its wants, then call Forget.
struct ForgetEffect {
  std::string reason;  // empty after a run that ended well
};
struct ExitEffect {
  std::string reason;
};

using WorkerEffect = std::variant<SendEffect, PrepareEffect, JoinEffect, WantEffect, StartEffect,
                                  PublishEffect, DropEffect, SnapshotEffect, SaveEffect, SealEffect,
                                  ValidateEffect, FinishEffect, ForgetEffect, ExitEffect>;
using WorkerEffects = std::vector<WorkerEffect>;

struct JobDone {
  Rank rank = 0;
  Job job;
  int64_t start_ns = 0, end_ns = 0;
  bool last = true;  // as in StartEffect
  std::optional<double> loss;
  std::optional<int64_t> left_bytes;  // measured bytes that a forward keeps until its backward
  // Norm of a reduce that clips: of its sum and the sums that came to it.
  std::optional<double> gradient_norm = {};
  bool launched = false;  // true if OnJobLaunched has reported it
};

class WorkerCore {
 public:
  // The job graph's sources: ParseSpec makes them from a specification. InvalidArgument for a spec that
  // cannot be run. The shell gives it so that the core parses no files.
  struct RunShape {
    Schedule schedule;
    int steps = 1;       // step before which the run ends
    int first_step = 0;  // first step; an earlier run made all before, whose checkpoint this one begins with
  };
  using ParseSpec = std::function<absl::StatusOr<RunShape>(const std::string& spec)>;

  // `launch_ahead`: how many jobs of a rank the device is given before the first of them is done, and how
  // many more beside forwards.
  explicit WorkerCore(ParseSpec parse, int launch_ahead = 1);
  ~WorkerCore();

  void OnMessage(int64_t now, const FromCoordinator& message, WorkerEffects* out);
  void OnPrepared(int64_t now, WorkerEffects* out);
  // Takes a wanted tensor that has arrived. `made`: when the job that made it ended, on this machine's clock;
  // 0 if unknown.
  void OnTensor(int64_t now, const TensorKey& key, int64_t made, WorkerEffects* out);
  // Notes that the device has been given the job. `last` and `left_bytes` as in JobDone.
  void OnJobLaunched(int64_t now, Rank rank, const Job& job, bool last, std::optional<int64_t> left_bytes,
                     WorkerEffects* out);
  // Notes that a job is done. The launched jobs of a rank are done in the order in which they started; those
  // that started beside forwards in their own order.
  void OnJobDone(int64_t now, const JobDone& done, WorkerEffects* out);
  // Takes the id of a group whose first member is here.
  void OnGroupId(int group, const std::string& id, WorkerEffects* out);
  // The collective that the job began is over; its result is on the device.
  void OnJointOperationDone(int64_t now, Rank rank, const Job& job, WorkerEffects* out);
  // What SnapshotEffect or SaveEffect asked for is on the disk, or `failure` says why it is not.
  void OnSnapshotSaved(int step, const std::string& failure, WorkerEffects* out);
  void OnSealed(int step, const std::string& failure, WorkerEffects* out);
  // `validation` is of the present run.
  void OnValidation(Validation validation, WorkerEffects* out);
  void OnFinished(std::vector<RankReport> reports, WorkerEffects* out);
  // Notes a failure of the run here. The coordinator is told once.
  void OnFailure(int64_t now, const std::string& reason, WorkerEffects* out);

  // Notes that the shell has dropped the run; its figures are gone after this. The next run may have been
  // assigned meanwhile.
  void Forget(int64_t now, WorkerEffects* out);

  bool has_run() const { return run_ != nullptr; }
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
  struct Run;
  struct RankState;

  void OnAssign(int64_t now, const Assign& assign, WorkerEffects* out);
  void OnGrant(int64_t now, const Grant& grant, WorkerEffects* out);
  void OnTakeSnapshot(const TakeSnapshot& take, WorkerEffects* out);
  int AddPieces(int step);
  void OnIdOfGroup(const GroupId& id, WorkerEffects* out);
  void JointOperationBegun(const Job& job);
  void Claim(RankState& rank, const Job& job, WorkerEffects* out);
  enum class Inputs : uint8_t { kAll, kWeights, kAllButWeights };
  void WantInputs(const Job& job, Inputs which, WorkerEffects* out);
  void WantWeights(RankState& rank, WorkerEffects* out);
  void InputArrived(int64_t id, int microbatch, WorkerEffects* out);
  void Consider(int64_t id);
  enum class Outputs : uint8_t { kAll, kAtLaunch, kWhenDone };
  bool HandOn(int64_t now, RankState& rank, const Job& job, std::optional<int64_t> left_bytes,
              Outputs outputs, WorkerEffects* out);
  void NextRound(int64_t now, int64_t id, WorkerEffects* out);
  void PopRows();
  void MeasureActivation(int64_t now, RankState& rank, const Job& forward, std::optional<int64_t> left_bytes,
                         WorkerEffects* out);
  void FreeActivation(RankState& rank, const Job& job);
  void CountVersions(RankState& rank, const Job& job, WorkerEffects* out);
  void Drop(WorkerEffects* out);
  // `made`: the time, where the job is done.
  void PublishOutputs(const Job& job, Outputs outputs, WorkerEffects* out, int64_t made = 0);
  // Notes when an input of a launched job was made on the device.
  void NoteMade(const Job& consumer, int64_t made);
  void PublishInitialWeights(WorkerEffects* out);
  void PublishEdge(const Edge& edge, WorkerEffects* out);
  void StartJobs(int64_t now, WorkerEffects* out);
  std::optional<StartEffect> TakeJob(int64_t now, RankState& rank);
  std::optional<int64_t> TakeBeside(RankState& rank, bool* waits) const;
  StartEffect MakeStart(RankState& rank, int64_t id);
  void UpdateIdle(int64_t now);
  IdleCause CauseOf(const RankState& rank) const;
  TensorKey KeyOf(const Edge& edge) const;

  ParseSpec parse_;
  const int launch_ahead_;
  std::unique_ptr<Run> run_;
  std::optional<Assign> next_;  // assignment that came while an ended run still has jobs that run
  std::vector<GroupId> next_ids_;
  uint64_t stale_grants_ = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_WORKER_CORE_H_
