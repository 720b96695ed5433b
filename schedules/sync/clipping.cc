// Gradients that are clipped by their global norm, whatever protocol a stage has. Each holder that makes
// versions sums gradients by a reduce, also where its protocol has none; the reduce gives the sum of squares
// of its sum. One reduce adds them up, that of the first stage, whose backwards end last; and every update
// that makes a version waits for the total.
#include <algorithm>
#include <utility>

#include "schedules/graph/graph.h"
#include "schedules/sync/catalogue.h"

namespace weft {
namespace {

class ClippedProtocol : public Protocol {
 public:
  // `norms`: the reduces of all stages that give a norm, of step 0.
  ClippedProtocol(std::shared_ptr<const Protocol> inner, const Job& total,
                  std::shared_ptr<const std::vector<Job>> norms)
      : Protocol(*inner), inner_(std::move(inner)), total_(total), norms_(std::move(norms)) {
    has_reduce_ = true;
    for (int m = 0; m < size(); ++m) {
      Holder& holder = holders_[m];
      holder.reduces = holder.steps;
      holder.gives_norm = GivesNorm(*inner_, m);
    }
    if (stage_ == total.stage) holders_[total.member].totals_norm = true;
  }

  // Returns true if the member's sum counts for the norm: where a joint operation leaves all members the same
  // sum, only the first's.
  static bool GivesNorm(const Protocol& inner, int member) {
    const bool same = inner.reduces_jointly() && !inner.scatters_sum();
    return inner.holder(member).steps && (!same || member == 0);
  }

  void AddPredecessors(const Graph& graph, const Job& job, Edges* edges) const override {
    const bool steps = !HasMicrobatch(job.kind) && holders_[job.member].steps;
    if (!steps || inner_->has_reduce()) {
      inner_->AddPredecessors(graph, job, edges);
    } else if (job.kind == JobKind::kReduce) {
      inner_->AddGradients(graph, job, edges);
    } else {
      edges->push_back(
          {Job::Reduce(job.step, job.stage, job.member), job, TensorKind::kGradientSum, job.member, 0});
      AddUpdateBefore(job, edges);
    }
    if (steps) AddNorms(job, edges);
  }

  // A sum waits for the norm while those of later steps are summed already.
  Kept KeptBy(const Graph& graph, int member) const override {
    Kept kept = inner_->KeptBy(graph, member);
    if (!holders_[member].steps) return kept;
    kept.waiting = graph.schedule().MaxStaleness(stage_);
    kept.sums = 1 + kept.waiting;
    return kept;
  }

  void AddOperations(const Graph& graph, const Job& job, std::vector<Operation>* operations) const override {
    if (inner_->has_reduce()) {
      inner_->AddOperations(graph, job, operations);
    } else {
      Protocol::AddOperations(graph, job, operations);
    }
    if (job.kind == JobKind::kReduce && holders_[job.member].gives_norm)
      operations->push_back(Operation::kSumSquares);
    std::replace(operations->begin(), operations->end(), Operation::kStep, Operation::kClippedStep);
  }

 private:
  void AddNorms(const Job& job, Edges* edges) const {
    Job total = total_;
    total.step = job.step;
    if (job.kind == JobKind::kUpdate) {
      edges->push_back({total, job, TensorKind::kNorm, job.stage, 0});
    } else if (job == total) {
      for (Job reduce : *norms_) {
        reduce.step = job.step;
        if (reduce != job) edges->push_back({reduce, job, TensorKind::kNorm, 0, 0});
      }
    }
  }

  std::shared_ptr<const Protocol> inner_;
  Job total_;  // of step 0
  std::shared_ptr<const std::vector<Job>> norms_;
};

}  // namespace

Protocols WithGlobalNorm(Protocols protocols) {
  const auto norms = std::make_shared<std::vector<Job>>();
  for (int stage = 0; stage < static_cast<int>(protocols.size()); ++stage) {
    for (int m = 0; m < protocols[stage]->size(); ++m) {
      if (ClippedProtocol::GivesNorm(*protocols[stage], m)) norms->push_back(Job::Reduce(0, stage, m));
    }
  }
  const Job total = Job::Reduce(0, 0, protocols.front()->home());
  for (std::shared_ptr<const Protocol>& protocol : protocols)
    protocol = std::make_shared<ClippedProtocol>(std::move(protocol), total, norms);
  return protocols;
}

}  // namespace weft
