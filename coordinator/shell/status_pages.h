// Answers a browser: `/` shows all runs and workers, `/runs/N` a run; `/status.json` and `/runs/N.json` are
// the same for programs, as `weft ls -o json`, `weft workers -o json` and `weft describe -o json` have it.
//
// Threads: the pages are made on the caller's thread, from copies. Failure: a coordinator that does not
// answer gives a page that says so.
#ifndef WEFT_COORDINATOR_SHELL_STATUS_PAGES_H_
#define WEFT_COORDINATOR_SHELL_STATUS_PAGES_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "base/metrics/metrics_server.h"
#include "coordinator/record/run_records.h"
#include "coordinator/shell/coordinator_server.h"

namespace weft {

struct StatusSources {
  // Calls CoordinatorServer::LookAround.
  std::function<absl::StatusOr<CoordinatorServer::Overview>(std::optional<uint64_t> run)> look_around;
  // Calls RunRecords::LookAt.
  std::function<std::optional<RunRecords::Look>(uint64_t run)> look_at;
};

HttpPages StatusPages(StatusSources sources);

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_STATUS_PAGES_H_
