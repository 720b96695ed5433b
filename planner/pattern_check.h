// Verifies a pattern, and counts its memory, by playing it: independent of every solver and of the arithmetic
// of shifts.
//
// Batch after batch is entered until the state repeats, each task at the instant that the pattern says. The
// check names tasks that overlap on a resource, start before their input is there, or exceed a rank's memory
// at any instant. Pure. O(instances * log).
#ifndef WEFT_PLANNER_PATTERN_CHECK_H_
#define WEFT_PLANNER_PATTERN_CHECK_H_

#include <vector>

#include "absl/status/status.h"
#include "planner/pattern.h"

namespace weft {

// Returns InvalidArgument, naming the tasks and the ticks, or the rank and the bytes, for a pattern that does
// not answer the problem. Requires a sound problem (CheckProblem).
absl::Status CheckPattern(const PatternProblem& problem, const Pattern& pattern);

// Returns the most bytes that each rank ever has, resident ones included. Requires as many starts as tasks.
std::vector<int64_t> PatternPeaks(const PatternProblem& problem, const Pattern& pattern);

}  // namespace weft

#endif  // WEFT_PLANNER_PATTERN_CHECK_H_
