#include "client/commands/coordinator_access.h"

#include <chrono>
#include <cstdlib>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/threads.h"
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
  return PrintData(options.json ? RunJson(run).dump(2) + "\n" : RunText(run, WallNanos(), OutputStyle()));
}

std::string RequestName() {
  std::random_device random;
  return absl::StrCat("weft-", absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
}

int64_t WallNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

WatchTimeout::WatchTimeout(RunsClient& client, double seconds) {
  if (seconds <= 0) return;
  thread_ = StartThread([this, &client, seconds] {
    if (!over_.WaitWithTimeout(absl::ToInt64Nanoseconds(absl::Seconds(seconds)))) client.Stop();
  });
}

WatchTimeout::~WatchTimeout() {
  over_.Notify();
  if (thread_.joinable()) thread_.join();
}

}  // namespace weft
