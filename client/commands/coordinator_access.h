// Joins what the commands that talk to a coordinator share: the connection, the form of a run in the output,
// and a limit of the time to watch.
#ifndef WEFT_CLIENT_COMMANDS_COORDINATOR_ACCESS_H_
#define WEFT_CLIENT_COMMANDS_COORDINATOR_ACCESS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
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
// Returns the time of the wall clock, by which runs tell their times.
int64_t WallNanos();
// Returns the time of MonotonicNow at which a watch is to end that begins now; 0 seconds: never.
int64_t WatchUntil(double seconds);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_COORDINATOR_ACCESS_H_
