// Runs the coordinator as a server: listens, keeps sessions with worker processes, serves the run API, hands
// out jobs.
//
// The daemon `weft-coordinator` is this and a command line; `weft train` embeds it in its own process and
// watches through the observer.
//
// Threads: four own ones (the loop; accepting connections; two for planning submitted runs). All methods may
// be called from any thread but those. Ownership: destruction stops it as Stop("...") does. Failure of Start:
// InvalidArgument (an address), FailedPrecondition (an address that needs TLS where there is
// none, or wrong certificates), Unavailable (the address is in use or cannot be bound), each with what to do.
#ifndef WEFT_COORDINATOR_SHELL_COORDINATOR_SERVER_H_
#define WEFT_COORDINATOR_SHELL_COORDINATOR_SERVER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/shell/server_options.h"
#include "proto/session/run_info.h"
#include "proto/session/worker_info.h"
#include "proto/wire/runs_codec.h"

namespace weft {

class CoordinatorServer {
 public:
  virtual ~CoordinatorServer() = default;

  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(CoordinatorServerOptions options);

  // Returns the addresses as given, with the real ports.
  virtual const std::vector<std::string>& addresses() const = 0;

  // Submit, Cancel and GetRun act as the run API's methods.
  virtual absl::StatusOr<uint64_t> Submit(const SubmitRequest& request) = 0;
  // Cancels a run. With `save` it first saves a checkpoint, if it can (CancelRun in
  // coordinator/core/events.h).
  virtual absl::Status Cancel(uint64_t run, const std::string& reason, bool save) = 0;
  absl::Status Cancel(uint64_t run, const std::string& reason) { return Cancel(run, reason, false); }
  virtual absl::StatusOr<RunInfo> GetRun(uint64_t run) = 0;  // times are of the coordinator's monotonic clock

  // State of the coordinator at a moment; all times are of the wall clock.
  struct Overview {
    std::vector<RunInfo> runs;
    std::vector<WorkerInfo> workers;
    int64_t now_ns = 0;
  };
  // Returns all runs, without the reports of their ranks; or only `run`, with them, if there is such a run.
  // Unavailable if the loop does not answer within a second.
  virtual absl::StatusOr<Overview> LookAround(std::optional<uint64_t> run) = 0;

  // Returns "", or for probes why it does not serve: its loop does not turn, or new connections are refused.
  virtual std::string Problem() const = 0;

  // Takes other limits for what begins from now on.
  virtual void SetLimits(const CoreLimits& limits) = 0;
  // Tells the server, for an owner of worker processes, that a process has ended, and how.
  virtual void WorkerExited(const weft::WorkerExited& exited) = 0;

  // Adds a line to a run's log. Any thread.
  virtual void Log(uint64_t run, LogEntry entry) = 0;

  // Fails the runs that have not ended, tells every worker to shut down, waits a moment for that to be heard,
  // and ends. With a store it leaves runs and workers as they are, and waits a moment for what it has decided
  // to be stored. Idempotent.
  virtual void Stop(const std::string& reason) = 0;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_COORDINATOR_SERVER_H_
