// Decides whether a problem has a pattern of a given period, by branch and bound on shifts.
//
// Two tasks u and v of one resource do not overlap in a pattern of period T if, for some whole number k,
// duration(u) <= start(v) - start(u) - k T <= T - duration(v): k says how many windows v runs behind u. Once
// every pair has its k, starts are those of a longest path, and the copies of each held tensor at each
// instant are sums of k: the memory is linear in them. So the search branches on the k of pairs that overlap
// at the earliest starts, and keeps the longest paths between all tasks. Both bound the k of all other pairs:
// a path bounds what starts are possible, and the memory that is left on a rank bounds the copies of each
// tensor. The model is that of periodic event scheduling (Serafini and Ukovich 1989).
//
// Pure, one thread. Nodes cost O(tasks^2) for each k that they fix.
#ifndef WEFT_PLANNER_SHIFT_SEARCH_H_
#define WEFT_PLANNER_SHIFT_SEARCH_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include "planner/pattern.h"

namespace weft {

// Limits of a search. `stop` is asked now and then; true ends the search.
struct SearchLimits {
  int64_t nodes = std::numeric_limits<int64_t>::max();  // of each question
  std::function<bool()> stop = [] { return false; };
};

enum class Verdict { kFound, kImpossible, kUnknown };

struct ShiftSearchResult {
  Verdict verdict = Verdict::kUnknown;
  Pattern pattern;  // if found
  int64_t nodes = 0;
};

// Requires a sound problem (CheckProblem) and a period of at least 1.
ShiftSearchResult FindPattern(const PatternProblem& problem, int64_t period, const SearchLimits& limits = {});

// Returns the least period that the tasks' order in `pattern` allows: the same shifts, hence the same memory.
// Requires a pattern that answers the problem.
Pattern Compressed(const PatternProblem& problem, const Pattern& pattern);

}  // namespace weft

#endif  // WEFT_PLANNER_SHIFT_SEARCH_H_
