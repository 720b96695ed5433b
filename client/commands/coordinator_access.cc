#include "client/commands/coordinator_access.h"

#include <chrono>
#include <cstdlib>

#include "absl/time/time.h"
#include "base/monotonic_clock.h"
#include "coordinator/record/run_view.h"
#include "nlohmann/json.hpp"

namespace weft {

absl::StatusOr<std::unique_ptr<RunsClient>> ConnectTo(const CoordinatorOptions& options) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  return RunsClient::Create(options.address, options.security);
}

ExitCode FailToConnect(const absl::Status& status) {
  return Fail(absl::IsFailedPrecondition(status) ? kExitBadConfiguration : kExitUsage, status.message());
}

ExitCode PrintRun(const CoordinatorOptions& options, const RunInfo& run) {
  return options.json ? PrintJson(RunJson(run)) : PrintData(RunText(run, WallNanos(), OutputStyle()));
}

int64_t WallNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int64_t WatchUntil(double seconds) {
  if (seconds <= 0) return INT64_MAX;
  const int64_t now = MonotonicNow(), wait = absl::ToInt64Nanoseconds(absl::Seconds(seconds));
  return wait < INT64_MAX - now ? now + wait : INT64_MAX;
}

}  // namespace weft
