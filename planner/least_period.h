// Finds the pattern of least period of a placed chain: a search over the period around FindPattern.
//
// A pattern that is feasible with a period is feasible with every longer one, with the same shifts and so the
// same memory: all starts are stretched. Hence the periods are bisected, and each pattern that is found is
// first compressed as far as its shifts allow. A question that the limits cut short counts as a no for the
// search, but not for the bound that it proves. Pure.
#ifndef WEFT_PLANNER_LEAST_PERIOD_H_
#define WEFT_PLANNER_LEAST_PERIOD_H_

#include <cstdint>
#include <limits>
#include <optional>

#include "planner/pattern.h"
#include "planner/shift_search.h"

namespace weft {

struct LeastPeriod {
  std::optional<Pattern> pattern;  // the best found
  int64_t lower_bound = 0;         // no pattern has a shorter period; kNoPeriod where there is none at all
  bool proven() const { return pattern.has_value() && pattern->period == lower_bound; }
};
inline constexpr int64_t kNoPeriod = std::numeric_limits<int64_t>::max();

// Looks for patterns with a period below `below` only: where there is none, the bound returned is `below`.
// Requires a sound problem (CheckProblem).
LeastPeriod FindLeastPeriod(const PatternProblem& problem, const SearchLimits& limits = {},
                            int64_t below = kNoPeriod);

// Returns a pattern of the least period that the resources allow, if memory were no limit: the tasks of each
// resource one behind the other in the order of the chain.
Pattern PackedPattern(const PatternProblem& problem);

// Returns the least memory, by rank, with which there is a pattern: that of one batch at a time.
std::vector<int64_t> LeastMemory(const PatternProblem& problem);

}  // namespace weft

#endif  // WEFT_PLANNER_LEAST_PERIOD_H_
