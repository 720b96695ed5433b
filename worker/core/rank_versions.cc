#include "worker/core/rank_versions.h"

#include <algorithm>
#include <optional>

#include "schedules/sync/state_route.h"

namespace weft {
namespace {

std::vector<bool> RanksFollowed(const LocalRun& run) {
  std::vector<bool> local(run.graph().schedule().ranks);
  for (Rank r = 0; r < run.graph().schedule().ranks; ++r) local[r] = run.IsLocal(r);
  return local;
}

// Calls `act(stage, member)` for each stage that the rank holds.
template <typename Act>
void ForEachHeld(const Graph& graph, Rank rank, Act act) {
  for (int s = 0; s < graph.schedule().stages; ++s) {
    const std::vector<Rank>& members = graph.members(s);
    const auto member = std::lower_bound(members.begin(), members.end(), rank);
    if (member != members.end() && *member == rank) act(s, static_cast<int>(member - members.begin()));
  }
}

}  // namespace

RankVersions::RankVersions(const LocalRun& run)
    : run_(run),
      versions_(run.graph(), HeldVersions::Steps{run.steps(), run.first_step(), /*saved=*/true},
                RanksFollowed(run)),
      ranks_(run.ranks()) {
  for (const RankLease& lease : run.assignment().leases) {
    OfRank& rank = ranks_[run.PlaceOf(lease.rank)];
    rank.state_versions.assign(run.graph().schedule().stages, 0);
    ForEachHeld(run.graph(), lease.rank,
                [&](int s, int member) { rank.peak = std::max(rank.peak, versions_.Held(s, member)); });
  }
}

void RankVersions::DropUnread(WorkerEffects* out) {
  if (run_.graph().route() == nullptr) versions_.DropUnread(&dropped_);
  Drop(out);
}

void RankVersions::Started(Rank rank, const Job& job, WorkerEffects* out) {
  // The sum that came to the update shows that every backward of the step has ended.
  if (job.kind == JobKind::kUpdate && run_.graph().protocol(job.stage).passes_sums()) ReadByAll(job, out);
  if (const StateRoute* route = run_.graph().route())
    ranks_[run_.PlaceOf(rank)].state_versions[job.stage] = route->VersionsDuring(job);
}

bool RankVersions::KeepsVersion(const Job& update, int version) {
  const StateRoute* route = run_.graph().route();
  return route != nullptr ? route->IsReadAfter(update, version) : versions_.KeepsVersion(update);
}

void RankVersions::GradientArrived(const Job& sum, int microbatch, WorkerEffects* out) {
  const Graph& graph = run_.graph();
  if (HasMicrobatch(sum.kind) || graph.protocol(sum.stage).passes_sums() || graph.route() != nullptr) return;
  // The micro-batch's last backward on the stage has ended.
  versions_.ReadElsewhere(sum.step, sum.stage, microbatch, sum.member, &dropped_);
  Drop(out);
}

void RankVersions::SumMade(const Job& reduce, WorkerEffects* out) {
  // So have the backwards of all ranks on the stage, which read this rank's slice.
  if (reduce.kind == JobKind::kReduce && run_.graph().protocol(reduce.stage).layout() == Layout::kSliced)
    ReadByAll(reduce, out);
}

void RankVersions::Ended(Rank rank, const Job& job, int snapshots, WorkerEffects* out) {
  OfRank& of_rank = ranks_[run_.PlaceOf(rank)];
  if (const StateRoute* route = run_.graph().route()) {
    of_rank.peak = std::max(of_rank.peak, route->VersionsDuring(job));
    const std::optional<Job> after = route->After(job);
    const bool leaves = after.has_value() && run_.graph().RankOf(*after) != rank;
    of_rank.state_versions[job.stage] = leaves ? 0 : route->VersionsAfter(job);
  } else if (HasMicrobatch(job.kind)) {
    versions_.Read(job, &dropped_);
  } else if (job.kind == JobKind::kUpdate) {
    of_rank.peak = std::max(of_rank.peak, versions_.Publish(job, &dropped_));
    for (int i = 0; i < snapshots; ++i) versions_.TakeSnapshot(job, &dropped_);
  }
  Drop(out);
}

void RankVersions::AddSnapshot(int step) {
  if (run_.graph().route() == nullptr) versions_.AddSnapshot(step);
}

int RankVersions::Held(Rank rank) const {
  int most = 0;
  if (run_.graph().route() != nullptr) {
    for (const int versions : ranks_[run_.PlaceOf(rank)].state_versions) most = std::max(most, versions);
    return most;
  }
  ForEachHeld(run_.graph(), rank,
              [&](int s, int member) { most = std::max(most, versions_.Held(s, member)); });
  return most;
}

void RankVersions::ReadByAll(const Job& job, WorkerEffects* out) {
  for (int b = 0; b < run_.graph().schedule().microbatches; ++b)
    versions_.ReadElsewhere(job.step, job.stage, b, job.member, &dropped_);
  Drop(out);
}

void RankVersions::Drop(WorkerEffects* out) {
  for (const HeldVersions::Version& v : dropped_)
    out->push_back(DropEffect{run_.graph().members(v.stage)[v.member], v.stage, v.version});
  dropped_.clear();
}

}  // namespace weft
