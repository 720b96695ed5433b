// The messages of a session as domain values: what a worker process and the coordinator say to each other
// about one run.
//
// The cores see these and never protobuf; proto/wire converts and validates. A session is one bidirectional
// stream; every message has a sequence number and is delivered in order, once (proto/session/link.h), so
// "applied, but the reply was lost" is an ordinary case.
//
// Life of a run on a session: Hello, Welcome; Assign, GroupId where it has collectives, Prepared; then Credit
// and Grant, Completions until every job is done; Finish, Finished. Abort ends it early, with a reason, from
// either side (Failed from the worker).
#ifndef WEFT_PROTO_SESSION_MESSAGES_H_
#define WEFT_PROTO_SESSION_MESSAGES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "schedules/job.h"

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

// By this the members of a group find each other to reduce by collectives: made by the first member's
// process, passed on by the coordinator to the others' (both directions). It counts for one epoch of the run.
struct GroupId {
  uint64_t run = 0;
  uint64_t epoch = 0;
  int32_t group = 0;  // number in CollectiveOrder::groups of the run's schedule
  std::string bytes;  // opaque
};

using FromWorker = std::variant<Hello, Prepared, Credit, Completions, Report, Failed, Finished, GroupId>;

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
};

// Claimed jobs of one rank, in the order in which the schedule is expected to start them.
struct Grant {
  uint64_t run = 0;
  Rank rank = 0;
  Token token;
  std::vector<Job> jobs;
};

// All jobs are done: save the checkpoint into `output`, report, forget the run.
struct Finish {
  uint64_t run = 0;
};
struct Abort {
  uint64_t run = 0;
  std::string reason;
};
struct Shutdown {
  std::string reason;
};

using FromCoordinator = std::variant<Welcome, Assign, Grant, Finish, Abort, Shutdown, GroupId>;

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_MESSAGES_H_
