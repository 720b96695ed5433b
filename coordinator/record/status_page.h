// Makes the pages on which a coordinator shows its runs and workers in a browser (docs/guide/operating.md).
//
// A page is plain HTML with pictures in it, and needs nothing from elsewhere. Every text from outside is
// escaped. Pure; the pages depend on the arguments only.
#ifndef WEFT_COORDINATOR_RECORD_STATUS_PAGE_H_
#define WEFT_COORDINATOR_RECORD_STATUS_PAGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/record/run_records.h"
#include "proto/session/run_info.h"
#include "proto/session/worker_info.h"

namespace weft {

// `now_ns` and the times of the runs are of one clock. The newest runs come first; of very many, the oldest
// ended ones are left out.
std::string StatusPage(const std::vector<RunInfo>& runs, const std::vector<WorkerInfo>& workers,
                       int64_t now_ns);

// `look` is what is known of a run that goes on; null for others.
std::string RunPage(const RunInfo& run, const std::optional<RunRecords::Look>& look, int64_t now_ns);

// Says in a page of its own what is wrong.
std::string ProblemPage(const std::string& problem);

// The script that every page asks for: it shows the page anew every two seconds.
std::string StatusScript();

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_STATUS_PAGE_H_
