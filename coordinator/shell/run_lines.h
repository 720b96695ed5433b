// Words what the coordinator says about a run in its log: changes of its state, checkpoints, processes that
// leave it, jobs that take long. Pure but for what it remembers of each run; one thread.
#ifndef WEFT_COORDINATOR_SHELL_RUN_LINES_H_
#define WEFT_COORDINATOR_SHELL_RUN_LINES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/core/events.h"
#include "proto/session/run_info.h"
#include "proto/session/run_log.h"

namespace weft {

// A line about a run, without a time. `routine` as in RunLogLine.
struct RunLine {
  LogEntry entry;
  bool routine = false;
};

class RunLines {
 public:
  // Returns lines for what differs from the run as it was last reported; none where only its figures do.
  std::vector<RunLine> Of(const RunInfo& run);

 private:
  struct Told {
    std::string state;
    int32_t restarts = 0, checkpoint_step = -1, failed_checkpoints = 0;
  };
  std::map<uint64_t, Told> told_;  // of runs that have not ended
};

LogEntry LineOf(const WorkerChange& change);
LogEntry LineOf(const SlowJob& slow);
LogEntry LineOf(const Replanned& replanned);

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_RUN_LINES_H_
