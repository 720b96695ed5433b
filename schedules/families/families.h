// Lists the named schedules: each family is one function from sizes and parameters to a Schedule value.
//
// No code outside schedules/families tests a family's name, but for the plain loop, which knows by itself
// what old weights are read; each file there is one group of families and names its sources. docs/schedules
// shows them all. Two further names make a schedule from the user's own description: `custom` from formulas
// (families/custom.h), `file` from the rows of actions in its parameter `actions` (actions.h; the parameter
// `path` only says where they came from). Pure. Failure: NotFound for an unknown name, with the nearest one;
// InvalidArgument for parameters and sizes that break the family's constraints, naming the constraint.
#ifndef WEFT_SCHEDULES_FAMILIES_FAMILIES_H_
#define WEFT_SCHEDULES_FAMILIES_FAMILIES_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedules/schedule.h"

namespace weft {

// The payload of a failure that holds the name of the parameter that is to blame, if one is.
inline constexpr absl::string_view kParameterPayload = "weft/parameter";

struct FamilyParameter {
  std::string name;
  std::string help;
  std::vector<std::string> values = {};  // words that it takes, the default first; empty for numbers
  bool needs_rule = false;               // true if all values but the default go with a cyclic rule only
  // True for a number of ranks that is at most the number of micro-batches; each rank has all stages.
  bool deals_microbatches = false;
  bool places_jobs = true;  // false if it only says when jobs run, not where
};
struct Family {
  std::string name;
  std::string help;
  std::vector<FamilyParameter> parameters;
  bool takes_rules = false;        // true if ApplyRule may give it one
  bool reads_old_weights = false;  // true if it trains otherwise than the families that read the newest
  std::string default_rule = "sync";
};

// Returns every family, by name; without `custom` and `file`.
const std::vector<Family>& Families();

// Returns all names that MakeSchedule takes.
std::vector<std::string> ScheduleNames();

// Returns InvalidArgument, with kParameterPayload, if the schedule has no parameter of one of the names.
absl::Status CheckParameterNames(absl::string_view name,
                                 const std::map<std::string, std::string>& parameters);

absl::StatusOr<Schedule> MakeSchedule(absl::string_view name,
                                      const std::map<std::string, std::string>& parameters, int stages,
                                      int microbatches);

// Returns the names of the rules. A rule says which weights a micro-batch reads, and in which order
// micro-batches visit the stages: "sync" is the family's own, the others are in families/cyclic.h.
std::vector<std::string> RuleNames();

// Returns the families to which ApplyRule may give another rule than "sync".
std::vector<std::string> RuleTakers();

// Returns the rule of a run that names none.
std::string DefaultRule(absl::string_view name);

// Gives `schedule`, which MakeSchedule made of `name`, the rule. InvalidArgument, with the reason, if there
// is no such rule, the family takes none, or the sizes do not allow it.
absl::Status ApplyRule(absl::string_view rule, absl::string_view name, Schedule* schedule);

}  // namespace weft

#endif  // WEFT_SCHEDULES_FAMILIES_FAMILIES_H_
