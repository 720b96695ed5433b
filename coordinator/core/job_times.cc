#include "coordinator/core/job_times.h"

#include <algorithm>

namespace weft {

// Returns null for a step that has been left.
JobTimes::Step* JobTimes::Open(int32_t step) {
  if (step < first_step_) return nullptr;
  while (step >= first_step_ + static_cast<int32_t>(steps_.size())) {
    const auto jobs = static_cast<size_t>(graph_.jobs_per_step());
    steps_.push_back({std::vector<int64_t>(jobs), std::vector<int64_t>(jobs)});
  }
  return &steps_[step - first_step_];
}

void JobTimes::Claimed(int64_t now, const std::vector<Job>& jobs) {
  for (const Job& job : jobs) {
    if (Step* step = Open(job.step)) step->claimed[graph_.IndexOf(job)] = now;
  }
}

void JobTimes::Ended(int64_t now, const Job& job) {
  if (Step* step = Open(job.step)) step->ended[graph_.IndexOf(job)] = now;
}

void JobTimes::LeaveBefore(int32_t step) {
  while (!steps_.empty() && first_step_ + 1 < step) {
    steps_.pop_front();
    ++first_step_;
  }
}

JobTimes::Times JobTimes::Of(const Job& job) const {
  const auto step_of = [this](const Job& j) -> const Step* {
    const int64_t place = int64_t{j.step} - first_step_;
    return place < 0 || place >= static_cast<int64_t>(steps_.size()) ? nullptr : &steps_[place];
  };
  const Step* const own = step_of(job);
  if (own == nullptr) return {};
  Times times{own->claimed[graph_.IndexOf(job)], 0};
  std::vector<Edge> edges;
  graph_.Predecessors(job, &edges);
  for (const Edge& e : edges) {
    if (const Step* step = step_of(e.from))
      times.ready_ns = std::max(times.ready_ns, step->ended[graph_.IndexOf(e.from)]);
  }
  return times;
}

}  // namespace weft
