#include "schedules/graph.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

namespace weft {
namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "weft: broken invariant in the job graph: %s\n", what);
  std::abort();
}

// Where `value` stands in an ascending list that holds it.
int PlaceOf(const std::vector<int>& list, int value) {
  return static_cast<int>(std::lower_bound(list.begin(), list.end(), value) - list.begin());
}

}  // namespace

Graph::Graph(Schedule schedule, int steps, int first_step)
    : schedule_(std::move(schedule)), steps_(steps), first_step_(first_step) {
  const Schedule& s = schedule_;
  Require(s.stages > 0 && s.microbatches > 0 && s.ranks > 0, "sizes are positive");
  Require(s.compute && s.weights && s.priority, "compute, weights and priority are given");
  LinkStages();
  if (s.residency == Residency::kMigrating && s.visit) visits_.emplace(s, steps, first_step);
  members_.resize(s.stages);
  gradient_travels_.assign(s.stages, false);
  relays_.resize(s.stages);
  tail_.resize(s.stages);
  int next = s.stages * s.microbatches * KindsPerMicrobatch();
  for (int stage = 0; stage < s.stages; ++stage) {
    std::set<Rank> holders;
    bool remote = false;
    for (int step = 0; step < s.period; ++step) {
      for (int b = 0; b < s.microbatches; ++b) {
        for (JobKind kind : {JobKind::kForward, input_backward(), final_backward()}) {
          const Job job = Job::Compute(step, stage, b, kind);
          holders.insert(s.weights(job));
          remote |= kind != JobKind::kForward && s.weights(job) != s.compute(job);
        }
      }
    }
    if (sharded()) {
      const std::vector<Rank> shards = s.shards(stage);
      holders = {shards.begin(), shards.end()};
    }
    if (migrates()) {
      holders = {s.compute(visits_->LastBackward(first_step, stage))};
      remote = false;
    }
    members_[stage].assign(holders.begin(), holders.end());
    if (s.relays && members_[stage].size() > 1 && !sharded())
      relays_[stage].emplace(s, stage, members_[stage], final_backward());
    const bool joins = s.collective && members_[stage].size() > 1 && !relays(stage) && !migrates() &&
                       MembersComputeAlone(stage);
    if (joins) collectives_.Add(stage, members_[stage]);
    gradient_travels_[stage] = !relays(stage) && !joins && (remote || members_[stage].size() > 1);
    tail_[stage] = next;
    const int updates = static_cast<int>(members_[stage].size());
    next += updates + (!has_reduce(stage) ? 0 : relays(stage) ? 1 : updates);
  }
  jobs_per_step_ = next;
  AddGathers();
  if (replays()) NumberPlaces();
  FindApart();
  if (s.precedes) {
    followers_.resize(jobs_per_step_);
    // A far step, so that edges from earlier steps are all there.
    constexpr int kFar = 1 << 20;
    for (int i = 0; i < jobs_per_step_; ++i) {
      const Job job = JobAt(kFar, i);
      if (!HasMicrobatch(job.kind)) continue;
      for (const Job& before : s.precedes(job)) {
        followers_[IndexOf(before)].push_back({i, job.step - before.step});
      }
    }
  }
}

void Graph::LinkStages() {
  inputs_ = schedule_.inputs;
  if (inputs_.empty()) {
    inputs_.resize(schedule_.stages);
    for (int stage = 1; stage < schedule_.stages; ++stage) inputs_[stage] = {stage - 1};
  }
  Require(inputs_.size() == static_cast<size_t>(schedule_.stages), "every stage's inputs are given");
  consumers_.resize(schedule_.stages);
  for (int stage = 0; stage < schedule_.stages; ++stage) {
    for (const int input : inputs_[stage]) {
      Require(input >= 0 && input < stage, "a stage's inputs come before it");
      consumers_[input].push_back(stage);
    }
  }
}

void Graph::FindApart() {
  const Schedule& s = schedule_;
  apart_.assign(static_cast<size_t>(s.stages) * s.microbatches, false);
  for (int step = 0; step < s.period; ++step) {
    for (int stage = 0; stage < s.stages; ++stage) {
      for (int b = 0; b < s.microbatches; ++b) {
        if (s.compute(Job::Compute(step, stage, b, JobKind::kForward)) ==
            s.compute(Job::Compute(step, stage, b, input_backward()))) {
          continue;
        }
        apart_[static_cast<size_t>(stage) * s.microbatches + b] = true;
        any_apart_ = true;
      }
    }
  }
}

void Graph::NumberPlaces() {
  place_.assign(static_cast<size_t>(schedule_.stages) * schedule_.microbatches * KindsPerMicrobatch(), 0);
  for (const std::vector<Job>& order : schedule_.order) {
    for (size_t i = 0; i < order.size(); ++i) place_[IndexOf(order[i])] = static_cast<int32_t>(i);
  }
  if (schedule_.order_marks.empty()) return;
  marks_.assign(jobs_per_step_, 0);
  for (size_t r = 0; r < schedule_.order.size(); ++r) {
    for (size_t i = 0; i < schedule_.order[r].size(); ++i) {
      marks_[IndexOf(schedule_.order[r][i])] = schedule_.order_marks[r][i];
      has_pairs_ |= (schedule_.order_marks[r][i] & kBesideForward) != 0;
    }
  }
}

bool Graph::IsComputeKindUsed(JobKind kind) const {
  return kind == JobKind::kForward || kind == input_backward() || kind == final_backward();
}

Job Graph::JobAt(int step, int index) const {
  const int kinds = KindsPerMicrobatch();
  const int compute = schedule_.stages * schedule_.microbatches * kinds;
  Require(index >= 0 && index < jobs_per_step_, "job index is in range");
  if (index < compute) {
    const int k = index % kinds, b = index / kinds % schedule_.microbatches;
    const int stage = index / kinds / schedule_.microbatches;
    const JobKind kind = k == 0 ? JobKind::kForward : (k == 1 ? input_backward() : JobKind::kBackwardWeight);
    return Job::Compute(step, stage, b, kind);
  }
  const auto after = std::upper_bound(tail_.begin(), tail_.end(), index);
  const int stage = static_cast<int>(after - tail_.begin()) - 1;
  const int offset = index - tail_[stage];
  if (!has_reduce(stage)) return Job::Update(step, stage, offset);
  if (relays(stage))
    return offset == 0 ? Job::Reduce(step, stage, home(stage)) : Job::Update(step, stage, offset - 1);
  return offset % 2 == 0 ? Job::Reduce(step, stage, offset / 2) : Job::Update(step, stage, offset / 2);
}

int Graph::IndexOf(const Job& job) const {
  Require(job.stage >= 0 && job.stage < schedule_.stages, "stage is in range");
  if (HasMicrobatch(job.kind)) {
    Require(job.microbatch >= 0 && job.microbatch < schedule_.microbatches, "micro-batch is in range");
    Require(IsComputeKindUsed(job.kind), "kind is one that the schedule uses");
    const int k = job.kind == JobKind::kForward ? 0 : (job.kind == JobKind::kBackwardWeight ? 2 : 1);
    return (job.stage * schedule_.microbatches + job.microbatch) * KindsPerMicrobatch() + k;
  }
  Require(job.member >= 0 && job.member < static_cast<int>(members_[job.stage].size()), "member is in range");
  Require(job.kind == JobKind::kUpdate || Reduces(job.stage, job.member), "the member has a reduce job");
  if (!has_reduce(job.stage)) return tail_[job.stage] + job.member;
  if (relays(job.stage)) return tail_[job.stage] + (job.kind == JobKind::kReduce ? 0 : 1 + job.member);
  return tail_[job.stage] + 2 * job.member + (job.kind == JobKind::kUpdate ? 1 : 0);
}

Rank Graph::RankOf(const Job& job) const {
  return HasMicrobatch(job.kind) ? schedule_.compute(job) : members_[job.stage][job.member];
}

int64_t Graph::PriorityOf(const Job& job) const {
  if (HasMicrobatch(job.kind)) {
    if (!replays()) return schedule_.priority(job);
    const auto length = static_cast<int64_t>(schedule_.order[schedule_.compute(job)].size());
    return job.step * length + place_[IndexOf(job)];
  }
  // Before every compute job: they are short and others wait for them. Older steps and later stages first.
  const int64_t order = (int64_t{job.step} * 2 + (job.kind == JobKind::kUpdate ? 1 : 0)) * schedule_.stages +
                        (schedule_.stages - 1 - job.stage);
  return INT64_MIN / 2 + order;
}

int Graph::VersionOf(const Job& job) const {
  if (!HasMicrobatch(job.kind)) return job.step;
  return std::max(0, job.step - schedule_.StalenessOf(job.stage, job.microbatch));
}

bool Graph::FetchesWeights(const Job& job) const {
  if (!HasMicrobatch(job.kind) || migrates()) return false;
  if (!sharded()) return schedule_.compute(job) != schedule_.weights(job);
  return members_[job.stage] != std::vector<Rank>{schedule_.compute(job)};
}

int Graph::MemberOf(int stage, Rank rank) const {
  const auto& m = members_[stage];
  const auto it = std::lower_bound(m.begin(), m.end(), rank);
  Require(it != m.end() && *it == rank, "a job's weights are held by a member of its stage");
  return static_cast<int>(it - m.begin());
}

// The slices of all members; the own one is there already.
void Graph::ShardEdges(const Job& job, std::vector<Edge>* edges) const {
  const int version = VersionOf(job);
  for (int m = 0; m < static_cast<int>(members_[job.stage].size()); ++m) {
    const bool own = members_[job.stage][m] == schedule_.compute(job);
    if (own && (version == 0 || job.kind != JobKind::kForward)) continue;
    edges->push_back({Job::Update(version - 1, job.stage, m), job,
                      own ? TensorKind::kOrder : TensorKind::kWeights, m, version,
                      !own && GathersWeights(job)});
  }
}

void Graph::WeightsEdge(const Job& job, std::vector<Edge>* edges) const {
  if (migrates()) return;  // every version that is read is in the state
  if (sharded()) return ShardEdges(job, edges);
  const bool fetch = FetchesWeights(job);
  // A backward on the holder reads what its forward read: the forward's edge is enough, wherever that was.
  if (!fetch && job.kind != JobKind::kForward) return;
  const int version = VersionOf(job);
  if (!fetch && version == 0) return;
  const int holder = MemberOf(job.stage, schedule_.weights(job));
  edges->push_back({Job::Update(version - 1, job.stage, holder), job,
                    fetch ? TensorKind::kWeights : TensorKind::kOrder, 0, version});
}

// What an update, or the reduce before it, takes its gradients from.
void Graph::SumPredecessors(const Job& job, std::vector<Edge>* edges) const {
  if (relays(job.stage)) return RelayPredecessors(job, edges);
  if (job.kind == JobKind::kReduce && collective(job.stage)) return CollectivePredecessors(job, edges);
  if (job.kind == JobKind::kUpdate && has_reduce(job.stage)) {
    for (int part = 0; part < static_cast<int>(members_[job.stage].size()); ++part) {
      // A member of a sharded stage needs its own slice only; one of a collective has the whole.
      if ((sharded() || collective(job.stage)) && part != job.member) continue;
      edges->push_back({Job::Reduce(job.step, job.stage, part), job, TensorKind::kGradientSum, part, 0});
    }
    return;
  }
  const TensorKind tensor = gradient_travels_[job.stage] ? TensorKind::kGradient : TensorKind::kOrder;
  for (int b = 0; b < schedule_.microbatches; ++b) {
    edges->push_back({Job::Compute(job.step, job.stage, b, final_backward()), job, tensor, job.member, 0});
  }
}

void Graph::UpdatePredecessors(const Job& job, std::vector<Edge>* edges) const {
  SumPredecessors(job, edges);
  if (schedule_.clips) NormPredecessors(job, edges);
  if (job.kind == JobKind::kUpdate && job.step > 0) {
    edges->push_back({Job::Update(job.step - 1, job.stage, job.member), job, TensorKind::kOrder, 0, 0});
  }
}

// The inputs of a forward, or of a backward that starts over from them.
void Graph::ActivationEdges(const Job& job, std::vector<Edge>* edges) const {
  for (const int input : inputs_[job.stage]) {
    edges->push_back({Job::Compute(job.step, input, job.microbatch, JobKind::kForward), job,
                      TensorKind::kActivation, PlaceOf(consumers_[input], job.stage), 0});
  }
}

void Graph::BackwardPredecessors(const Job& job, std::vector<Edge>* edges) const {
  const auto at = [&](int stage, JobKind kind) {
    return Job::Compute(job.step, stage, job.microbatch, kind);
  };
  edges->push_back({at(job.stage, JobKind::kForward), job, TensorKind::kOrder, 0, 0});
  for (const int consumer : consumers_[job.stage]) {
    edges->push_back({at(consumer, input_backward()), job, TensorKind::kInputGradient,
                      PlaceOf(inputs_[consumer], job.stage), 0});
  }
  if (IsApart(job)) ActivationEdges(job, edges);
}

void Graph::Predecessors(const Job& job, std::vector<Edge>* edges) const {
  if (migrates()) StatePredecessor(job, edges);
  if (migrates() && job.kind == JobKind::kUpdate) return;
  if (!HasMicrobatch(job.kind)) return UpdatePredecessors(job, edges);
  switch (job.kind) {
    case JobKind::kForward:
      ActivationEdges(job, edges);
      break;
    case JobKind::kBackwardWeight:
      edges->push_back({Job::Compute(job.step, job.stage, job.microbatch, JobKind::kBackwardInput), job,
                        TensorKind::kOrder, 0, 0});
      break;
    default:
      BackwardPredecessors(job, edges);
  }
  WeightsEdge(job, edges);
  if (GathersWeights(job)) GatherPredecessors(job, edges);
  if (job.kind == final_backward() && relays(job.stage)) RelayPredecessors(job, edges);
  if (schedule_.precedes) {
    for (const Job& before : schedule_.precedes(job)) {
      if (before.step >= 0) edges->push_back({before, job, TensorKind::kOrder, 0, 0});
    }
  }
}

void Graph::GradientSuccessors(const Job& job, std::vector<Edge>* edges) const {
  if (relays(job.stage)) return RelaySuccessors(job, edges);
  if (collective(job.stage)) return JoinedGradients(job, edges);
  const JobKind kind = has_reduce(job.stage) ? JobKind::kReduce : JobKind::kUpdate;
  const TensorKind tensor = gradient_travels_[job.stage] ? TensorKind::kGradient : TensorKind::kOrder;
  for (int m = 0; m < static_cast<int>(members_[job.stage].size()); ++m) {
    edges->push_back({job, {job.step, job.stage, -1, m, kind}, tensor, m, 0});
  }
}

void Graph::ReduceSuccessors(const Job& job, std::vector<Edge>* edges) const {
  const bool own_alone = sharded() || relays(job.stage) || collective(job.stage);
  if (collective(job.stage)) CollectiveSuccessors(job, edges);
  for (int m = 0; m < static_cast<int>(members_[job.stage].size()); ++m) {
    if (own_alone && m != job.member) continue;
    edges->push_back({job, Job::Update(job.step, job.stage, m), TensorKind::kGradientSum, job.member, 0});
  }
  if (schedule_.clips) NormSuccessors(job, edges);
}

void Graph::UpdateSuccessors(const Job& job, std::vector<Edge>* edges) const {
  if (job.kind == JobKind::kReduce) return ReduceSuccessors(job, edges);
  if (relays(job.stage)) RelaySuccessors(job, edges);
  edges->push_back({job, Job::Update(job.step + 1, job.stage, job.member), TensorKind::kOrder, 0, 0});
  const Rank holder = members_[job.stage][job.member];
  for (int b = 0; b < schedule_.microbatches; ++b) {
    const int staleness = schedule_.StalenessOf(job.stage, b);
    for (JobKind kind :
         {JobKind::kForward, JobKind::kBackward, JobKind::kBackwardInput, JobKind::kBackwardWeight}) {
      if (!IsComputeKindUsed(kind)) continue;
      const Job reader = Job::Compute(job.step + 1 + staleness, job.stage, b, kind);
      if (!sharded() && schedule_.weights(reader) != holder) continue;
      const bool fetch = schedule_.compute(reader) != holder;
      if (!fetch && kind != JobKind::kForward) continue;
      edges->push_back({job, reader, fetch ? TensorKind::kWeights : TensorKind::kOrder,
                        sharded() ? job.member : 0, job.step + 1, fetch && GathersWeights(reader)});
    }
  }
}

void Graph::ForwardSuccessors(const Job& job, std::vector<Edge>* edges) const {
  const auto at = [&](int stage, JobKind kind) {
    return Job::Compute(job.step, stage, job.microbatch, kind);
  };
  int part = 0;
  for (const int consumer : consumers_[job.stage]) {
    const Job next = at(consumer, JobKind::kForward);
    edges->push_back({job, next, TensorKind::kActivation, part, 0});
    if (IsApart(next)) {
      edges->push_back({job, at(consumer, input_backward()), TensorKind::kActivation, part, 0});
    }
    ++part;
  }
  edges->push_back({job, at(job.stage, input_backward()), TensorKind::kOrder, 0, 0});
}

void Graph::BackwardSuccessors(const Job& job, std::vector<Edge>* edges) const {
  int part = 0;
  for (const int input : inputs_[job.stage]) {
    edges->push_back({job, Job::Compute(job.step, input, job.microbatch, input_backward()),
                      TensorKind::kInputGradient, part++, 0});
  }
  if (!schedule_.split_backward) return;
  edges->push_back({job, Job::Compute(job.step, job.stage, job.microbatch, JobKind::kBackwardWeight),
                    TensorKind::kOrder, 0, 0});
}

void Graph::Successors(const Job& job, std::vector<Edge>* edges) const {
  if (migrates()) StateSuccessor(job, edges);
  if (migrates() && job.kind == JobKind::kUpdate) return;
  if (!HasMicrobatch(job.kind)) return UpdateSuccessors(job, edges);
  if (job.kind == JobKind::kForward) ForwardSuccessors(job, edges);
  if (job.kind == input_backward()) BackwardSuccessors(job, edges);
  if (job.kind == final_backward() && !migrates()) GradientSuccessors(job, edges);
  if (GathersWeights(job)) GatherSuccessors(job, edges);
  if (schedule_.precedes) {
    for (const Follower& f : followers_[IndexOf(job)]) {
      edges->push_back({job, JobAt(job.step + f.distance, f.index), TensorKind::kOrder, 0, 0});
    }
  }
}

bool StepEdges::LeadsAhead(int64_t index) const {
  for (const Table& table : tables_) {
    for (int k = table.begin[index]; k < table.begin[index + 1]; ++k) {
      if (table.successors[k].distance > 0) return true;
    }
  }
  return false;
}

StepEdges::Table& StepEdges::AppendTable(const Graph& graph, int step, int64_t end) {
  const int n = graph.jobs_per_step();
  Table& table = tables_.emplace_back();
  table.begin.reserve(n + 1);
  std::vector<Edge> edges;
  for (int i = 0; i < n; ++i) {
    table.begin.push_back(static_cast<int32_t>(table.successors.size()));
    edges.clear();
    graph.Successors(graph.JobAt(step, i), &edges);
    for (const Edge& e : edges) {
      if (e.to.step >= end) continue;
      const int distance = e.to.step - step;
      table.successors.push_back({graph.IndexOf(e.to), static_cast<int16_t>(distance), e.tensor, e.joined,
                                  static_cast<int16_t>(e.part)});
      max_distance_ = std::max(max_distance_, distance);
    }
  }
  table.begin.push_back(static_cast<int32_t>(table.successors.size()));
  return table;
}

StepEdges Flatten(const Graph& graph) {
  if (graph.migrates()) return FlattenRun(graph);
  const int n = graph.jobs_per_step(), period = graph.schedule().period;
  StepEdges flat;
  // Far steps, so that edges from earlier ones are all there.
  const int steady = (1 << 20) / period * period;
  for (int phase = 0; phase < period; ++phase) flat.AppendTable(graph, steady + phase, Graph::kForEver);
  for (StepEdges::Table& table : flat.tables_)
    table.waiting.assign(flat.max_distance_ + 1, std::vector<int32_t>(n, 0));
  for (int phase = 0; phase < period; ++phase) {
    for (const StepEdges::Successor& s : flat.tables_[phase].successors) {
      StepEdges::Table& later = flat.tables_[(phase + s.distance) % period];
      for (int d = s.distance; d <= flat.max_distance_; ++d) ++later.waiting[d][s.index];
    }
  }
  return flat;
}

}  // namespace weft
