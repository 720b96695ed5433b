#include "schedules/graph/graph.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/require.h"
#include "schedules/sync/catalogue.h"

namespace weft {
namespace {

// Returns the place of `value` in an ascending list that holds it.
int PlaceOf(const std::vector<int>& list, int value) {
  return static_cast<int>(std::lower_bound(list.begin(), list.end(), value) - list.begin());
}

}  // namespace

Graph::Graph(RunSchedule schedule, int steps, int first_step)
    : schedule_(std::move(schedule)), steps_(steps), first_step_(first_step) {
  const Schedule& s = this->schedule();
  Require(s.stages > 0 && s.microbatches > 0 && s.ranks > 0, "sizes are positive");
  Require(s.compute && s.weights && s.priority && s.sync, "compute, weights, priority and sync are given");
  static const JointOrder* const none = new JointOrder;
  LinkStages();
  protocols_ = ProtocolsOf(schedule_, {first_step, steps});
  joint_order_ = none;
  for (const auto& protocol : protocols_) {
    if (protocol->joint_order() != nullptr) joint_order_ = protocol->joint_order();
  }
  compute_jobs_ = s.stages * s.microbatches * KindsPerMicrobatch();
  NumberTails();
  if (replays()) NumberPlaces();
  FindRemoteBackwards();
  if (s.keeps_fetched && s.period == 1) FindKeptWeights();
}

// Numbers the reduces and updates of a step. Each member's reduce and update of a stage follow one another;
// where only some members reduce, reduces come first.
void Graph::NumberTails() {
  place_in_tail_.resize(schedule().stages);
  for (int stage = 0; stage < schedule().stages; ++stage) {
    const int members = protocol(stage).size();
    std::vector<int>& places = place_in_tail_[stage];
    places.assign(2 * static_cast<size_t>(members), -1);
    const auto add = [&](const Job& job) {
      places[2 * job.member + (job.kind == JobKind::kUpdate ? 1 : 0)] = static_cast<int>(tail_.size());
      tail_.push_back(job);
    };
    int reduces = 0;
    for (int m = 0; m < members; ++m) reduces += protocol(stage).holder(m).reduces;
    for (int m = 0; m < members && reduces < members; ++m) {
      if (protocol(stage).holder(m).reduces) add(Job::Reduce(0, stage, m));
    }
    for (int m = 0; m < members; ++m) {
      if (reduces == members) add(Job::Reduce(0, stage, m));
      add(Job::Update(0, stage, m));
    }
  }
}

void Graph::LinkStages() {
  inputs_ = terms().inputs;
  if (inputs_.empty()) {
    inputs_.resize(schedule().stages);
    for (int stage = 1; stage < schedule().stages; ++stage) inputs_[stage] = {stage - 1};
  }
  Require(inputs_.size() == static_cast<size_t>(schedule().stages), "every stage's inputs are given");
  consumers_.resize(schedule().stages);
  for (int stage = 0; stage < schedule().stages; ++stage) {
    for (const int input : inputs_[stage]) {
      Require(input >= 0 && input < stage, "a stage's inputs come before it");
      consumers_[input].push_back(stage);
    }
  }
}

void Graph::FindRemoteBackwards() {
  const Schedule& s = schedule();
  remote_backward_.assign(static_cast<size_t>(s.stages) * s.microbatches, false);
  for (int step = 0; step < s.period; ++step) {
    for (int stage = 0; stage < s.stages; ++stage) {
      for (int b = 0; b < s.microbatches; ++b) {
        if (s.compute(Job::Compute(step, stage, b, JobKind::kForward)) ==
            s.compute(Job::Compute(step, stage, b, input_backward()))) {
          continue;
        }
        remote_backward_[static_cast<size_t>(stage) * s.microbatches + b] = true;
        any_remote_backward_ = true;
      }
    }
  }
}

// The first job of a kind that a rank computes on a stage fetches for the others: in a fixed order the first
// one there, else the first micro-batch. Jobs that read another version fetch on their own.
void Graph::FindKeptWeights() {
  fetched_by_.assign(compute_jobs_, -1);
  keeps_fetched_.assign(compute_jobs_, false);
  for (int stage = 0; stage < schedule().stages; ++stage) {
    if (protocol(stage).layout() != Layout::kWhole) continue;
    for (const JobKind kind : kComputeKinds) {
      if (IsComputeKindUsed(kind)) FindKeptWeights(stage, kind);
    }
  }
}

void Graph::FindKeptWeights(int stage, JobKind kind) {
  std::map<std::pair<Rank, Rank>, int> first;  // micro-batch, by rank and holder
  const auto at = [&](int b) { return Job::Compute(0, stage, b, kind); };
  const auto visit_fetches = [&](const auto& act) {
    for (int b = 0; b < schedule().microbatches; ++b) {
      if (FetchesWeights(at(b))) act(b, std::pair(schedule().compute(at(b)), schedule().weights(at(b))));
    }
  };
  visit_fetches([&](int b, const std::pair<Rank, Rank>& places) {
    int& found = first.try_emplace(places, b).first->second;
    if (replays() && PriorityOf(at(b)) < PriorityOf(at(found))) found = b;
  });
  visit_fetches([&](int b, const std::pair<Rank, Rank>& places) {
    const int fetching = first.at(places);
    if (b == fetching || schedule().StalenessOf(stage, b) != schedule().StalenessOf(stage, fetching)) return;
    fetched_by_[IndexOf(at(b))] = fetching;
    keeps_fetched_[IndexOf(at(fetching))] = true;
  });
}

void Graph::NumberPlaces() {
  place_.assign(static_cast<size_t>(schedule().stages) * schedule().microbatches * KindsPerMicrobatch(), 0);
  for (const std::vector<Job>& order : schedule().order) {
    for (size_t i = 0; i < order.size(); ++i) place_[IndexOf(order[i])] = static_cast<int32_t>(i);
  }
  if (schedule().order_marks.empty()) return;
  marks_.assign(jobs_per_step(), 0);
  for (size_t r = 0; r < schedule().order.size(); ++r) {
    for (size_t i = 0; i < schedule().order[r].size(); ++i) {
      marks_[IndexOf(schedule().order[r][i])] = schedule().order_marks[r][i];
      has_pairs_ |= (schedule().order_marks[r][i] & kOverlapsForward) != 0;
    }
  }
}

bool Graph::IsComputeKindUsed(JobKind kind) const {
  return kind == JobKind::kForward || kind == input_backward() || kind == final_backward();
}

Job Graph::JobAt(int step, int index) const {
  const int kinds = KindsPerMicrobatch();
  Require(index >= 0 && index < jobs_per_step(), "job index is in range");
  if (index < compute_jobs_) {
    const int k = index % kinds, b = index / kinds % schedule().microbatches;
    const int stage = index / kinds / schedule().microbatches;
    const JobKind kind = k == 0 ? JobKind::kForward : (k == 1 ? input_backward() : JobKind::kBackwardWeight);
    return Job::Compute(step, stage, b, kind);
  }
  Job job = tail_[index - compute_jobs_];
  job.step = step;
  return job;
}

int Graph::IndexOf(const Job& job) const {
  Require(job.stage >= 0 && job.stage < schedule().stages, "stage is in range");
  if (HasMicrobatch(job.kind)) {
    Require(job.microbatch >= 0 && job.microbatch < schedule().microbatches, "micro-batch is in range");
    Require(IsComputeKindUsed(job.kind), "kind is one that the schedule uses");
    const int k = job.kind == JobKind::kForward ? 0 : (job.kind == JobKind::kBackwardWeight ? 2 : 1);
    return (job.stage * schedule().microbatches + job.microbatch) * KindsPerMicrobatch() + k;
  }
  Require(job.member >= 0 && job.member < protocol(job.stage).size(), "member is in range");
  const int place = place_in_tail_[job.stage][2 * job.member + (job.kind == JobKind::kUpdate ? 1 : 0)];
  Require(place >= 0, "the member has a reduce job");
  return compute_jobs_ + place;
}

Rank Graph::RankOf(const Job& job) const {
  return HasMicrobatch(job.kind) ? schedule().compute(job) : protocol(job.stage).holder(job.member).rank;
}

int64_t Graph::PriorityOf(const Job& job) const {
  if (HasMicrobatch(job.kind)) {
    if (!replays()) return schedule().priority(job);
    const auto length = static_cast<int64_t>(schedule().order[schedule().compute(job)].size());
    return job.step * length + place_[IndexOf(job)];
  }
  // Before every compute job: they are short and others wait for them. Older steps and later stages first.
  const int64_t order = (int64_t{job.step} * 2 + (job.kind == JobKind::kUpdate ? 1 : 0)) * schedule().stages +
                        (schedule().stages - 1 - job.stage);
  return INT64_MIN / 2 + order;
}

int Graph::VersionOf(const Job& job) const {
  if (job.kind == JobKind::kReduce) return job.step;
  if (job.kind == JobKind::kUpdate) return std::max(0, protocol(job.stage).VersionBehind(job) - 1);
  return std::max(0, job.step - schedule().StalenessOf(job.stage, job.microbatch));
}

bool Graph::FetchesWeights(const Job& job) const {
  if (!HasMicrobatch(job.kind)) return false;
  const Protocol& holders = protocol(job.stage);
  switch (holders.layout()) {
    case Layout::kWhole:
      return schedule().compute(job) != schedule().weights(job);
    case Layout::kSliced:
      return holders.size() > 1 || holders.ranks()[0] != schedule().compute(job);
    case Layout::kTravelling:
      break;  // every version that is read is in the state
  }
  return false;
}

std::optional<Job> Graph::FetchedBy(const Job& job) const {
  if (fetched_by_.empty() || !HasMicrobatch(job.kind)) return std::nullopt;
  const int32_t microbatch = fetched_by_[IndexOf(job)];
  if (microbatch < 0) return std::nullopt;
  return Job::Compute(job.step, job.stage, microbatch, job.kind);
}

int Graph::SourceOf(const Job& job) const {
  const std::vector<Rank>& ranks = members(job.stage);
  const Rank rank = schedule().weights(job);
  const auto it = std::lower_bound(ranks.begin(), ranks.end(), rank);
  Require(it != ranks.end() && *it == rank, "a job's weights are held by a member of its stage");
  return static_cast<int>(it - ranks.begin());
}

bool Graph::BeginsJointly(const Edge& edge) const {
  if (edge.tensor != TensorKind::kOrder || edge.joined || !IsJoint(edge.to)) return false;
  if (edge.to.kind == JobKind::kReduce) return true;
  return edge.from.kind == JobKind::kUpdate || edge.from == joint_order_->RoomFrom(edge.to);
}

// The inputs of a forward, or of a backward that starts over from them.
void Graph::ActivationEdges(const Job& job, Edges* edges) const {
  for (const int input : inputs_[job.stage]) {
    edges->push_back({Job::Compute(job.step, input, job.microbatch, JobKind::kForward), job,
                      TensorKind::kActivation, PlaceOf(consumers_[input], job.stage), 0});
  }
}

void Graph::BackwardPredecessors(const Job& job, Edges* edges) const {
  const auto at = [&](int stage, JobKind kind) {
    return Job::Compute(job.step, stage, job.microbatch, kind);
  };
  edges->push_back({at(job.stage, JobKind::kForward), job, TensorKind::kOrder, 0, 0});
  for (const int consumer : consumers_[job.stage]) {
    edges->push_back({at(consumer, input_backward()), job, TensorKind::kInputGradient,
                      PlaceOf(inputs_[consumer], job.stage), 0});
  }
  if (HasRemoteBackward(job)) ActivationEdges(job, edges);
}

void Graph::Predecessors(const Job& job, Edges* edges) const {
  switch (job.kind) {
    case JobKind::kForward:
      ActivationEdges(job, edges);
      break;
    case JobKind::kBackward:
    case JobKind::kBackwardInput:
      BackwardPredecessors(job, edges);
      break;
    case JobKind::kBackwardWeight:
      edges->push_back({Job::Compute(job.step, job.stage, job.microbatch, JobKind::kBackwardInput), job,
                        TensorKind::kOrder, 0, 0});
      break;
    case JobKind::kReduce:
    case JobKind::kUpdate:
      break;
  }
  protocol(job.stage).AddPredecessors(*this, job, edges);
  if (!schedule().precedes || !HasMicrobatch(job.kind)) return;
  for (const Job& before : schedule().precedes(job)) {
    if (before.step >= 0) edges->push_back({before, job, TensorKind::kOrder, 0, 0});
  }
}

}  // namespace weft
