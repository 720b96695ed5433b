// The messages of a session as domain values: what a worker process and the coordinator say to each other
// about one run.
//
// The cores see these and never protobuf; proto/wire converts and validates. A session is one bidirectional
// stream; every message has a sequence number and is delivered in order, once (proto/session/link.h), so
// "applied, but the reply was lost" is an ordinary case.
//
// Life of a run on a session: Hello, Welcome; Assign, GroupId where it has collectives, Prepared; then Credit
// and Grant, Completions until every job is done; Finish, Finished, Forgotten. Abort ends it early, with a
// reason, from either side (Failed from the worker); the answer to it is Forgotten.
//
// Life of a checkpoint, of a run with an output folder: TakeSnapshot goes to every process, ahead of the
// grants of its step; each process writes its stages and answers SnapshotSaved; then SealCheckpoint goes to
// one process, which makes the checkpoint visible, or drops it if a process failed, and answers
// CheckpointSealed. The checkpoint of the run's end goes this way too, before Finish. That of step 0 is
// written before Prepared, and has SealCheckpoint alone.
#ifndef WEFT_PROTO_SESSION_MESSAGES_H_
#define WEFT_PROTO_SESSION_MESSAGES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "schedules/job.h"
#include "schedules/timeline.h"

namespace weft {

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
  int32_t process = -1;  // wanted process number, -1 for any
  std::string address;   // of its transport, opaque
  // What computes: its kind ("cpu", "cuda"), which one it is among all on any machine ("" for none of its
  // own), and the library for collectives among such devices with its version ("" for none).
  std::string device, device_id, collectives;
};

// The ranks of the run are ready to take jobs.
struct Prepared {
  uint64_t run = 0;
};

// Credits are absolute: the number of granted and uncompleted jobs that the worker wants to hold for the rank
// at most.
struct Credit {
  uint64_t run = 0;
  Rank rank = 0;
  Token token;
  int32_t jobs = 0;
};

struct Completion {
  Job job;
  int64_t start_ns = 0;  // monotonic clock of the worker's machine
  int64_t end_ns = 0;
  double loss = 0;  // of forward jobs of the last stage
  bool has_loss = false;
  std::optional<double> gradient_norm = {};  // of the reduce job that totals it (Graph::TotalsNorm)
};
struct Completions {
  uint64_t run = 0;
  Rank rank = 0;
  Token token;
  std::vector<Completion> jobs;
};

// The rank was idle for one cause, on the monotonic clock of the worker's machine.
struct IdleSpan {
  IdleCause cause = IdleCause::kNoWork;
  int64_t start_ns = 0, end_ns = 0;
  friend auto operator<=>(const IdleSpan&, const IdleSpan&) = default;
};

// A tensor came to the rank from another process.
struct TransferSpan {
  Rank from = 0;
  TensorKind tensor = TensorKind::kActivation;
  Job consumer;  // the job that needs it
  // When the rank asked for it, when it was made (on the same machine's clock; 0 if that is not known), and
  // when it was here.
  int64_t wanted_ns = 0, made_ns = 0, arrived_ns = 0;
  friend auto operator<=>(const TransferSpan&, const TransferSpan&) = default;
};

// Running totals of one rank since Assign; sent every second or so and in Finished.
struct RankReport {
  Rank rank = 0;
  std::map<std::string, double> busy_seconds;                 // by job kind
  std::map<std::string, double> idle_seconds;                 // by cause
  std::map<std::string, int64_t> live_bytes, peak_bytes;      // by memory class
  std::map<int32_t, int64_t> left_bytes;                      // by stage: by a forward until its backward
  std::map<std::string, int64_t> bytes_sent, bytes_received;  // by tensor kind, rank to rank
  int32_t peak_activations = 0;
  int32_t peak_weight_versions = 0;  // of one stage's weights; 0 for a rank that holds none
  double wall_seconds = 0;
  // Of the GPU that the rank computes on, as its driver says: utilization, power_watts, ..
  std::map<std::string, double> gpu;
  // The last of them in order, in Finished alone; bounded.
  std::vector<IdleSpan> idle_spans;
  std::vector<TransferSpan> transfer_spans;
};
struct Report {
  uint64_t run = 0;
  std::vector<RankReport> ranks;
};

// The run cannot go on in this process.
struct Failed {
  uint64_t run = 0;
  std::string reason;  // what happened, where, what to do
};

struct Finished {
  uint64_t run = 0;
  std::vector<RankReport> ranks;
};

// What this process holds of the snapshot of the step is on the disk; or `failure` says why it is not.
struct SnapshotSaved {
  uint64_t run = 0;
  int32_t step = 0;
  std::string failure;
};

// The checkpoint of the step is complete and has its name; or `failure` says why it is not, or why it was
// dropped.
struct CheckpointSealed {
  uint64_t run = 0;
  int32_t step = 0;
  std::string failure;
};

// By this the members of a group find each other to reduce by collectives: made by the first member's
// process, passed on by the coordinator to the others' (both directions). It counts for one epoch of the run.
struct GroupId {
  uint64_t run = 0;
  uint64_t epoch = 0;
  int32_t group = 0;  // number in JointOrder::groups of the run's schedule
  std::string bytes;  // opaque
};

// Nothing of the run is left in this process, which can take another one. Answers each Abort, also that of a
// run that the process does not know; follows Finished.
struct Forgotten {
  uint64_t run = 0;
};

// The run does not get on here: for whom and what this process waits, a sentence. Sent when that changes;
// empty: the wait is over.
struct Stalled {
  uint64_t run = 0;
  std::string reason;
};

using FromWorker = std::variant<Hello, Prepared, Credit, Completions, Report, Failed, Finished, GroupId,
                                Forgotten, Stalled, SnapshotSaved, CheckpointSealed>;

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
struct Assign {
  uint64_t run = 0;
  uint64_t epoch = 0;
  std::string spec;                      // the run file as JSON (proto/run/run_spec.h)
  std::string output;                    // folder for checkpoints, "" for none
  std::vector<RankLease> leases;         // ranks of this process
  std::vector<int32_t> process_of_rank;  // size W
  std::vector<Peer> peers;               // every process of the run, this one included
  // The run's schedule is carried out with Schedule::collective.
  bool collective = false;
  // How gradients are summed, where the run file leaves it to what there is; a sentence, "" otherwise.
  std::string reduction;
  // What tells this run from every other on any coordinator: 128 random bits in hexadecimal; "" unknown. With
  // the epoch it names the attempt.
  std::string run_id;
};

// Claimed jobs of one rank, in the order in which the schedule is expected to start them.
struct Grant {
  uint64_t run = 0;
  Rank rank = 0;
  Token token;
  std::vector<Job> jobs;
};

// All jobs are done and the checkpoint is complete: report, forget the run.
struct Finish {
  uint64_t run = 0;
};

// Keep the state of your stages as it is when `step` updates have made their weights, and write it aside.
// Comes before any grant of a step from `step` - max(1, the run's most staleness) on; or, for the run's end,
// when all jobs are done.
struct TakeSnapshot {
  uint64_t run = 0;
  int32_t step = 0;
};

// All processes have written their parts of the checkpoint of the step: complete it and give it its name. Of
// the periodic ones `keep` stay. With `drop` it is removed instead.
struct SealCheckpoint {
  uint64_t run = 0;
  int32_t step = 0;
  int32_t keep = 0;
  bool drop = false;
};
struct Abort {
  uint64_t run = 0;
  std::string reason;
};
struct Shutdown {
  std::string reason;
};

using FromCoordinator =
    std::variant<Welcome, Assign, Grant, Finish, Abort, Shutdown, GroupId, TakeSnapshot, SealCheckpoint>;

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_MESSAGES_H_
