#include "schedules/simulator/priorities.h"

namespace weft {

Priorities::Priorities(const Graph& graph, const JobTable& jobs)
    : period_(jobs.period()), jobs_(jobs.size()) {
  lines_.reserve(jobs_ * period_);
  for (int phase = 0; phase < period_; ++phase) {
    for (int i = 0; i < jobs.size(); ++i) {
      const int64_t first = graph.PriorityOf(jobs.JobOf(MakeJobId(phase, i)));
      const int64_t second = graph.PriorityOf(jobs.JobOf(MakeJobId(phase + period_, i)));
      lines_.push_back({first, second - first});
    }
  }
}

}  // namespace weft
