// Holders that pass sums and versions on, point to point, so that no step needs a message to or from all.
//
// A running sum goes from each micro-batch's backward to the next one's, in their order, and from the last
// one to the stage's home, the holder that the last micro-batch of step 0 names. The home alone has the
// optimizer's state and makes the next version. That goes from holder to holder, in the order in which their
// micro-batches first read it, so that no version waits for one that is needed later; holders that read none
// of a version come last. The order may change from step to step, as the placement does.
#include <algorithm>
#include <utility>

#include "schedules/graph/graph.h"
#include "schedules/sync/catalogue.h"
#include "schedules/sync/single_holder.h"

namespace weft {
namespace {

int MemberOf(const std::vector<Rank>& ranks, Rank rank) {
  return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

// Returns all members, the home first.
std::vector<int> OrderOfReading(const Schedule& schedule, int stage, const std::vector<Rank>& ranks, int home,
                                int step) {
  std::vector<int> order = {home};
  std::vector<bool> placed(ranks.size(), false);
  placed[home] = true;
  const auto place = [&](int member) {
    if (!placed[member]) order.push_back(member);
    placed[member] = true;
  };
  for (int staleness = 0; staleness <= schedule.MaxStaleness(stage); ++staleness) {
    for (int b = 0; b < schedule.microbatches; ++b) {
      if (schedule.StalenessOf(stage, b) != staleness) continue;
      const Job reader = Job::Compute(step + 1 + staleness, stage, b, JobKind::kForward);
      place(MemberOf(ranks, schedule.weights(reader)));
    }
  }
  for (int member = 0; member < static_cast<int>(ranks.size()); ++member) place(member);
  return order;
}

class RelayProtocol : public Protocol {
 public:
  RelayProtocol(const Schedule& schedule, int stage) : Protocol(schedule, stage) {
    const Job last = Job::Compute(0, stage, schedule.microbatches - 1, schedule.final_backward());
    home_ = MemberOf(ranks_, schedule.weights(last));
    for (int member = 0; member < size(); ++member)
      holders_[member].steps = holders_[member].saves = member == home_;
    gradients_leave_ = false;
    passes_sums_ = true;
    for (int step = 0; step < schedule.period; ++step) {
      const std::vector<int> order = OrderOfReading(schedule, stage, ranks_, home_, step);
      std::vector<int>& before = before_.emplace_back(ranks_.size(), -1);
      for (size_t i = 1; i < order.size(); ++i) before[order[i]] = order[i - 1];
    }
  }

  void AddPredecessors(const Graph& graph, const Job& job, Edges* edges) const override {
    if (HasMicrobatch(job.kind)) {
      AddWeights(graph, job, edges);
      if (job.kind != graph.final_backward() || job.microbatch == 0) return;
      const Job before = Job::Compute(job.step, job.stage, job.microbatch - 1, job.kind);
      edges->push_back({before, job, TensorKind::kGradientSum, 0, 0});
      return;
    }
    if (holders_[job.member].steps) {
      AddGradients(graph, job, edges);
    } else {
      const int before = before_[static_cast<size_t>(job.step) % before_.size()][job.member];
      edges->push_back(
          {Job::Update(job.step, job.stage, before), job, TensorKind::kWeights, 0, job.step + 1});
    }
    AddUpdateBefore(job, edges);
  }

  // The running sum of all micro-batches.
  void AddGradients(const Graph& graph, const Job& sum, Edges* edges) const override {
    const int last = graph.schedule().microbatches - 1;
    edges->push_back({Job::Compute(sum.step, sum.stage, last, graph.final_backward()), sum,
                      TensorKind::kGradientSum, 0, 0});
  }

  // Running sums are with the micro-batches.
  Kept KeptBy(const Graph& graph, int member) const override {
    Kept kept = Protocol::KeptBy(graph, member);
    kept.leaving = 1;
    kept.optimizer = holders_[member].steps;
    kept.sums = 0;
    return kept;
  }

 private:
  std::vector<std::vector<int>>
      before_;  // [step mod period][member]: who has the version before it; -1: none
};

class RelaySync : public Sync {
 public:
  std::string name() const override { return "relay"; }
  Protocols Make(const Schedule& schedule, Steps) const override {
    Protocols protocols;
    for (int stage = 0; stage < schedule.stages; ++stage) {
      auto single = std::make_shared<SingleHolder>(schedule, stage);
      if (single->size() == 1) {
        protocols.push_back(std::move(single));
      } else {
        protocols.push_back(std::make_shared<RelayProtocol>(schedule, stage));
      }
    }
    return protocols;
  }
  std::string WhyNotJoint() const override {
    return "the holders of a stage pass sums on in the order of micro-batches";
  }
};

}  // namespace

std::shared_ptr<const Sync> Relayed() {
  static const auto* sync = new std::shared_ptr<const Sync>(std::make_shared<RelaySync>());
  return *sync;
}

}  // namespace weft
