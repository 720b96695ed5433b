// The edges of stages whose holders relay gradients and weights (Schedule::relays).
#include "schedules/graph.h"

namespace weft {

// The running sum of the micro-batches before, or the new version on its way from holder to holder.
void Graph::RelayPredecessors(const Job& job, std::vector<Edge>* edges) const {
  const auto backward = [&](int b) { return Job::Compute(job.step, job.stage, b, final_backward()); };
  if (HasMicrobatch(job.kind)) {
    if (job.microbatch > 0)
      edges->push_back({backward(job.microbatch - 1), job, TensorKind::kGradientSum, 0, 0});
    return;
  }
  const int before = relays_[job.stage]->Before(job.step, job.member);
  if (before < 0) {
    const bool summed = job.kind == JobKind::kUpdate && has_reduce(job.stage);
    edges->push_back(
        {summed ? Job::Reduce(job.step, job.stage, job.member) : backward(schedule_.microbatches - 1), job,
         TensorKind::kGradientSum, summed ? job.member : 0, 0});
  } else {
    edges->push_back({Job::Update(job.step, job.stage, before), job, TensorKind::kWeights, 0, job.step + 1});
  }
}

void Graph::RelaySuccessors(const Job& job, std::vector<Edge>* edges) const {
  if (HasMicrobatch(job.kind)) {
    const bool last = job.microbatch + 1 == schedule_.microbatches;
    edges->push_back({job,
                      last ? (has_reduce(job.stage) ? Job::Reduce(job.step, job.stage, home(job.stage))
                                                    : Job::Update(job.step, job.stage, home(job.stage)))
                           : Job::Compute(job.step, job.stage, job.microbatch + 1, final_backward()),
                      TensorKind::kGradientSum, 0, 0});
    return;
  }
  const int after = relays_[job.stage]->After(job.step, job.member);
  if (after < 0) return;
  edges->push_back({job, Job::Update(job.step, job.stage, after), TensorKind::kWeights, 0, job.step + 1});
}

}  // namespace weft
