#include "schedules/held_versions.h"

#include <algorithm>

namespace weft {

HeldVersions::HeldVersions(const Graph& graph, int steps) : graph_(graph), steps_(steps) {
  for (int s = 0; s < graph.schedule().stages; ++s) {
    std::vector<Member>& members = members_.emplace_back();
    for (size_t m = 0; m < graph.members(s).size(); ++m) {
      members.push_back({{ReadersOf(s, static_cast<int>(m), 0)}});
    }
  }
}

int HeldVersions::ReadersOf(int stage, int member, int version) const {
  const Schedule& schedule = graph_.schedule();
  int readers = 0;
  for (int b = 0; b < schedule.microbatches; ++b) {
    const int staleness = schedule.StalenessOf(stage, b);
    const int first = version == 0 ? 0 : version + staleness;
    const int last = std::min(version + staleness, steps_ - 1);
    for (int t = first; t <= last; ++t) {
      for (JobKind kind :
           {JobKind::kForward, JobKind::kBackward, JobKind::kBackwardInput, JobKind::kBackwardWeight}) {
        if (!graph_.IsComputeKindUsed(kind)) continue;
        readers += graph_.sharded() ||
                   schedule.weights(Job::Compute(t, stage, b, kind)) == graph_.members(stage)[member];
      }
    }
  }
  return readers;
}

void HeldVersions::Read(const Job& job) {
  std::vector<Member>& members = members_[job.stage];
  const int version = graph_.VersionOf(job);
  const auto read = [version](Member& m) { --m.readers[version - m.oldest]; };
  if (graph_.sharded()) {
    for (Member& slice : members) read(slice);
    return;
  }
  const std::vector<Rank>& ranks = graph_.members(job.stage);
  read(members[std::lower_bound(ranks.begin(), ranks.end(), graph_.schedule().weights(job)) - ranks.begin()]);
}

int HeldVersions::Publish(const Job& update) {
  Member& m = members_[update.stage][update.member];
  m.readers.push_back(ReadersOf(update.stage, update.member, update.step + 1));
  ++m.newest;
  while (m.oldest < m.newest && m.readers.front() == 0) {
    m.readers.pop_front();
    ++m.oldest;
  }
  int held = 1;
  for (int v = m.oldest; v < m.newest; ++v) held += m.readers[v - m.oldest] > 0;
  return held;
}

}  // namespace weft
