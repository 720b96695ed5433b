// Runs `weft submit`, `ls`, `workers`, `describe`, `wait`, `cancel`: the run API of a coordinator from the
// command line.
#ifndef WEFT_CLIENT_COMMANDS_RUNS_COMMANDS_H_
#define WEFT_CLIENT_COMMANDS_RUNS_COMMANDS_H_

#include <cstdint>
#include <string>

#include "client/commands/coordinator_access.h"
#include "client/console/console.h"

namespace weft {

struct SubmitOptions {
  CoordinatorOptions coordinator;
  std::string file;
  int processes = 0;  // 0: one a rank
  std::string out;    // folder of the results, "" for one that the coordinator chooses
  bool overwrite = false;
  int until = 0;               // as in TrainOptions
  std::string resume;          // likewise
  std::string plan;            // likewise
  bool record_hashes = false;  // likewise
  int priority = 0;            // as QueueTerms
  std::string pool;            // likewise
  bool detach = false;
};
struct ListOptions {
  CoordinatorOptions coordinator;
};
struct WorkersOptions {
  CoordinatorOptions coordinator;
};
struct DescribeOptions {
  CoordinatorOptions coordinator;
  uint64_t run = 0;
};
struct WaitOptions {
  CoordinatorOptions coordinator;
  uint64_t run = 0;
  double timeout = 0;  // seconds; 0: none
};
struct CancelOptions {
  CoordinatorOptions coordinator;
  uint64_t run = 0;
  std::string reason;
  bool save = false;  // a checkpoint is saved before the run ends
};

// Prints the run's number on standard output; then, unless detached, acts as RunWait. Ctrl-C leaves the run
// going on.
ExitCode RunSubmit(const SubmitOptions& options);
ExitCode RunList(const ListOptions& options);
ExitCode RunWorkers(const WorkersOptions& options);
ExitCode RunDescribe(const DescribeOptions& options);
// Returns when the run has ended in whatever way: kExitOk only if it finished; kExitTimeout.
ExitCode RunWait(const WaitOptions& options);
ExitCode RunCancel(const CancelOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_RUNS_COMMANDS_H_
