// The edges along which the norm of a step's gradients goes, where they are clipped (Schedule::clips): from
// every reduce to the one that totals it, and from there to every update that makes a version.
#include "schedules/graph.h"

namespace weft {

template <typename Take>
void Graph::EachReduce(int step, Take take) const {
  for (int stage = 0; stage < schedule_.stages; ++stage) {
    for (int m = 0; m < static_cast<int>(members_[stage].size()); ++m) {
      if (Reduces(stage, m)) take(Job::Reduce(step, stage, m));
    }
  }
}

void Graph::NormPredecessors(const Job& job, std::vector<Edge>* edges) const {
  const Job total = Job::Reduce(job.step, 0, home(0));
  if (job == total) {
    EachReduce(job.step, [&](const Job& other) {
      if (other != job && GivesSquares(other.stage, other.member))
        edges->push_back({other, job, TensorKind::kNorm, 0, 0});
    });
  } else if (job.kind == JobKind::kUpdate && MakesVersions(job.stage, job.member)) {
    edges->push_back({total, job, TensorKind::kNorm, job.stage, 0});
  }
}

void Graph::NormSuccessors(const Job& reduce, std::vector<Edge>* edges) const {
  const Job total = Job::Reduce(reduce.step, 0, home(0));
  if (!GivesSquares(reduce.stage, reduce.member)) return;
  if (reduce != total) {
    edges->push_back({reduce, total, TensorKind::kNorm, 0, 0});
    return;
  }
  // Whoever sums a part, or the whole, of a gradient also makes versions by it.
  EachReduce(reduce.step, [&](const Job& other) {
    edges->push_back(
        {reduce, Job::Update(other.step, other.stage, other.member), TensorKind::kNorm, other.stage, 0});
  });
}

}  // namespace weft
