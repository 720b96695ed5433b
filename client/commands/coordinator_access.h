// Joins what the commands that talk to a coordinator share: the connection, the form of a run in the output,
// and a limit of the time to watch.
#ifndef WEFT_CLIENT_COMMANDS_COORDINATOR_ACCESS_H_
#define WEFT_CLIENT_COMMANDS_COORDINATOR_ACCESS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/net/address.h"
#include "client/console/console.h"
#include "client/runs/runs_client.h"
#include "proto/session/run_info.h"

namespace weft {

struct CoordinatorOptions {
  std::string address = kDefaultCoordinator;  // unix:PATH or HOST:PORT
  SecurityFlags security;
  bool json = false;
};

// The time for which a coordinator that has answered before may be out of reach; the same as for workers.
inline constexpr int64_t kPatienceNs = 30'000'000'000;

// Connects to the coordinator. FailToConnect says why it could not: a wrong address is a mistake in the
// arguments.
absl::StatusOr<std::unique_ptr<RunsClient>> ConnectTo(const CoordinatorOptions& options);

ExitCode FailToConnect(const absl::Status& status);

// Prints the present state of the run, in the form of the options.
ExitCode PrintRun(const CoordinatorOptions& options, const RunInfo& run);
// Makes a name for a request, so that a submission whose answer was lost can be sent again and is one run.
std::string RequestName();
// Returns the time of the wall clock, by which runs tell their times.
int64_t WallNanos();

// Ends a Watch of the client after some time, unless it ended before; never for 0 seconds.
class WatchTimeout {
 public:
  WatchTimeout(RunsClient& client, double seconds);
  ~WatchTimeout();

 private:
  Notification over_;
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_COORDINATOR_ACCESS_H_
