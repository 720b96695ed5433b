// Holds a periodic pattern and the problem that it answers, as values: which tasks follow one another, which
// resources they occupy and what they keep in memory; and when each of them starts.
//
// A pattern repeats a window of `batches` batches every `period` ticks: instance i of a task starts at its
// start plus i periods. A task may start later than a period after the first one; its shift is the number of
// whole periods, so that in one window it works on a batch that entered so many windows ago. All that a
// pattern costs follows from the starts: `CheckPattern` (pattern_check.h) verifies an answer without any
// solver.
//
// Invariants of a problem, verified by CheckProblem:
//   1. `tasks` are the batches one after the other, each with the same number of tasks in the order in which
//      they depend on each other: within a batch, a task starts after the one before it has ended, and its
//      lag has passed.
//   2. Tasks that occupy a resource or begin or end a hold take time; tasks of one hold are of one batch, the
//      first not behind the last, and all tasks that hold bytes of one rank share a resource.
// Times are ticks, of any length: whole numbers, so that no comparison needs a tolerance. Pure.
#ifndef WEFT_PLANNER_PATTERN_H_
#define WEFT_PLANNER_PATTERN_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace weft {

// A memory without a limit.
inline constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max();

struct PatternTask {
  std::string name;  // for messages
  int64_t duration = 0;
  std::vector<int> resources = {};  // at most one task of each at a time; empty for none
  int64_t lag = 0;                  // from its end to the earliest start of the next task of its batch
};

// Bytes on a rank from the start of one task to the end of another, or of the same, of one batch.
struct PatternHold {
  int rank = 0;
  int64_t bytes = 0;
  int first = 0, last = 0;  // tasks
};

struct PatternProblem {
  int batches = 1;  // in a window
  std::vector<PatternTask> tasks;
  std::vector<PatternHold> holds;
  // Bytes that are always there, and the most that there may be; by rank.
  std::vector<int64_t> resident, memory;

  int ranks() const { return static_cast<int>(memory.size()); }
  int tasks_of_batch() const { return static_cast<int>(tasks.size()) / batches; }
  // Returns true if the task waits for the one before it.
  bool FollowsPrevious(int task) const { return task % tasks_of_batch() != 0; }
};

struct Pattern {
  int64_t period = 0;           // of a window, in ticks
  std::vector<int64_t> starts;  // by task, in ticks
};

// Returns InvalidArgument with the broken invariant.
absl::Status CheckProblem(const PatternProblem& problem);

// Returns a period below which there is no pattern: the largest sum of durations on a resource.
int64_t LoadBound(const PatternProblem& problem);

// Returns how long one batch takes alone: with this period for each batch, batches do not meet.
int64_t ChainTicks(const PatternProblem& problem);

// Returns floor(a / b) for b > 0.
constexpr int64_t FloorDiv(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

}  // namespace weft

#endif  // WEFT_PLANNER_PATTERN_H_
