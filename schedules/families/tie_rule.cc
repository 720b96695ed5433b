#include "schedules/families/tie_rule.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "schedules/families/formula.h"
#include "schedules/nearest.h"

namespace weft {
namespace {

absl::Status AtParameter(absl::string_view family, absl::string_view parameter, absl::string_view message) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(family, ": ", parameter, " ", message));
  status.SetPayload(kParameterPayload, absl::Cord(parameter));
  return status;
}

// The micro-batch that has been under way for longest goes first, and of one micro-batch the job that is
// nearest its end.
std::function<int64_t(const Job&)> DepthFirstPriority(int stages, int microbatches) {
  return [stages, microbatches](const Job& j) {
    const int done = j.kind == JobKind::kForward ? j.stage : 2 * stages - 1 - j.stage;
    return PackPriority(j, 0, j.microbatch, microbatches, 2 * stages - 1 - done, 2 * stages);
  };
}

// Ranks all micro-batches of a stage before those of the next: forwards from the first stage, backwards from
// the last.
std::function<int64_t(const Job&)> BreadthFirstPriority(int stages, int microbatches) {
  return [stages, microbatches](const Job& j) {
    const bool forward = j.kind == JobKind::kForward;
    return PackPriority(j, forward ? 0 : 1, forward ? j.stage : stages - 1 - j.stage, stages, j.microbatch,
                        microbatches);
  };
}

std::string OrderOf(absl::string_view own, const FamilyParameters& parameters) {
  const auto order = parameters.find("order");
  return order == parameters.end() ? std::string(own) : order->second;
}

}  // namespace

std::vector<std::string> OrdersFrom(absl::string_view first) {
  std::vector<std::string> orders = {std::string(first)};
  for (const absl::string_view order : {kForwardsFirst, kOneForwardOneBackward, kDepthFirst, kBreadthFirst}) {
    if (order != first) orders.emplace_back(order);
  }
  return orders;
}

std::vector<FamilyParameter> TieRuleParameters(absl::string_view own, std::vector<FamilyParameter> others) {
  FamilyParameter order;
  order.name = "order";
  order.help = absl::StrCat("which ready job a rank starts (default ", own, "), see below");
  order.values = OrdersFrom(own);
  order.places_jobs = false;
  others.push_back(std::move(order));
  others.push_back(
      InFlightParameter(absl::StrCat("most micro-batches in flight on a stage (default ",
                                     own == kOneForwardOneBackward ? "S - s" : "no bound", "), see below")));
  return others;
}

FamilyParameter InFlightParameter(const std::string& help) {
  FamilyParameter in_flight;
  in_flight.name = "in_flight";
  in_flight.help = help;
  in_flight.places_jobs = false;
  return in_flight;
}

absl::Status GiveOrder(absl::string_view own, absl::string_view family, const FamilyParameters& parameters,
                       Schedule* schedule) {
  const std::string order = OrderOf(own, parameters);
  const int stages = schedule->stages, microbatches = schedule->microbatches;
  if (order == kForwardsFirst || order == kOneForwardOneBackward) {
    schedule->priority = PriorityByMicrobatch(stages, microbatches, order == kForwardsFirst);
  } else if (order == kDepthFirst) {
    schedule->priority = DepthFirstPriority(stages, microbatches);
  } else if (order == kBreadthFirst) {
    schedule->priority = BreadthFirstPriority(stages, microbatches);
  } else {
    const std::vector<std::string> orders = OrdersFrom(own);
    return AtParameter(family, "order",
                       absl::StrFormat("is '%s'; it must be one of %s%s", order, absl::StrJoin(orders, ", "),
                                       DidYouMean(order, orders)));
  }
  if (order != kOneForwardOneBackward) return absl::OkStatus();
  schedule->limit = [stages](Rank, int stage) -> std::optional<int> { return stages - stage; };
  return absl::OkStatus();
}

absl::StatusOr<Schedule> WithTieRule(absl::string_view own, absl::string_view family,
                                     const FamilyParameters& parameters, Schedule schedule) {
  if (absl::Status s = GiveOrder(own, family, parameters, &schedule); !s.ok()) return s;
  auto in_flight = ReadInFlight(family, parameters, schedule);
  if (!in_flight.ok()) return in_flight.status();
  if (*in_flight) schedule.limit = *std::move(in_flight);
  for (const char* name : {"order", "in_flight"}) {
    const auto given = parameters.find(name);
    if (given != parameters.end()) absl::StrAppend(&schedule.name, ",", name, "=", given->second);
  }
  return schedule;
}

absl::StatusOr<PlaceNumbers> NumbersOfPlaces(const std::string& text,
                                             const std::map<std::string, int64_t>& constants, int stages,
                                             int ranks) {
  const auto formula = Formula::Parse(text, {"s", "w"}, constants);
  if (!formula.ok()) return formula.status();
  const int places = formula->Uses("w") ? ranks : 1;
  if (int64_t{stages} * places > 16'000'000) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d stages on %d ranks are too many to tabulate", stages, ranks));
  }
  auto values = std::make_shared<std::vector<int>>();
  for (int s = 0; s < stages; ++s) {
    for (int w = 0; w < places; ++w) {
      const auto value = formula->Evaluate({s, w});
      if (!value.ok()) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s; for stage %d on rank %d", value.status().message(), s, w));
      }
      // CheckSchedule refuses those below one where a forward needs them.
      values->push_back(static_cast<int>(std::clamp<int64_t>(*value, -1, std::numeric_limits<int>::max())));
    }
  }
  return PlaceNumbers([values = std::shared_ptr<const std::vector<int>>(values), places](
                          Rank w, int s) -> std::optional<int> {
    return (*values)[static_cast<size_t>(s) * places + (places > 1 ? w : 0)];
  });
}

absl::StatusOr<PlaceNumbers> ReadInFlight(absl::string_view family, const FamilyParameters& parameters,
                                          const Schedule& sizes) {
  const auto given = parameters.find("in_flight");
  if (given == parameters.end()) return PlaceNumbers();
  auto numbers =
      NumbersOfPlaces(given->second, {{"S", sizes.stages}, {"B", sizes.microbatches}, {"W", sizes.ranks}},
                      sizes.stages, sizes.ranks);
  if (!numbers.ok())
    return AtParameter(family, "in_flight", absl::StrCat("is no formula: ", numbers.status().message()));
  return numbers;
}

}  // namespace weft
