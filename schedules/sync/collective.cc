// Holders whose devices sum by one joint operation, and may gather slices of weights by another, in one order
// for all ranks (joint_order.h). The protocol stands on another one, of copies or of slices, whose other
// edges it keeps.
//
// A member starts its reduce when the backwards on its own rank have ended. It ends after the backwards of
// the other members, and after the joint operations that stand before it on any member's device. Joined edges
// say so; nothing is sent for them. If gradients are clipped, the job that totals the norms does so after its
// joint operation, and devices go on meanwhile; here the next one counts as behind that too.
#include <algorithm>
#include <utility>

#include "schedules/graph/graph.h"
#include "schedules/sync/catalogue.h"
#include "schedules/sync/joint_order.h"
#include "schedules/sync/reduction_mode.h"

namespace weft {
namespace {

// Returns true if each member computes with its own copy, which no job on another rank reads; or, where each
// has a slice, with what it gathers. Then a member makes every gradient, and can add it to its own sum.
bool MembersComputeAlone(const Schedule& schedule, const Protocol& held, int stage) {
  for (int step = 0; step < schedule.period; ++step) {
    for (int b = 0; b < schedule.microbatches; ++b) {
      for (const JobKind kind : {JobKind::kForward, schedule.input_backward(), schedule.final_backward()}) {
        const Job job = Job::Compute(step, stage, b, kind);
        const Rank rank = schedule.compute(job);
        const bool alone = held.layout() == Layout::kSliced
                               ? std::binary_search(held.ranks().begin(), held.ranks().end(), rank)
                               : rank == schedule.weights(job);
        if (!alone) return false;
      }
    }
  }
  return true;
}

class CollectiveProtocol : public Protocol {
 public:
  CollectiveProtocol(std::shared_ptr<const Protocol> held, int stage, std::shared_ptr<const JointOrder> order)
      : Protocol(*held), held_(std::move(held)) {
    stage_ = stage;
    joint_ = std::move(order);
    gradients_leave_ = false;
    ReduceAll();
  }

  void AddPredecessors(const Graph& graph, const Job& job, Edges* edges) const override {
    if (HasMicrobatch(job.kind)) {
      const size_t first = edges->size();
      held_->AddPredecessors(graph, job, edges);
      if (!graph.GathersWeights(job)) return;
      for (size_t i = first; i < edges->size(); ++i)
        (*edges)[i].joined = (*edges)[i].tensor == TensorKind::kWeights;
      return AddGather(job, edges);
    }
    if (job.kind == JobKind::kReduce) return AddReduce(graph, job, edges);
    edges->push_back(
        {Job::Reduce(job.step, job.stage, job.member), job, TensorKind::kGradientSum, job.member, 0});
    AddUpdateBefore(job, edges);
  }

  // Sums of later steps are begun while one waits for the other members.
  Kept KeptBy(const Graph& graph, int member) const override {
    Kept kept = held_->KeptBy(graph, member);
    kept.leaving = kept.sums_leaving = 0;
    kept.parts_of_sum = 1;
    kept.waiting = kept.sums - 1;
    kept.whole_sums = scatters_sum();
    return kept;
  }

  void AddOperations(const Graph& graph, const Job& job, std::vector<Operation>* operations) const override {
    if (job.kind == JobKind::kReduce) {
      operations->push_back(scatters_sum() ? Operation::kReduceScatter : Operation::kAllReduce);
      return;
    }
    if (graph.GathersWeights(job)) {
      operations->push_back(Operation::kJoinGather);
      operations->push_back(job.kind == JobKind::kForward ? Operation::kForward : Operation::kBackward);
      return;
    }
    Protocol::AddOperations(graph, job, operations);
  }

 private:
  void AddReduce(const Graph& graph, const Job& reduce, Edges* edges) const {
    const Rank rank = ranks_[reduce.member];
    for (int b = 0; b < graph.schedule().microbatches; ++b) {
      const Job backward = Job::Compute(reduce.step, reduce.stage, b, graph.final_backward());
      edges->push_back({backward, reduce, TensorKind::kOrder, 0, 0, graph.RankOf(backward) != rank});
    }
    for (int m = 0; m < size(); ++m) {
      const std::optional<Job> before = joint_->ReduceBefore(Job::Reduce(reduce.step, reduce.stage, m));
      if (!before.has_value()) continue;
      // One that this rank is a member of too stands before this one here as well.
      const std::vector<Rank>& others = graph.protocol(before->stage).ranks();
      if (m != reduce.member && std::binary_search(others.begin(), others.end(), rank)) continue;
      edges->push_back({*before, reduce, TensorKind::kOrder, 0, 0, true});
    }
  }

  // A gather waits for more than the weights: on every member the job before has made room, and the device is
  // past the reduce that stands before the gather.
  void AddGather(const Job& job, Edges* edges) const {
    const std::optional<Job> room = joint_->RoomFrom(job);
    std::optional<Job> reduce = joint_->ReduceBefore(job);
    for (int m = 0; m < size(); ++m) {
      if (room.has_value()) {
        Job before = *room;
        before.microbatch = joint_->MicrobatchOf(ranks_[m]);
        edges->push_back({before, job, TensorKind::kOrder, 0, 0, before.microbatch != job.microbatch});
      }
      // Others stand behind those that do.
      if (reduce.has_value() && (!room.has_value() || reduce->step == job.step)) {
        reduce->member = m;
        edges->push_back({*reduce, job, TensorKind::kOrder, 0, 0, true});
      }
    }
  }

  std::shared_ptr<const Protocol> held_;
};

// Returns true if in a step each member computes one micro-batch of its own, whole, and all compute with one
// version of the weights.
bool GathersJointly(const Schedule& s, const Protocols& protocols, const JointOrder& order,
                    std::vector<int>* microbatches) {
  if (protocols[0]->layout() != Layout::kSliced || s.period > 1 || s.split_backward || s.precedes ||
      !s.order.empty()) {
    return false;
  }
  const std::vector<Rank>& members = protocols[0]->ranks();
  const auto one_version = [&](int stage) {
    for (int b = 1; b < s.microbatches; ++b) {
      if (s.StalenessOf(stage, b) != s.StalenessOf(stage, 0)) return false;
    }
    return true;
  };
  for (int stage = 0; stage < s.stages; ++stage) {
    if (!order.IsJoint(stage) || protocols[stage]->ranks() != members || !one_version(stage)) return false;
  }
  for (const Rank rank : members) {
    for (int b = 0; b < s.microbatches; ++b) {
      if (s.compute(Job::Compute(0, 0, b, JobKind::kForward)) == rank) microbatches->push_back(b);
    }
  }
  if (microbatches->size() != members.size() || s.microbatches != static_cast<int>(members.size()))
    return false;
  for (size_t m = 0; m < members.size(); ++m) {
    for (int stage = 0; stage < s.stages; ++stage) {
      for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
        if (s.compute(Job::Compute(0, stage, (*microbatches)[m], kind)) != members[m]) return false;
      }
    }
  }
  return true;
}

class CollectiveSync : public Sync {
 public:
  explicit CollectiveSync(std::shared_ptr<const Sync> held) : held_(std::move(held)) {}
  std::string name() const override { return held_->name(); }

  Protocols Make(const Schedule& schedule, Steps steps) const override {
    Protocols protocols = held_->Make(schedule, steps);
    if (!held_->WhyNotJoint().empty()) return protocols;
    const auto order = std::make_shared<JointOrder>();
    for (int stage = 0; stage < schedule.stages; ++stage) {
      std::shared_ptr<const Protocol>& held = protocols[stage];
      if (held->size() == 1 || !MembersComputeAlone(schedule, *held, stage)) continue;
      order->Add(stage, held->ranks());
      held = std::make_shared<CollectiveProtocol>(std::move(held), stage, order);
    }
    std::vector<int> microbatches;
    if (order->any() && GathersJointly(schedule, protocols, *order, &microbatches))
      order->AddGathers(microbatches);
    return protocols;
  }
  absl::Status Check(const RunSchedule& schedule) const override { return held_->Check(schedule); }
  std::optional<int> CountHolders(int stage) const override { return held_->CountHolders(stage); }
  std::string WhyNotJoint() const override { return held_->WhyNotJoint(); }

 private:
  std::shared_ptr<const Sync> held_;
};

}  // namespace

std::shared_ptr<const Sync> WithCollectives(std::shared_ptr<const Sync> sync) {
  if (dynamic_cast<const CollectiveSync*>(sync.get()) != nullptr) return sync;
  return std::make_shared<CollectiveSync>(std::move(sync));
}

std::shared_ptr<const Sync> ReducedBy(ReductionMode mode, std::shared_ptr<const Sync> sync) {
  return mode == ReductionMode::kFast ? WithCollectives(std::move(sync)) : sync;
}

}  // namespace weft
