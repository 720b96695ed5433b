// Holds the decisions of a plan, and the predictions for it, as values. The prediction of a choice depends on
// whether a run or a profile alone is planned; searches take it as a function. Pure.
#ifndef WEFT_CLIENT_PLANNING_PLAN_CHOICE_H_
#define WEFT_CLIENT_PLANNING_PLAN_CHOICE_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "run/run_spec.h"

namespace weft {

// A time is shorter than another if it is below this part of it, and not only by rounding.
inline constexpr double kBetter = 1 - 1e-9;

struct PlanChoice {
  ScheduleSpec schedule;             // with the activations of its stages
  std::vector<int> layers_of_stage;  // the cut
  int microbatches = 1;

  int stages() const { return static_cast<int>(layers_of_stage.size()); }
};

// Returns the run under the choice, whose cut is as run files have it.
inline RunSpec RunUnder(RunSpec run, const PlanChoice& choice) {
  run.schedule = choice.schedule;
  SetCut(choice.layers_of_stage, &run);
  run.train.microbatches = choice.microbatches;
  return run;
}

struct PlanPrediction {
  double step = 0;  // time of a step in steady state
  int ranks = 0;
  int staleness = 0;               // most updates by which the weights that it reads are old
  bool guesses_pairs = false;      // true if it has overlapped pairs, and nobody has measured one
  std::vector<double> held_bytes;  // by rank: weights and what goes with them
  std::vector<double> peak_bytes;  // by rank: with the activations
};

// A failure says why the choice cannot be had; IsAboutMemory tells whether more memory would help.
using PredictPlan = std::function<absl::StatusOr<PlanPrediction>(const PlanChoice&)>;
// Likewise on ranks of so many bytes; 0 for no limit.
using PredictWithin = std::function<absl::StatusOr<PlanPrediction>(const PlanChoice&, double memory)>;

struct PredictedChoice {
  PlanChoice choice;
  PlanPrediction prediction;
};

}  // namespace weft

#endif  // WEFT_CLIENT_PLANNING_PLAN_CHOICE_H_
