// Defines what the worker core tells its shell to do, and what the shell tells it of jobs that are done.
//
// Plain values, in the words of the job graph. The shell carries out the effects of one call in their order.
#ifndef WEFT_WORKER_CORE_WORKER_EFFECTS_H_
#define WEFT_WORKER_CORE_WORKER_EFFECTS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "proto/session/messages.h"
#include "schedules/job.h"
#include "schedules/sync/protocol.h"
#include "worker/core/tensor_key.h"

namespace weft {

struct ScheduledRun;  // run/run_schedule.h

struct SendEffect {
  FromWorker message;
  // True if the message may not wait for others: it completes the last job of this process in a step.
  bool soon = false;
};
// Connect to the peers, make the ranks and load their stages, write initial checkpoints, then call OnPrepared
// or OnFailure.
struct PrepareEffect {
  struct Stage {
    Rank rank;
    int stage;
    bool holds_weights;
    bool saves;  // true if this rank writes the stage, or its slice of it, into checkpoints
    bool updated_elsewhere = false;  // true if it holds the weights, and another rank makes their versions
    bool installs_late = false;      // true if it then begins with the version before (Holder::installs_late)
    // Part of the stage: the whole, or slice `part` of `parts`.
    int part = 0, parts = 1;
    bool sums_own = false;  // true if it reduces by collectives: StageRole::sums_own
    // True if the state comes with its jobs and leaves with them; the rank that saves it has it at the end.
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
  std::vector<Group> groups;                // ascending by number
  std::shared_ptr<const ScheduledRun> run;  // LocalRun::Shape's
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
// Says what of its job a start does. A job may take several rounds, and only one of them is its last.
enum class JobRound : uint8_t {
  kLast,        // all of it, or what is left
  kGradients,   // add the gradients of micro-batches that are there; more will come
  kBeginJoint,  // give the rank's sum, or its slice of the weights, to the joint operation with which the job
                // begins (Graph::IsJoint); OnJointOperationDone tells of its end
  kEndJoint,    // the operation's result is there: do all the rest
};
// Says what becomes of the version of the weights that an update begins with.
enum class OldVersion : uint8_t {
  kWrittenOver,
  kStays,     // beside the new one: jobs will still read it
  kPutAside,  // before it is written over, for the save at the end of the run: steps behind the run's last
              // would read it
};
// Things that an update leaves besides the new version. Jobs of other kinds leave nothing.
struct LeftByUpdate {
  OldVersion old = OldVersion::kWrittenOver;
  // Snapshots of the stage behind the update, of step job.step + 1: for a checkpoint, and for a copy in
  // memory.
  bool snapshot = false, copy = false;

  bool keeps_old() const { return old == OldVersion::kStays; }
  bool takes_snapshot() const { return snapshot || copy; }
};
// Run the job on the rank's thread, or on its second thread, with these inputs, then call OnJobDone; or, once
// the device has been given it, OnJobLaunched, and OnJobDone when it has done it.
struct StartEffect {
  Rank rank;
  Job job;
  std::vector<TensorKey> inputs;  // inputs without gradients of micro-batches
  // Gradients for a job that consumes those of micro-batches: those to add now, in order.
  std::vector<TensorKey> gradients;
  JobRound round = JobRound::kLast;
  bool last() const { return round == JobRound::kLast || round == JobRound::kEndJoint; }
  // Operations of the rank for the job, in order, of all its rounds.
  std::vector<Operation> operations;
  bool Does(Operation operation) const {
    return std::find(operations.begin(), operations.end(), operation) != operations.end();
  }
  // Version of the weights that a forward or backward computes with, or that an update begins with.
  int version = 0;
  LeftByUpdate leaves;
  // The stage's state is on the rank while the job runs, and its weights are in that (Layout::kTravelling).
  bool has_state = false;
  // A forward of the rank may still be computed: run the job on the second thread, beside it. There is at
  // most one such job of a rank at a time, and at most one other.
  bool overlapped = false;
};
// A tensor that nobody has any more: a gradient that a job has handed out, or weights or a running sum that
// one reader had.
struct TakenTensor {
  uint64_t run = 0, epoch = 0;  // the attempt
  Rank rank = 0;                // the rank that made it
  int stage = 0;
  std::vector<Job> waiting = {};  // jobs that wait for the weights or the sum; none for a gradient
};
// Hand an output of the job that just ended or was launched (or weights that the run begins with) to a rank
// of another process, once its bytes are there, or of this one (process -1).
struct PublishEffect {
  int32_t process;
  TensorKey key;
  int parts = 1;  // number of slices of a sliced gradient; the slice is key.part
  // The note to be given once the tensor has been taken by its reader.
  std::optional<TakenTensor> note = std::nullopt;
};
// Drop this version of the rank's weights: only launched jobs still read it, and it has been published to all
// that fetch it.
struct DropEffect {
  Rank rank;
  int stage;
  int version;
};
// Expect so many stages, or slices of stages, of this process in the snapshot of the step: each comes with
// the end of an update that leaves a snapshot. When all have been written into the run's output, or one could
// not be, call OnSnapshotSaved.
struct SnapshotEffect {
  int step;
  int pieces;
};
// Expect so many parts of this process in the copies of the step: each comes with the end of an update that
// leaves a copy. When all are in the process's memory, call OnCopiesMade.
struct CopyEffect {
  int step;
  int parts;
};
// Make the ranks' stages from the copies of the step, which are all in this process's memory; then call
// OnResumed.
struct ResumeEffect {
  struct Stage {
    Rank rank;
    int stage;
    std::vector<StatePart> parts;  // that it is read from
  };
  uint64_t epoch;  // of the attempt that made the copies
  int step;
  std::vector<Stage> stages;
};
// Drops the run's copies but those of this epoch from this step on.
struct DropCopiesEffect {
  uint64_t run;
  uint64_t epoch;
  int step;
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
// Compute loss and metrics of the weights that stay aside from that step; call OnValidation now and then,
// and at the end.
struct ValidateEffect {
  int step;
};
// Call OnFinished with the last reports.
struct FinishEffect {};
// Drop everything of the run, cancel its wants, then call Forget.
struct ForgetEffect {};
struct ExitEffect {
  std::string reason;
};

using WorkerEffect =
    std::variant<SendEffect, PrepareEffect, JoinEffect, WantEffect, StartEffect, PublishEffect, DropEffect,
                 SnapshotEffect, SaveEffect, SealEffect, ValidateEffect, CopyEffect, ResumeEffect,
                 DropCopiesEffect, FinishEffect, ForgetEffect, ExitEffect>;
using WorkerEffects = std::vector<WorkerEffect>;

// A wanted tensor that has come from another process.
struct TensorArrival {
  int64_t made_ns = 0;  // when the job that made it ended, on this machine's clock; 0 if that is not known
  int64_t bytes = 0;
};

struct JobDone {
  Rank rank = 0;
  Job job;
  int64_t start_ns = 0, end_ns = 0;
  bool last = true;  // true if this was the last round of the job
  std::optional<double> loss;
  std::optional<int64_t> activation_bytes;  // measured bytes that a forward keeps until its backward
  // Norm of a reduce that clips: of its sum and the sums that came to it.
  std::optional<double> gradient_norm = {};
  bool launched = false;               // true if OnJobLaunched has reported it
  std::vector<ValueHash> hashes = {};  // of all rounds of the job, in a run that records them
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_WORKER_EFFECTS_H_
