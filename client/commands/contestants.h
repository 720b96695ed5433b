// Chooses the schedules that `weft compare` looks at, on a run file's model: those that the user named, or a
// set.
//
// A contestant is a whole run: the run file's with another schedule, and cut into as many stages as that
// needs on the given ranks. If the run file's own schedule takes exactly these ranks with its cut, it keeps
// that cut, which is a part of a plan. Pure.
#ifndef WEFT_CLIENT_COMMANDS_CONTESTANTS_H_
#define WEFT_CLIENT_COMMANDS_CONTESTANTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "run/run_spec.h"

namespace weft {

struct Contestant {
  std::string schedule;         // name as it is shown
  bool chosen = false;          // true for the run file's own schedule
  absl::StatusOr<RunSpec> run;  // the run, or why it cannot be had
  // The schedule without what varies: of contestants that have the same, only the best is of interest.
  std::string choice = {};
  // The choice of which this is a form for slow links, of interest only where it is faster; empty for none.
  std::string deepens = {};
};

// Says what is tried beside the run file's own.
struct Variation {
  bool microbatches = false;  // divisors of the batch, from a quarter to four times the run file's
  bool cuts = false;          // numbers of stages, from half to four times the run file's, or for the ranks
  bool activations = false;   // retain and recompute, for all stages
  bool any() const { return microbatches || cuts || activations; }
};

struct ContestantOptions {
  // Schedules; each text holds one or several, as SplitSchedules takes them; empty for a set.
  std::vector<std::string> schedules;
  // Exact number of ranks, with the stages that they need; 0: as the schedule says.
  int ranks = 0;
  int stages = 0;           // number of stages; 0: the run file's, or what `ranks` needs
  bool slow_links = false;  // transfers take time
  Variation vary = {};
};

// Checks that the named schedules exist. InvalidArgument, which begins with the flag --schedules.
absl::Status CheckNamed(const ContestantOptions& options);

// Checks that the model can be cut into the stages that the options ask for. InvalidArgument, which begins
// with the flag --stages.
absl::Status CheckStages(const RunSpec& run, const ContestantOptions& options);

// Returns the contestants to predict: every family, also those that read old weights, in every size that
// varies; and the run file's own schedule.
std::vector<Contestant> ContestantsToPredict(const RunSpec& run, const ContestantOptions& options);

// Returns the contestants to train: the run file's own schedule first, all on one rank, each family in its
// plain form and each rule, as far as the sizes allow.
std::vector<Contestant> ContestantsToMeasure(const RunSpec& run, const ContestantOptions& options);

// Returns the sizes that all of them share: "4 stages, 8 micro-batches", "4 ranks, 8 micro-batches".
std::string SizesText(const RunSpec& run, const ContestantOptions& options);

// Splits "ddp,rule=cdp_v2,1f1b" into the schedules that it names: a part without `=` begins the next one.
std::vector<std::string> SplitSchedules(const std::string& text);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_CONTESTANTS_H_
