// Says what a plan puts on each rank: which layers of which stages, and how many bytes of each class. Pure.
//
// For a run, the classes are those of the worker's allocator, counted as the admission of the run counts them
// (run/run_memory.h): `weights`, `gradients`, `optimizer`, `activations` with the copies that come for them,
// `buffers`, and `received` for all other copies. A profile alone tells less: `weights` are all versions of
// them, with gradients that travel and the copy that a rank fetches of another's; `state` is the rest that a
// holder keeps; and for a pattern alone, `copies` are the tensors that arrive from other ranks or leave for
// them. The classes of a rank add up to its peak.
#ifndef WEFT_CLIENT_PLANNING_PLAN_PLACEMENT_H_
#define WEFT_CLIENT_PLANNING_PLAN_PLACEMENT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/files/profile.h"
#include "client/planning/plan_choice.h"
#include "run/run_spec.h"
#include "schedules/job.h"

namespace weft {

struct PlacedStage {
  int first_layer = 0, layers = 0;
  std::vector<Rank> ranks;  // that compute it, ascending
  std::string activations;
};

struct PlanPlacement {
  std::vector<PlacedStage> stages;
  std::vector<std::string> layer_names;  // empty where layers have no names
  // The bytes of each class by rank, in the order in which they are shown.
  std::vector<std::pair<std::string, std::vector<double>>> bytes;
};

// Returns the placement of a run's plan whose ranks hold so much apart from activations, and have these
// peaks. `run` may be under another schedule.
absl::StatusOr<PlanPlacement> PlacementOfRun(const RunSpec& run, const PlanChoice& choice,
                                             const std::vector<double>& held_bytes,
                                             const std::vector<double>& peak_bytes);

// Returns the placement of a profile's plan, whose ranks hold so much apart from activations. `alone`: of a
// pattern whose step is its window.
absl::StatusOr<PlanPlacement> PlacementOfProfile(const Profile& profile, const PlanChoice& choice, bool alone,
                                                 const std::vector<double>& held_bytes,
                                                 const std::vector<double>& peak_bytes);

}  // namespace weft

#endif  // WEFT_CLIENT_PLANNING_PLAN_PLACEMENT_H_
