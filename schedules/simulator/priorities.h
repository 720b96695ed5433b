// Gives the priorities of jobs by number: Graph::PriorityOf without turning numbers into jobs. A job's
// priority grows by the same number in every period of steps (schedule.h), so two numbers of each job give it
// in any step. Private to the simulator. Immutable.
#ifndef WEFT_SCHEDULES_SIMULATOR_PRIORITIES_H_
#define WEFT_SCHEDULES_SIMULATOR_PRIORITIES_H_

#include <cstdint>
#include <vector>

#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"

namespace weft {

class Priorities {
 public:
  Priorities(const Graph& graph, const JobTable& jobs);

  int64_t Of(JobId id) const {
    const int step = StepOf(id);
    if (period_ == 1) return lines_[IndexOf(id)].At(step);
    return lines_[static_cast<size_t>(step % period_) * jobs_ + IndexOf(id)].At(step / period_);
  }

 private:
  struct Line {
    int64_t first;   // in the first period
    int64_t growth;  // in each period
    int64_t At(int64_t period) const { return first + period * growth; }
  };

  const int period_;
  const size_t jobs_;        // of a step
  std::vector<Line> lines_;  // [step mod period][job index]
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_PRIORITIES_H_
