// Each holder has all weights of the stage. The gradient of a micro-batch is cut into as many slices as there
// are holders, and each holder's reduce sums one slice over all micro-batches, in their order. Every update
// takes all sums, and so every holder makes the same version.
#include <utility>

#include "schedules/graph/graph.h"
#include "schedules/sync/catalogue.h"
#include "schedules/sync/single_holder.h"

namespace weft {
namespace {

class SlicedSumProtocol : public SingleHolder {
 public:
  SlicedSumProtocol(const Schedule& schedule, int stage) : SingleHolder(schedule, stage) {
    if (size() > 1) ReduceAll();
  }

  void AddPredecessors(const Graph& graph, const Job& job, Edges* edges) const override {
    if (job.kind != JobKind::kUpdate || !has_reduce()) {
      return job.kind == JobKind::kReduce ? AddGradients(graph, job, edges)
                                          : SingleHolder::AddPredecessors(graph, job, edges);
    }
    for (int part = 0; part < size(); ++part) {
      edges->push_back({Job::Reduce(job.step, job.stage, part), job, TensorKind::kGradientSum, part, 0});
    }
    AddUpdateBefore(job, edges);
  }

  Kept KeptBy(const Graph& graph, int member) const override {
    Kept kept = SingleHolder::KeptBy(graph, member);
    kept.parts_of_sum = size();
    // Others take a slice's sum for their updates. The next sum is not complete before they have, but begun.
    kept.sums_leaving = size() > 1 ? 1 : 0;
    return kept;
  }
};

class SlicedSumSync : public Sync {
 public:
  std::string name() const override { return "slices"; }
  Protocols Make(const Schedule& schedule, Steps) const override {
    Protocols protocols;
    for (int stage = 0; stage < schedule.stages; ++stage)
      protocols.push_back(std::make_shared<SlicedSumProtocol>(schedule, stage));
    return protocols;
  }
};

}  // namespace

std::shared_ptr<const Sync> SlicedSums() {
  static const auto* sync = new std::shared_ptr<const Sync>(std::make_shared<SlicedSumSync>());
  return *sync;
}

}  // namespace weft
