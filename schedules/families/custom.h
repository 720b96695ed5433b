// Makes schedules that a user writes as formulas, in a run file and without code:
//
//   custom: {ranks: 8, compute: "(R*b) % W + s % R", weights: "s % W", R: 4}
//
// A formula is a whole-number expression (schedules/families/formula.h) over the step t, the stage s, the
// micro-batch b and the kind k, which is compared with the names forward, backward, backward_input,
// backward_weight, reduce and update; over the sizes S, B and W; and over the constants that stand beside it.
// Each formula is evaluated once for every value of the variables that it uses and kept as a table, so that
// the schedule is as fast and as pure as a family's.
#ifndef WEFT_SCHEDULES_FAMILIES_CUSTOM_H_
#define WEFT_SCHEDULES_FAMILIES_CUSTOM_H_

#include "absl/status/statusor.h"
#include "schedules/families/family.h"

namespace weft {

// Returns the family `custom` with its parameters; any other name with a whole number is a constant, which a
// formula must use.
const Family& CustomFamily();

// Returns InvalidArgument for a parameter that custom has not and that can be no constant, with its name in
// the payload kParameterPayload.
absl::Status CheckCustomParameters(const FamilyParameters& parameters);

// Makes the schedule. Failure as MakeSchedule's; the payload names the parameter, the message formula and
// column.
absl::StatusOr<Schedule> CustomSchedule(const FamilyParameters& parameters, int stages, int microbatches);

}  // namespace weft

#endif  // WEFT_SCHEDULES_FAMILIES_CUSTOM_H_
