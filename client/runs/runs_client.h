// Calls the run API from C++: submits a training to a coordinator, looks at it, watches it, moves its ranks,
// cancels it.
//
// Threads: every method may be called from any thread; each blocks until its answer or its deadline, Watch
// until the run ends. To cancel a Watch from another thread, return false from its callback at the next
// event, or call Stop. Failure: Unavailable "coordinator at X unreachable: .." when nothing answers there;
// DeadlineExceeded; else the coordinator's status, see proto/weft/v1/runs.proto.
#ifndef WEFT_CLIENT_RUNS_RUNS_CLIENT_H_
#define WEFT_CLIENT_RUNS_RUNS_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/net/security_flags.h"
#include "proto/session/run_info.h"
#include "proto/session/run_trace.h"
#include "proto/session/worker_info.h"
#include "proto/wire/runs_codec.h"

namespace weft {

class RunsClient {
 public:
  virtual ~RunsClient() = default;

  // Makes a client for `address`: unix:PATH or HOST:PORT. Does not connect yet. `call_ns` is the longest time
  // of one call; Submit and Trace have 12 times as long, and Watch has its own. InvalidArgument for a
  // malformed address; FailedPrecondition for one that needs TLS where there is none, or for wrong
  // certificates.
  static absl::StatusOr<std::unique_ptr<RunsClient>> Create(const std::string& address,
                                                            const SecurityFlags& security = {},
                                                            int64_t call_ns = 10'000'000'000);

  // Submits a run. The same non-empty `request.request` always names the same run, so a call whose answer was
  // lost may be repeated.
  virtual absl::StatusOr<uint64_t> Submit(const SubmitRequest& request) = 0;
  // Returns the run. Times are of the wall clock.
  virtual absl::StatusOr<RunInfo> Get(uint64_t run) = 0;
  virtual absl::StatusOr<std::vector<RunInfo>> List() = 0;
  // Returns the workers by number, and what the coordinator says of itself with them.
  virtual absl::StatusOr<FleetInfo> AskFleet() = 0;
  absl::StatusOr<std::vector<WorkerInfo>> ListWorkers();
  // Cancels the run, with `save` once a checkpoint is saved, and returns it as it then is.
  virtual absl::StatusOr<RunInfo> Cancel(uint64_t run, const std::string& reason, bool save) = 0;

  // Orders ranks of a run to a worker. Returns the run as it then is, and the worker; the ranks move a little
  // later (proto/weft/v1/runs.proto).
  virtual absl::StatusOr<std::pair<RunInfo, WorkerInfo>> Move(const MoveRequest& request) = 0;
  // Has a worker leave, by name or number of its process, and returns it as it was.
  virtual absl::StatusOr<WorkerInfo> Drain(const std::string& worker, const std::string& reason) = 0;

  // Returns lines of a run's log behind the place, and moves it behind them. A new place is before all that
  // are kept. A coordinator that was started again begins its logs anew. A rank other than -1 selects the
  // lines of that rank.
  struct LogPlace {
    uint64_t log = 0, after = 0;
  };
  virtual absl::StatusOr<RunLogPart> Logs(uint64_t run, Rank rank, LogPlace* place) = 0;

  // Returns the events of a run: the last lines of its log that are the coordinator's.
  virtual absl::StatusOr<std::vector<RunLogLine>> Events(uint64_t run) = 0;

  // Returns what a run waits for now.
  virtual absl::StatusOr<RunWaits> Waits(uint64_t run) = 0;

  // Returns the trace of the run, of one that goes on as far as it has come. FailedPrecondition where it has
  // none.
  virtual absl::StatusOr<RunTrace> Trace(uint64_t run) = 0;

  // Calls `hear` with the run as it is now and then with every change and step, until the run has ended (OK)
  // or `hear` returns false (Cancelled), the connection is lost (Unavailable), or MonotonicNow() has come to
  // `until_ns` (DeadlineExceeded).
  virtual absl::Status Watch(uint64_t run, const std::function<bool(const RunEvent&)>& hear,
                             int64_t until_ns = INT64_MAX) = 0;

  // Waits until there is a connection, at most so long.
  virtual void AwaitConnection(int64_t ns) = 0;

  // Ends every Watch that is going on, with Cancelled.
  virtual void Stop() = 0;
};

// Watches a run as Watch does, but lets a coordinator to which there was a connection be out of reach for
// `patience_ns` at a time, as workers do. Watching then begins again, and `hear` is called with the run as it
// is. `lost` is called before each attempt. `known` says that it has answered before. NotFound
// if it does not know the run any more, or, once something was heard of that, has given its number to
// another.
absl::Status FollowRun(RunsClient& client, uint64_t run, bool known, int64_t patience_ns,
                       const std::function<bool(const RunEvent&)>& hear, const std::function<void()>& lost,
                       int64_t until_ns = INT64_MAX);

// Makes a random name for a request, so that a submission whose answer was lost can be sent again and is one
// run.
std::string RequestName();

// Submits as Submit does, and sends the request again if no answer comes although a server listens, or if the
// connection broke before the answer.
// `request.request` must be set.
absl::StatusOr<uint64_t> SubmitPatiently(RunsClient& client, const SubmitRequest& request,
                                         int64_t patience_ns);

// Returns true if both are one run, as far as is known. A coordinator without a store that is started again
// gives the same numbers anew.
bool IsSameRun(const RunInfo& a, const RunInfo& b);

// Returns NotFound with the reason why nobody hears of the run any more.
absl::Status RunIsGone(uint64_t run);

}  // namespace weft

#endif  // WEFT_CLIENT_RUNS_RUNS_CLIENT_H_
