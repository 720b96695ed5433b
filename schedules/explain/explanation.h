// Explains by how much a measured step differs from its plan: names where along the measured critical path
// the time was spent, in seconds that add up to the difference of the two makespans.
//
// The walk begins with the job of the step that ended last. It goes back to what released that job, which is
// the last of its predecessors in the job graph and of the rank's job before it, and so on to the start of
// the step. The measured makespan is then the sum of what the jobs of this path took, and of the gaps between
// them. Each job differs from its plan by a number of seconds, and each gap has the causes for which the
// rank was idle in it. The planned time of the same jobs and transfers may be shorter than the plan's
// makespan: the rest is the plan's slack on this path, which the measured run has used up. So
//
//   measured - planned = slower jobs + gaps (without planned transfers) - slack
//
// exactly. Pure; deterministic.
#ifndef WEFT_SCHEDULES_EXPLAIN_EXPLANATION_H_
#define WEFT_SCHEDULES_EXPLAIN_EXPLANATION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "schedules/drawing/drawing.h"
#include "schedules/graph/graph.h"

namespace weft {

// A step, or some steps that overlap: jobs, and the idle times and transfers about their time. Jobs need no
// member: their rank tells it.
struct TimedSteps {
  std::vector<DrawnJob> jobs;
  std::vector<DrawnIdle> idle;
  std::vector<DrawnTransfer> transfers;
};

// Part of the difference between a measured makespan and the planned one.
struct Difference {
  // "slower job", "faster job", a cause of idle time ("transfer", "dispatch", "memory", ..), or "slack".
  std::string cause;
  double seconds = 0;  // positive where the measured run took longer
  Rank rank = -1;      // -1 for slack
  // Jobs of the row: their kind and stage, how many are on the path, and their time in all.
  JobKind kind = JobKind::kForward;
  int stage = -1;  // -1 for what is no job
  int count = 0;   // jobs, or gaps
  double planned = 0, measured = 0;
};

struct Explanation {
  double planned = 0, measured = 0;     // makespans
  std::vector<Difference> differences;  // the largest first; the sum is `measured - planned`
  std::vector<Job> path;                // the measured critical path, from its end to its start
};

// Explains `measured`, whose steps need not have the numbers of those in `planned`: the first step of the one
// is that of the other. The graph is of the run's schedule. InvalidArgument where the two have not the same
// jobs.
absl::StatusOr<Explanation> Explain(const Graph& graph, const TimedSteps& planned,
                                    const TimedSteps& measured);

}  // namespace weft

#endif  // WEFT_SCHEDULES_EXPLAIN_EXPLANATION_H_
