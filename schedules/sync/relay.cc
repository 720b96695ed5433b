// Holders that pass sums and versions on, point to point, so that no step needs a message to or from all.
//
// A running sum goes from each micro-batch's backward to the next one's, in their order, and from the last
// one to the stage's home, the holder that the last micro-batch of step 0 names. The home alone has the
// optimizer's state and makes the next version. The version goes from holder to holder, in the order in which
// their micro-batches first read it, so that no holder waits for one that needs it later. The order may
// change from step to step, as the placement does.
//
// A holder whose one micro-batch reads every version a step late installs it late (Holder::installs_late):
// its update of a step follows that step's backward, the last job that reads the version before, and installs
// what the step began with. So it needs room for one version. It gets the version from a holder that has held
// it since the step's begin, or from one that installed it late too; so these come last.
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

// Returns whether each member's one micro-batch of every step reads its own weights a step late, and whether
// the member does nothing for others.
std::vector<bool> ReadLate(const Schedule& schedule, int stage, const std::vector<Rank>& ranks) {
  std::vector<bool> late(ranks.size(), schedule.MaxStaleness(stage) == 1);
  for (int step = 0; step < schedule.period; ++step) {
    std::vector<int> microbatches(ranks.size(), 0);
    for (int b = 0; b < schedule.microbatches; ++b) {
      const Job job = Job::Compute(step, stage, b, JobKind::kForward);
      const int member = MemberOf(ranks, schedule.weights(job));
      bool own = true;
      for (const JobKind kind : {JobKind::kForward, schedule.input_backward(), schedule.final_backward()}) {
        const Job of_kind = Job::Compute(step, stage, b, kind);
        own &= schedule.compute(of_kind) == ranks[member] && schedule.weights(of_kind) == ranks[member];
        if (schedule.weights(of_kind) != ranks[member])
          late[MemberOf(ranks, schedule.weights(of_kind))] = false;
      }
      ++microbatches[member];
      late[member] = late[member] && own && schedule.StalenessOf(stage, b) == 1;
    }
    for (size_t m = 0; m < ranks.size(); ++m) late[m] = late[m] && microbatches[m] == 1;
  }
  return late;
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
    const std::vector<bool> late = ReadLate(schedule, stage, ranks_);
    for (int member = 0; member < size(); ++member)
      holders_[member].installs_late = late[member] && member != home_;
    gradients_leave_ = false;
    passes_sums_ = true;
    for (int step = 0; step < schedule.period; ++step) {
      std::vector<int> order = OrderOfReading(schedule, stage, ranks_, home_, step);
      std::stable_partition(order.begin(), order.end(),
                            [this](int member) { return !holders_[member].installs_late; });
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
      AddInstalled(graph, job, edges);
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
  // Appends the edge from the holder that has the version first, and, where it is installed late, those from
  // the jobs that read the one before.
  void AddInstalled(const Graph& graph, const Job& job, Edges* edges) const {
    const int version = VersionBehind(job);
    const size_t made = static_cast<size_t>(version + before_.size() - 1) % before_.size();
    const Job update = UpdateTo(version, before_[made][job.member]);
    if (update.step >= 0) edges->push_back({update, job, TensorKind::kWeights, 0, version});
    if (!holders_[job.member].installs_late) return;
    for (int b = 0; b < graph.schedule().microbatches; ++b) {
      const Job reader = Job::Compute(job.step, job.stage, b, graph.final_backward());
      if (graph.Reads(reader, job.member)) edges->push_back({reader, job, TensorKind::kOrder, 0, 0});
    }
  }

  // [step of the update that makes the version, mod period][member]: who has it before the member; -1: none
  std::vector<std::vector<int>> before_;
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
