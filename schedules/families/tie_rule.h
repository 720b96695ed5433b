// Gives a greedy placement its tie rule, by which a rank chooses among ready jobs, and the number of
// micro-batches that a stage may have in flight on a rank.
//
// Neither depends on where jobs run, so every family that is dispatched greedily takes both, as its
// parameters `order` and `in_flight`: lpp,groups=2,ranks=4,in_flight=S is lpp with a cap, and
// gpipe,order=1f1b is 1f1b. Pure. Failure: InvalidArgument that names the family, with the parameter in the
// payload kParameterPayload.
#ifndef WEFT_SCHEDULES_FAMILIES_TIE_RULE_H_
#define WEFT_SCHEDULES_FAMILIES_TIE_RULE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedules/families/family.h"
#include "schedules/schedule.h"

namespace weft {

// The orders, as the parameter `order` names them.
inline constexpr absl::string_view kForwardsFirst = "forwards_first";  // then older micro-batches
inline constexpr absl::string_view kOneForwardOneBackward = "1f1b";    // backwards first, S - s in flight
inline constexpr absl::string_view kDepthFirst = "depth_first";  // the oldest micro-batch, nearest its end
inline constexpr absl::string_view kBreadthFirst = "breadth_first";  // all micro-batches of a stage

// Returns the names of all orders, `first` before the others.
std::vector<std::string> OrdersFrom(absl::string_view first);

// Returns the parameters of a family whose own order is `own`: the two behind its others.
std::vector<FamilyParameter> TieRuleParameters(absl::string_view own,
                                               std::vector<FamilyParameter> others = {});

// Returns the parameter `in_flight` alone, for a family that reads it itself.
FamilyParameter InFlightParameter(const std::string& help);

// Gives the schedule its order: that of the parameters, or `own`; and for 1f1b its number in
// flight. InvalidArgument for an unknown order.
absl::Status GiveOrder(absl::string_view own, absl::string_view family, const FamilyParameters& parameters,
                       Schedule* schedule);

// Gives the schedule both: the order, and the number in flight, which is S - s in the order 1f1b where the
// parameters do not say it, and without bound in the other orders. Adds them to its name.
absl::StatusOr<Schedule> WithTieRule(absl::string_view own, absl::string_view family,
                                     const FamilyParameters& parameters, Schedule schedule);

// Numbers by rank and stage, as in Schedule::limit.
using PlaceNumbers = std::function<std::optional<int>(Rank rank, int stage)>;

// Evaluates a formula over the stage s and the rank w once for each of their values. The error names the
// place.
absl::StatusOr<PlaceNumbers> NumbersOfPlaces(const std::string& formula,
                                             const std::map<std::string, int64_t>& constants, int stages,
                                             int ranks);

// Returns the numbers of the parameter `in_flight`, a formula over s, w, and the sizes S, B and W; nothing if
// it is not given.
absl::StatusOr<PlaceNumbers> ReadInFlight(absl::string_view family, const FamilyParameters& parameters,
                                          const Schedule& sizes);

}  // namespace weft

#endif  // WEFT_SCHEDULES_FAMILIES_TIE_RULE_H_
