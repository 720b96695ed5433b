// Writes replans.jsonl into a run's folder: a line for each time that the run went on under another schedule
// (docs/guide/outputs.md).
//
// Appends, whole lines in one write each. Failure: Unavailable with the file's name; the lines are lost, and
// the run's description still has the last.
#ifndef WEFT_COORDINATOR_RECORD_REPLAN_LOG_H_
#define WEFT_COORDINATOR_RECORD_REPLAN_LOG_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/events.h"

namespace weft {

// Returns one line, without its end.
std::string ReplanLine(const Replanned& replanned);

absl::Status AppendReplans(const std::string& folder, const std::vector<Replanned>& replanned);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_REPLAN_LOG_H_
