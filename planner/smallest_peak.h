// Finds the pattern of a given period whose fullest rank has the fewest bytes: a search over the memory
// around FindPattern, as least_period.h is one over the period.
//
// Memory that is enough stays enough with more of it, so it is bisected. Most questions about too little
// memory are answered before the search branches. A question that the limits cut short counts as a no for the
// search, but not for the bound. Pure.
#ifndef WEFT_PLANNER_SMALLEST_PEAK_H_
#define WEFT_PLANNER_SMALLEST_PEAK_H_

#include <cstdint>
#include <optional>

#include "planner/pattern.h"
#include "planner/shift_search.h"

namespace weft {

struct SmallestPeak {
  std::optional<Pattern> pattern;  // the best found; none where the period is too short, or time was over
  int64_t bytes = 0;               // most of a rank, resident ones included; of the pattern
  int64_t lower_bound = 0;         // no pattern of this period needs less
  bool proven() const { return pattern.has_value() && bytes == lower_bound; }
};

// Looks for patterns with at most `most` bytes on each rank; the problem's own limits are not looked at.
// Requires a sound problem (CheckProblem) and a period of at least 1.
SmallestPeak FindSmallestPeak(PatternProblem problem, int64_t period, const SearchLimits& limits = {},
                              int64_t most = kUnlimitedBytes);

}  // namespace weft

#endif  // WEFT_PLANNER_SMALLEST_PEAK_H_
