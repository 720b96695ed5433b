// Defines the messages of a session as domain values: what a worker process and the coordinator say to each
// other about one run.
//
// The cores see these and never protobuf; proto/wire converts and validates. A session is one bidirectional
// stream; every message has a sequence number and is delivered in order, once (proto/session/link.h), so
// "applied, but the reply was lost" is an ordinary case.
//
// Life of a run on a session: Hello, Welcome; Assign, GroupId where it has collectives, Prepared; then Credit
// and Grant, Completions until every job is done; Finish, Finished, Forgotten. Abort ends it early, with a
// reason, from either side (Failed from the worker); the answer to it is Forgotten.
//
// Life of a checkpoint, in a run with an output folder: TakeSnapshot goes to every process, ahead of the
// grants of its step; each process writes its stages and answers SnapshotSaved; then SealCheckpoint goes to
// one process, which makes the checkpoint visible, or drops it if a process failed, and answers
// CheckpointSealed. The checkpoint of the run's end goes this way too, before Finish. The checkpoint of step
// 0 is written before Prepared, and has SealCheckpoint alone.
//
// Life of copies, in a run with redundancy: behind each step each process keeps in memory what its ranks
// save, and sends it to the next process; both say so (CopiesHeld). When all of a step is in two processes,
// DropCopies ends older ones. Copies outlive the attempt: the next Assign may name the processes that have
// them.
//
// Life of a session with a coordinator that was started again: Hello `returns`, Welcome; CopiesHeld with the
// run's id for each step of which the process keeps copies; Reattach, with the attempt that it serves; then
// again all that the coordinator may not have stored (Settled): completions, answers about snapshots and
// validations, a failure. The answer is what the attempt goes on with, or Abort.
//
// Life of a validation, of a run with held-out data: a snapshot as for a checkpoint; SealCheckpoint keeps its
// weights aside in a folder of their own, beside the checkpoint or, where there is to be none, in its place
// (`passing`); then Validate goes to the same process, which answers Validation now and then, and at its end.
#ifndef WEFT_PROTO_SESSION_MESSAGES_H_
#define WEFT_PROTO_SESSION_MESSAGES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "proto/session/job_hashes.h"
#include "proto/session/run_log.h"
#include "schedules/job.h"
#include "schedules/job_bytes.h"
#include "schedules/sync/reduction_mode.h"
#include "schedules/timeline.h"

namespace weft {

// A process keeps the completions of at most so many steps that are not settled (Settled).
inline constexpr int32_t kMaxUnsettledSteps = 4096;

// The right to execute one rank's jobs. Tokens of one rank grow strictly by (epoch, sequence); a stale one
// changes nothing.
struct Token {
  uint64_t epoch = 0;
  uint64_t sequence = 0;
  friend auto operator<=>(const Token&, const Token&) = default;
};

// ---- worker to coordinator

struct Hello {
  std::string worker;  // name given by the operator, [a-z0-9-]{1,63}
  std::string host;
  int64_t pid = 0;
  int32_t process = -1;  // process number that it asks for, -1 for any
  std::string address;   // opaque address of its transport
  // The device that computes: its kind ("cpu", "cuda"), its identity among all devices on any machine ("" if
  // it has none of its own), and the library by which such devices sum jointly with its version ("" for
  // none).
  std::string device, device_id, reduction_library;
  // The pool of its worker; "" for none. It serves only runs that ask for that.
  std::string pool = {};
  // True if it had a session with a coordinator before, and has something to tell of that time: it takes no
  // run before its Reattach.
  bool returns = false;
  bool tells_spans = false;  // true if it answers TellSpans; a worker of an older release does not
  // The name of its monotonic clock, on which its times are; "" if it is not known. The coordinator's shell
  // converts times of other clocks than its own.
  std::string clock = {};
  // The machine that it is on, where that is not `host`, as in a container; "" for the host.
  std::string node = {};
  // The release of its program, as "0.1.0", and the libraries that it runs with, as "LibTorch 2.9.1, UCX
  // 1.19.0". They are for people alone; a worker of an older release tells neither.
  std::string release = {}, libraries = {};
};

// Says that the ranks of the run are ready to take jobs.
struct Prepared {
  uint64_t run = 0;
};

// Sets a credit. Credits are absolute: the most granted and uncompleted jobs that the worker wants to hold
// for the rank.
struct Credit {
  uint64_t run = 0;
  Rank rank = 0;
  Token token;
  int32_t jobs = 0;
};

struct Completion {
  Job job;
  int64_t start_ns = 0;  // monotonic clock of the worker; at the coordinator's core, of the coordinator
  int64_t end_ns = 0;
  double loss = 0;  // loss of a forward job of the last stage
  bool has_loss = false;
  std::optional<double> gradient_norm = {};  // norm of the reduce job that totals it (Graph::TotalsNorm)
  std::vector<ValueHash> hashes = {};        // in a run that records them; else none
  // Time that its rank spent on it besides: from when it took the job until that began, from the end until
  // the rank knew of it, and on its earlier rounds. A process that is stopped loses most of its time there. A
  // device's jobs have none.
  int64_t delay_ns = 0;
};
struct Completions {
  uint64_t run = 0;
  Rank rank = 0;
  Token token;
  std::vector<Completion> jobs;
};

// An interval in which the rank was idle for one cause, on the same clock as a Completion.
struct IdleSpan {
  IdleCause cause = IdleCause::kNoWork;
  int64_t start_ns = 0, end_ns = 0;
  friend auto operator<=>(const IdleSpan&, const IdleSpan&) = default;
};

// The transfer of a tensor to the rank from another process.
struct TransferSpan {
  Rank from = 0;
  TensorKind tensor = TensorKind::kActivation;
  Job consumer;  // job that needs it
  // Times at which the rank asked for it, it was made (on the same machine's clock; 0 if that is not known),
  // and it arrived.
  int64_t wanted_ns = 0, made_ns = 0, arrived_ns = 0;
  int64_t bytes = 0;  // 0 if that is not known
  friend auto operator<=>(const TransferSpan&, const TransferSpan&) = default;
};

// The most of each figure, over the jobs of one kind and stage.
struct JobBytesOfStage {
  JobKind kind = JobKind::kForward;
  int32_t stage = 0;
  JobBytes bytes;
  friend auto operator<=>(const JobBytesOfStage&, const JobBytesOfStage&) = default;
};

// Running totals of one rank since Assign; sent twice a second and in Finished.
struct RankReport {
  Rank rank = 0;
  std::map<std::string, double> busy_seconds;             // by job kind
  std::map<std::string, double> idle_seconds;             // by cause
  std::map<std::string, int64_t> live_bytes, peak_bytes;  // by memory class
  std::map<int32_t, int64_t> activation_bytes;  // by stage: bytes that a forward keeps until its backward
  std::vector<JobBytesOfStage> job_bytes;       // ascending by kind and stage
  std::map<std::string, int64_t> bytes_sent, bytes_received;  // by tensor kind, rank to rank
  int64_t most_bytes = 0;  // alive at a time, without memory of the host for offloaded activations
  int32_t peak_activations = 0;
  int32_t peak_weight_versions = 0;  // of one stage's weights; 0 for a rank that holds none
  double wall_seconds = 0;
  // Figures of the GPU that the rank computes on, as its driver says: utilization, power_watts, ..
  std::map<std::string, double> gpu;
  // The last spans, in order; only in Finished, and bounded. Spans has those of a run that goes on.
  std::vector<IdleSpan> idle_spans;
  std::vector<TransferSpan> transfer_spans;
};
// A job that a rank of this process, or its device, computes at the moment, and how long it has done so.
struct RunningJob {
  Rank rank = 0;
  Job job;
  int64_t age_ns = 0;
  friend auto operator<=>(const RunningJob&, const RunningJob&) = default;
};
// The first collective that the device of a rank has begun and not ended, while it runs no job.
struct RunningJointOperation {
  Rank rank = 0;
  Job job;             // the rank's reduce, or the job whose weights are gathered
  int64_t age_ns = 0;  // time since it was begun, and the device ended its last job
  uint64_t bytes = 0;  // bytes that each member sends
  friend auto operator<=>(const RunningJointOperation&, const RunningJointOperation&) = default;
};
struct Report {
  uint64_t run = 0;
  std::vector<RankReport> ranks;
  std::vector<RunningJob> running = {};                      // those of half a second and more
  std::vector<RunningJointOperation> joint_operations = {};  // likewise
};

// Says that the run cannot go on in this process.
struct Failed {
  uint64_t run = 0;
  std::string reason;  // what happened, where, what to do
  // Process to which the data link failed; -1 for any other failure. A link may carry again, or another
  // process may take the place of one of its ends; other failures would come again.
  int32_t link_to = -1;
  // The step of the checkpoint, or of the copies, with which the attempt began, if they are damaged or gone;
  // -1 for any other cause.
  int32_t damaged_checkpoint = -1;
  // The step of a loss, gradient or weight that is infinite or not a number, where the run does not go on
  // with such; -1 for any other cause.
  int32_t non_finite_step = -1;
  // True if the device does nothing more for the process, which ends: the run may go on in another one.
  bool device_lost = false;
};

struct Finished {
  uint64_t run = 0;
  std::vector<RankReport> ranks;
};

// Says that this process's part of the snapshot of the step is on the disk; or `failure` says why it is not.
struct SnapshotSaved {
  uint64_t run = 0;
  int32_t step = 0;
  std::string failure;
};

// Says that the checkpoint of the step is complete and has its name; or `failure` says why it is not, or why
// it was dropped.
struct CheckpointSealed {
  uint64_t run = 0;
  int32_t step = 0;
  std::string failure;
};

// A part of a run's state that one rank saves behind a step: a stage, or a slice of one by its number
// (schedules/sync/saving.h).
struct StatePart {
  int32_t stage = 0;
  int32_t part = 0;
  friend auto operator<=>(const StatePart&, const StatePart&) = default;
};

// Says that this process keeps these parts in its memory, as the attempt of that epoch saved them behind the
// step.
struct CopiesHeld {
  uint64_t run = 0;
  uint64_t epoch = 0;
  int32_t step = 0;
  std::vector<StatePart> parts;
  // Before a Reattach: the run's id (Assign), else "", and how that attempt summed.
  std::string run_id = {};
  ReductionMode reduction = ReductionMode::kOrdered;
};

// Says how far the validation of the weights after `step` updates has come: of so many samples of all. Its
// figures count once it is done. With a `failure` it has ended without any.
struct Validation {
  uint64_t run = 0;
  int32_t step = 0;
  int64_t samples = 0, all_samples = 0;
  double loss = 0;
  std::map<std::string, double> metrics;  // further figures by name: an accuracy
  std::string failure;

  bool done() const { return !failure.empty() || samples == all_samples; }
};

// Tells a coordinator that was started again what the process has of the attempt that it serves; run 0 if it
// serves none. Completions and answers follow as ordinary messages.
struct Reattach {
  // A rank of the process: its lease, its credit, and how many jobs it has been granted in the attempt.
  struct HeldRank {
    Rank rank = 0;
    Token token;
    int32_t credit = 0;
    int64_t granted = 0;
  };
  // A snapshot that was asked for, and not settled since. `seal`: this process was also asked to seal it,
  // with these words.
  struct AskedSnapshot {
    int32_t step = 0;
    bool seal = false, drop = false, validate = false, passing = false;
  };

  uint64_t run = 0;
  uint64_t epoch = 0;
  std::string run_id;
  // Progress that was last settled (Settled); completions of steps before `ended` are not sent again.
  int32_t ended = 0, sealed = -1, validated = -1;
  std::vector<HeldRank> ranks;
  std::vector<AskedSnapshot> snapshots;
  std::vector<int32_t> validations;  // steps whose weights are aside to be validated, and not settled
};

// The id by which the members of a group find each other to reduce by collectives: made by the first member's
// process, passed on by the coordinator to the others' (both directions). It counts for one epoch of the run.
struct GroupId {
  uint64_t run = 0;
  uint64_t epoch = 0;
  int32_t group = 0;  // number in JointOrder::groups of the run's schedule
  std::string bytes;  // opaque
};

// Says that nothing of the run remains in this process, which can take another one. Answers each Abort, also
// for a run that the process does not know; follows Finished.
struct Forgotten {
  uint64_t run = 0;
};

// Says that the run does not get on here: a sentence names what this process waits for, and from which
// process. Sent when that changes; empty when the wait is over.
struct Stalled {
  uint64_t run = 0;
  std::string reason;
};

// Says that the process wants to end: it takes no other run, and its run is to go on elsewhere. The answer is
// Shutdown, once it is free.
struct Leaving {
  std::string reason;  // "SIGTERM"
};

// Tells lines of the process's log, from the time in which it serves the run. They change nothing.
struct LogLines {
  uint64_t run = 0;
  std::vector<LogEntry> lines;
};

// Answers TellSpans: the last spans of each rank of the process, in order and bounded.
struct Spans {
  struct OfRank {
    Rank rank = 0;
    std::vector<IdleSpan> idle;
    std::vector<TransferSpan> transfers;
  };
  uint64_t run = 0;
  std::vector<OfRank> ranks;
};

using FromWorker =
    std::variant<Hello, Prepared, Credit, Completions, Report, Failed, Finished, GroupId, Forgotten, Stalled,
                 SnapshotSaved, CheckpointSealed, Validation, Leaving, CopiesHeld, Reattach, LogLines, Spans>;

// ---- coordinator to worker

struct Welcome {
  uint64_t epoch = 0;
  int32_t process = 0;
};

struct Peer {
  int32_t process = 0;
  std::string address;
  std::string label;  // "process 2 (weft-worker-2, pid 4711 on host a)"
};
struct RankLease {
  Rank rank = 0;
  Token token;
};
// A part of the state with which an attempt begins, and the process that keeps it.
struct KeptPart {
  StatePart part;
  int32_t process = 0;
};
struct Assign {
  uint64_t run = 0;
  uint64_t epoch = 0;
  std::string spec;                                        // the run file as JSON (run/run_spec.h)
  std::string output;                                      // folder for checkpoints, "" for none
  std::vector<RankLease> leases;                           // ranks of this process
  std::vector<int32_t> process_of_rank;                    // size W
  std::vector<Peer> peers;                                 // every process of the run, this one included
  ReductionMode reduction_mode = ReductionMode::kOrdered;  // how the run's schedule is carried out
  // A sentence that says how gradients are summed, where the run file leaves it to the devices; "" otherwise.
  std::string reduction;
  // The id that tells this run from every other on any coordinator: 128 random bits in hexadecimal; "" if
  // unknown. With the epoch it names the attempt.
  std::string run_id;
  // True if each process keeps what its ranks save behind each step, and sends it to the process behind it in
  // `peers`.
  bool copies = false;
  // The epoch of the attempt that made the copies with which this one begins, and the processes that keep
  // them; 0 and none for an attempt that begins without copies.
  uint64_t copies_epoch = 0;
  std::vector<KeptPart> kept;
  // Step that an attempt before gave up for a number that is not finite: the gradients of its micro-batches
  // are checked one by one; -1 for none.
  int32_t examined_step = -1;
  // Step before which completions are sent one by one, because a job of such a step may have ended a process
  // of an earlier attempt; 0 for none.
  int32_t watched_before = 0;
};

// Grants jobs of one rank, in the order in which the schedule is expected to start them.
struct Grant {
  uint64_t run = 0;
  Rank rank = 0;
  Token token;
  std::vector<Job> jobs;
};

// Ends the run: all jobs are done and the checkpoint is complete. The process reports and forgets the run.
struct Finish {
  uint64_t run = 0;
};

// Asks each process to keep the state of its stages as `step` updates have made it, and to write it aside.
// Comes before any grant of a step from `step` - max(1, the run's most staleness) on; or, for the run's end,
// when all jobs are done.
struct TakeSnapshot {
  uint64_t run = 0;
  int32_t step = 0;
};

// Asks the process to complete the checkpoint of the step, of which all have written their parts, and to name
// it. The newest `keep` periodic ones stay. With `drop` it is removed instead. With `validate` its weights
// stay aside until they have been validated; with `passing` nothing else stays.
struct SealCheckpoint {
  uint64_t run = 0;
  int32_t step = 0;
  int32_t keep = 0;
  bool drop = false;
  bool validate = false, passing = false;
};

// Asks for loss and metrics of the weights that stay aside since the snapshot of the step, or since the run
// began where it goes on from that step.
struct Validate {
  uint64_t run = 0;
  int32_t step = 0;
};

// Drops the run's copies but those of this epoch from this step on; there are none of epoch 0.
struct DropCopies {
  uint64_t run = 0;
  uint64_t epoch = 0;
  int32_t step = 0;
};

// Says which messages of an attempt are stored, so that they need not be sent again: steps before `ended`
// have ended, snapshots up to that of the step `sealed` are sealed or dropped, validations up to `validated`
// are over.
struct Settled {
  uint64_t run = 0;
  uint64_t epoch = 0;
  int32_t ended = 0, sealed = -1, validated = -1;
  friend bool operator==(const Settled&, const Settled&) = default;
};

struct Abort {
  uint64_t run = 0;
  std::string reason;
};
struct Shutdown {
  std::string reason;
};

// Asks the process for the spans of its ranks so far: a client asked for the run's trace, or the run ends
// without having finished, and Abort follows. A process that does not serve the run any more does not answer.
struct TellSpans {
  uint64_t run = 0;
};

using FromCoordinator = std::variant<Welcome, Assign, Grant, Finish, Abort, Shutdown, GroupId, TakeSnapshot,
                                     SealCheckpoint, Validate, DropCopies, Settled, TellSpans>;

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_MESSAGES_H_
