// Which schedules `weft compare` looks at, on a run file's model: those that were asked for, or a set.
//
// A contestant is a whole run: the run file's with another schedule, and cut into as many stages as that
// needs on the ranks that were asked for. Pure.
#ifndef WEFT_CLIENT_CONTESTANTS_H_
#define WEFT_CLIENT_CONTESTANTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/run/run_spec.h"

namespace weft {

struct Contestant {
  std::string schedule;         // as it is shown
  bool chosen = false;          // the run file's own
  absl::StatusOr<RunSpec> run;  // or why it cannot be had
};

struct ContestantOptions {
  std::vector<std::string> schedules;  // each one or several, as SplitSchedules takes them; empty for a set
  int ranks = 0;                       // exactly as many, with the stages that takes; 0: as the schedule says
  int stages = 0;                      // 0: the run file's, or what `ranks` needs
};

// What to predict: every family, and the run file's own schedule.
std::vector<Contestant> ContestantsToPredict(const RunSpec& run, const ContestantOptions& options);

// What to train: the run file's own schedule first, all on one rank, each family in its plain form and each
// rule, as far as the sizes allow.
std::vector<Contestant> ContestantsToMeasure(const RunSpec& run, const ContestantOptions& options);

// What is the same for all of them: "4 stages, 8 micro-batches", "4 ranks, 8 micro-batches".
std::string SizesText(const RunSpec& run, const ContestantOptions& options);

// "ddp,rule=cdp_v2,1f1b" as the schedules that it names: what has no `=` begins the next one.
std::vector<std::string> SplitSchedules(const std::string& text);

}  // namespace weft

#endif  // WEFT_CLIENT_CONTESTANTS_H_
