// Sets up a coordinator server, and names the callbacks for its owner.
#ifndef WEFT_COORDINATOR_SHELL_SERVER_OPTIONS_H_
#define WEFT_COORDINATOR_SHELL_SERVER_OPTIONS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/certificates/certificate_watch.h"
#include "base/net/security_flags.h"
#include "coordinator/core/coordinator_core.h"
#include "coordinator/core/events.h"
#include "coordinator/core/planned_spec.h"
#include "proto/session/protocol_versions.h"
#include "proto/session/run_trace.h"
#include "proto/wire/runs_codec.h"

namespace weft {

class FlightRing;
class Metrics;
class StoreWriter;

// Callbacks on the server's thread, in the order of the events; they must not block and must not call the
// server. The server skips empty ones.
struct CoordinatorObserver {
  std::function<void(const RunInfo&)>
      run;  // called for every change of state; with the ranks' reports when the run ended
  std::function<void(const StepDone&)> step;
  std::function<void(const Validation&)> validation;  // with its figures
  std::function<void(const JobsEnded&)> jobs;         // each job once
  std::function<void(const Report&)> report;
  std::function<void(const Spans&)> spans;  // that were asked for, to be in a trace
  // Called once for each run that has ended without having finished, when no spans of it come any more: after
  // `run` with its last state.
  std::function<void(uint64_t run)> spans_complete;
  std::function<void(const SlowJob&)> slow_job;  // that has ended
  std::function<void(const RunStall&)> stall;
  std::function<void(const WorkerChange&)> worker;
  std::function<void(const RunLogLine&)> log;       // lines about runs, of workers and of the coordinator
  std::function<void(const Replanned&)> replanned;  // before the change of state that comes with it
  std::function<void(const std::string& line)> refused;  // about a worker that was refused before it greeted
};

// A submitted run that has been read: what is left to do for its plan.
struct UnplannedRun {
  bool slow = false;  // true if `plan` may take long: such runs are planned beside the others
  std::function<absl::StatusOr<std::shared_ptr<const RunPlan>>()> plan;
};
// Reads a run file's JSON text, once. Called, as `plan` is, on a thread of its own, as that may simulate.
using Planner = std::function<absl::StatusOr<UnplannedRun>(const std::string& spec)>;

struct CoordinatorServerOptions {
  std::vector<std::string> listen;  // unix:PATH, HOST:PORT; port 0 for any free one
  SecurityFlags security;           // whether and how other machines may connect
  std::string tokens;               // file of tokens (user_tokens.h); "" for none
  // Hear of new certificates and tokens, on other threads.
  CertificateWatch::Observer certificates;
  CoreOptions core;
  Planner planner;  // required
  // Time for which the server's thread polls behind a message before it sleeps. It takes processor time that
  // workers on the same machine may need.
  int spin_microseconds = 0;
  ProtocolVersions protocol = kProtocolVersions;
  CoordinatorObserver observer;
  // Opens the output folder of a run that is about to be taken in, and returns where its workers write.
  // Called on the planner's thread, as it waits for the disk. Absent: they write into the folder that the
  // request names.
  std::function<absl::StatusOr<RunFolder>(uint64_t run, const SubmitRequest& request, const RunPlan& plan)>
      claim;
  // Returns the run as its workers get it, from the plan of what was submitted into `output`: the claim may
  // give the checkpoint that it goes on from another name. Absent: as it was submitted.
  std::function<PlannedSpec(const std::string& output, PlannedSpec submitted)> claimed;
  // Releases a run that was not taken in after it was claimed; called on the server's thread.
  std::function<void(uint64_t run)> release;
  // Returns what came of the writing of an ended run's results: "", or a sentence about what could not be
  // written; nothing while they are being written. Called on the server's thread. Absent: nobody knows.
  std::function<std::optional<std::string>(uint64_t run)> output_end;
  // Returns the trace of a run whose folder is `output`; absent if there are no traces. It is called on a
  // thread of its own, because it waits for the disk, and ends before the server does.
  std::function<absl::StatusOr<RunTrace>(uint64_t run, const std::string& output)> trace;
  // Keeps what a coordinator needs that is started again; null for nothing. Outlives the server. The runs
  // that it had at the start are `restored`.
  StoreWriter* store = nullptr;
  std::vector<RestoreRun> restored;
  // Jobs, lines and the like that wait for the store before grants wait for it too; some hundred bytes each.
  size_t most_held = 100'000;
  int64_t unix_minus_monotonic_ns = 0;  // of the store's times; 0: the server looks at the clocks itself
  Metrics* metrics = nullptr;           // counts the server's metrics, if set; outlives the server
  FlightRing* flight_ring = nullptr;    // has grants and ends of jobs and steps noted, if set; outlives it
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_SERVER_OPTIONS_H_
