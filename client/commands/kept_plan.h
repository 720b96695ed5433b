// Keeps the plan of a training with its results: the file plan.yaml, and beside it the profile that the plan
// came from, so that the run can be explained against both (weft explain).
//
// Threads: any. Failure: a file that cannot be read or written. A profile that is not there any more, or has
// changed, is left out.
#ifndef WEFT_CLIENT_COMMANDS_KEPT_PLAN_H_
#define WEFT_CLIENT_COMMANDS_KEPT_PLAN_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft {

// Holds both as the bytes of their files; `profile` is empty if there is none.
struct KeptPlan {
  std::string plan, profile;
};

// The name that the profile has among the results, as which the plan of a training names it.
inline constexpr char kKeptProfile[] = "profile.json";

// Reads a plan, and the profile that it names: where the plan says, or else beside the plan.
absl::StatusOr<KeptPlan> ReadKeptPlan(const std::string& path);
// Writes both into the folder of the results.
absl::Status WriteKeptPlan(const KeptPlan& plan, const std::string& folder);
// Returns the path of the profile in a folder of results; "" if there is none that a plan came from.
std::string KeptProfile(const std::string& folder);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_KEPT_PLAN_H_
