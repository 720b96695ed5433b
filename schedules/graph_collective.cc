// The edges of reduces that are collectives, and of jobs whose weights collectives gather
// (Schedule::collective, collectives.h).
//
// A member starts when the backwards on its own rank have ended. That it ends after those of the other
// members, and after the collectives that stand before it on any member's device, are joined edges: nobody
// sends anything for them. Where gradients are clipped, the job that totals the norms does so after its
// collective, and devices go on meanwhile; here the next one counts as behind that too.
#include <algorithm>

#include "schedules/graph.h"

namespace weft {

// Each member with its own copy, so that no job on another rank reads that; or, where each has a slice, with
// what it gathers. Then every gradient is made by a member, which can add it to its own sum.
bool Graph::MembersComputeAlone(int stage) const {
  const std::vector<Rank>& members = members_[stage];
  for (int step = 0; step < schedule_.period; ++step) {
    for (int b = 0; b < schedule_.microbatches; ++b) {
      for (const JobKind kind : {JobKind::kForward, input_backward(), final_backward()}) {
        const Job job = Job::Compute(step, stage, b, kind);
        const Rank rank = schedule_.compute(job);
        const bool alone = sharded() ? std::binary_search(members.begin(), members.end(), rank)
                                     : rank == schedule_.weights(job);
        if (!alone) return false;
      }
    }
  }
  return true;
}

void Graph::CollectivePredecessors(const Job& reduce, std::vector<Edge>* edges) const {
  const std::vector<Rank>& members = members_[reduce.stage];
  const Rank rank = members[reduce.member];
  for (int b = 0; b < schedule_.microbatches; ++b) {
    const Job backward = Job::Compute(reduce.step, reduce.stage, b, final_backward());
    edges->push_back({backward, reduce, TensorKind::kOrder, 0, 0, schedule_.compute(backward) != rank});
  }
  for (int m = 0; m < static_cast<int>(members.size()); ++m) {
    const std::optional<Job> before = collectives_.ReduceBefore(Job::Reduce(reduce.step, reduce.stage, m));
    if (!before.has_value()) continue;
    // One that this rank is a member of too stands before this one here as well.
    const std::vector<Rank>& others = members_[before->stage];
    if (m != reduce.member && std::binary_search(others.begin(), others.end(), rank)) continue;
    edges->push_back({*before, reduce, TensorKind::kOrder, 0, 0, true});
  }
}

void Graph::CollectiveSuccessors(const Job& reduce, std::vector<Edge>* edges) const {
  const std::vector<Rank>& mine = members_[reduce.stage];
  Job after = collectives_.After(reduce);
  for (const Job& gather : collectives_.GathersBehind(reduce)) {
    for (const Rank rank : mine) {
      Job job = gather;
      job.microbatch = collectives_.MicrobatchOf(rank);
      edges->push_back({reduce, job, TensorKind::kOrder, 0, 0, true});
    }
  }
  while (after.kind != JobKind::kReduce) after = collectives_.After(after);
  for (int m = 0; m < static_cast<int>(members_[after.stage].size()); ++m) {
    const Rank rank = members_[after.stage][m];
    if (m != after.member && std::binary_search(mine.begin(), mine.end(), rank)) continue;
    edges->push_back({reduce, Job::Reduce(after.step, after.stage, m), TensorKind::kOrder, 0, 0, true});
  }
}

void Graph::JoinedGradients(const Job& backward, std::vector<Edge>* edges) const {
  const Rank rank = schedule_.compute(backward);
  for (int m = 0; m < static_cast<int>(members_[backward.stage].size()); ++m) {
    edges->push_back({backward, Job::Reduce(backward.step, backward.stage, m), TensorKind::kOrder, 0, 0,
                      members_[backward.stage][m] != rank});
  }
}

// In a step each member computes one micro-batch of its own, whole, and all with one version of the weights.
void Graph::AddGathers() {
  const Schedule& s = schedule_;
  if (!sharded() || s.period > 1 || s.split_backward || s.precedes || replays()) return;
  std::vector<int> microbatches;
  const auto one_version = [&](int stage) {
    for (int b = 1; b < s.microbatches; ++b) {
      if (s.StalenessOf(stage, b) != s.StalenessOf(stage, 0)) return false;
    }
    return true;
  };
  for (int stage = 0; stage < s.stages; ++stage) {
    if (!collective(stage) || members_[stage] != members_[0] || !one_version(stage)) return;
  }
  for (const Rank rank : members_[0]) {
    for (int b = 0; b < s.microbatches; ++b) {
      if (s.compute(Job::Compute(0, 0, b, JobKind::kForward)) == rank) microbatches.push_back(b);
    }
  }
  if (microbatches.size() != members_[0].size() || s.microbatches != static_cast<int>(microbatches.size()))
    return;
  for (size_t m = 0; m < microbatches.size(); ++m) {
    for (int stage = 0; stage < s.stages; ++stage) {
      for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
        if (s.compute(Job::Compute(0, stage, microbatches[m], kind)) != members_[0][m]) return;
      }
    }
  }
  collectives_.AddGathers(microbatches);
}

bool Graph::BeginsCollective(const Edge& edge) const {
  if (edge.tensor != TensorKind::kOrder || edge.joined) return false;
  if (edge.to.kind == JobKind::kReduce) return collective(edge.to.stage);
  if (!GathersWeights(edge.to)) return false;
  return edge.from.kind == JobKind::kUpdate || edge.from == collectives_.RoomFrom(edge.to);
}

// Beside the weights themselves: on every member the job before has made room, and the device is past the
// reduce that stands before the gather.
void Graph::GatherPredecessors(const Job& job, std::vector<Edge>* edges) const {
  const std::optional<Job> room = collectives_.RoomFrom(job);
  std::optional<Job> reduce = collectives_.ReduceBefore(job);
  for (int m = 0; m < static_cast<int>(members_[job.stage].size()); ++m) {
    const Rank rank = members_[job.stage][m];
    if (room.has_value()) {
      Job before = *room;
      before.microbatch = collectives_.MicrobatchOf(rank);
      edges->push_back({before, job, TensorKind::kOrder, 0, 0, before.microbatch != job.microbatch});
    }
    // Others stand behind those that do.
    if (reduce.has_value() && (!room.has_value() || reduce->step == job.step)) {
      reduce->member = m;
      edges->push_back({*reduce, job, TensorKind::kOrder, 0, 0, true});
    }
  }
}

void Graph::GatherSuccessors(const Job& job, std::vector<Edge>* edges) const {
  std::optional<Job> room = collectives_.RoomFor(job);
  if (!room.has_value()) return;
  for (const Rank rank : members_[job.stage]) {
    room->microbatch = collectives_.MicrobatchOf(rank);
    edges->push_back({job, *room, TensorKind::kOrder, 0, 0, room->microbatch != job.microbatch});
  }
}

}  // namespace weft
