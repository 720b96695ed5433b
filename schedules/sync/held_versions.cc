#include "schedules/sync/held_versions.h"

#include <algorithm>
#include <utility>

#include "base/require.h"

namespace weft {
int MaxVersions(const Graph& graph, int stage, Rank member) {
  const Schedule& schedule = graph.schedule();
  if (!schedule.staleness) return 1;
  // A state that travels brings all of them, and slices are read by all jobs.
  const Protocol& protocol = graph.protocol(stage);
  if (protocol.layout() != Layout::kWhole) return 1 + schedule.MaxStaleness(stage);
  const std::vector<Rank>& members = graph.members(stage);
  const auto found = std::lower_bound(members.begin(), members.end(), member);
  const Holder holder = found != members.end() && *found == member
                            ? protocol.holder(static_cast<int>(found - members.begin()))
                            : Holder();
  int most = 0;
  for (int b = 0; b < schedule.microbatches; ++b) {
    for (int step = 0; step < schedule.period; ++step) {
      for (const JobKind kind : kComputeKinds) {
        if (!graph.IsComputeKindUsed(kind)) continue;
        const Job job = Job::Compute(step, stage, b, kind);
        if (schedule.weights(job) != member) continue;
        most = std::max(most, schedule.staleness(stage, b));
      }
    }
  }
  const int saved = holder.saves ? schedule.MaxStaleness(stage) : 0;
  return std::max({1, 1 + most - holder.installs_late, saved});
}

HeldVersions::HeldVersions(const Graph& graph, Steps steps, std::vector<bool> followed)
    : graph_(graph), steps_(steps), followed_(std::move(followed)) {
  for (int s = 0; s < graph.schedule().stages; ++s) {
    std::vector<Member>& members = members_.emplace_back(graph.members(s).size());
    for (size_t m = 0; m < members.size(); ++m) {
      Member& member = members[m];
      const bool late = graph.protocol(s).holder(static_cast<int>(m)).installs_late;
      member.newest = std::max(0, steps_.first - late);
      member.oldest = std::max(0, steps_.first - graph.schedule().MaxStaleness(s));
      for (int v = member.oldest; v <= member.newest; ++v)
        member.readers.push_back(CountReaders(s, static_cast<int>(m), v));
    }
  }
}

void HeldVersions::DropUnread(Versions* dropped) const {
  for (int s = 0; s < graph_.schedule().stages; ++s) {
    for (int m = 0; m < static_cast<int>(members_[s].size()); ++m) {
      if (!IsFollowed(graph_.members(s)[m])) continue;
      const Member& member = members_[s][m];
      for (int v = member.oldest; v < member.newest; ++v) {
        if (member.readers[v - member.oldest] == 0) dropped->push_back({s, m, v});
      }
    }
  }
}

int HeldVersions::Held(int stage, int member) const {
  const Member& m = members_[stage][member];
  int held = 1;
  for (int v = m.oldest; v < m.newest; ++v) held += m.readers[v - m.oldest] > 0;
  return held;
}

int HeldVersions::CountReaders(int stage, int member, int version) const {
  const Schedule& schedule = graph_.schedule();
  // A member that saves keeps what steps behind the last would read, but for what the last update begins
  // with.
  int readers = steps_.saved && graph_.protocol(stage).holder(member).saves && version != steps_.end - 1 &&
                version + schedule.MaxStaleness(stage) >= steps_.end;
  for (int b = 0; b < schedule.microbatches; ++b) {
    const int staleness = schedule.StalenessOf(stage, b);
    const int first = std::max(steps_.first, version == 0 ? 0 : version + staleness);
    const int last = std::min(version + staleness, steps_.end - 1);
    for (int t = first; t <= last; ++t) {
      for (const JobKind kind : kComputeKinds) {
        if (!graph_.IsComputeKindUsed(kind)) continue;
        readers += graph_.Reads(Job::Compute(t, stage, b, kind), member);
      }
    }
  }
  return readers;
}

// All versions but the first have the same readers, up to those that the last steps do not come to.
int HeldVersions::ReadersOf(int stage, int member, int version) {
  const Schedule& schedule = graph_.schedule();
  if (schedule.period > 1 || version == 0 || version + schedule.MaxStaleness(stage) >= steps_.end) {
    return CountReaders(stage, member, version);
  }
  int& steady = members_[stage][member].steady;
  if (steady < 0) steady = CountReaders(stage, member, version);
  return steady;
}

void HeldVersions::CountRead(int stage, int member, int version, Versions* dropped) {
  Member& m = members_[stage][member];
  Require(version >= m.oldest && version <= m.newest, "a version is read while it is held");
  int& readers = m.readers[version - m.oldest];
  Require(readers > 0, "a version is read by those that were counted");
  if (--readers == 0 && version < m.newest && dropped != nullptr)
    dropped->push_back({stage, member, version});
}

void HeldVersions::Read(const Job& job, Versions* dropped) {
  const std::vector<Rank>& ranks = graph_.members(job.stage);
  const int version = graph_.VersionOf(job);
  const bool whole = graph_.protocol(job.stage).layout() == Layout::kWhole;
  const int first = whole ? graph_.SourceOf(job) : 0;
  const int end = whole ? first + 1 : static_cast<int>(ranks.size());
  for (int m = first; m < end; ++m) {
    if (IsFollowed(ranks[m])) CountRead(job.stage, m, version, dropped);
  }
}

void HeldVersions::ReadElsewhere(int step, int stage, int microbatch, int member, Versions* dropped) {
  for (const JobKind kind : kComputeKinds) {
    if (!graph_.IsComputeKindUsed(kind)) continue;
    const Job job = Job::Compute(step, stage, microbatch, kind);
    if (IsFollowed(graph_.RankOf(job))) continue;
    if (!graph_.Reads(job, member)) continue;
    CountRead(stage, member, graph_.VersionOf(job), dropped);
  }
}

bool HeldVersions::KeepsVersion(const Job& update) {
  Member& m = members_[update.stage][update.member];
  const bool here = graph_.protocol(update.stage).VersionBehind(update) == m.newest;  // nothing is made
  m.replaces = here || m.readers.back() == 0;
  return !m.replaces;
}

// Returns the oldest version that a snapshot keeps; the newest is the one before what the update begins with.
int HeldVersions::OldestSaved(int stage, int version) const {
  return std::max(0, version - graph_.schedule().MaxStaleness(stage));
}

void HeldVersions::AddSnapshot(int version) {
  for (int s = 0; s < graph_.schedule().stages; ++s) {
    for (int number = 0; number < static_cast<int>(members_[s].size()); ++number) {
      if (!IsFollowed(graph_.members(s)[number]) || !graph_.protocol(s).holder(number).saves) continue;
      Member& m = members_[s][number];
      m.snapshots.push_back(version);
      for (int v = OldestSaved(s, version); v < version - 1 && v <= m.newest; ++v) {
        Require(v >= m.oldest && (v == m.newest || m.readers[v - m.oldest] > 0),
                "a snapshot is announced while what it keeps is held");
        ++m.readers[v - m.oldest];
      }
    }
  }
}

void HeldVersions::TakeSnapshot(const Job& update, Versions* dropped) {
  std::vector<int>& snapshots = members_[update.stage][update.member].snapshots;
  const int version = update.step + 1;
  const auto found = std::find(snapshots.begin(), snapshots.end(), version);
  Require(found != snapshots.end(), "a snapshot is taken once it was announced");
  snapshots.erase(found);
  for (int v = OldestSaved(update.stage, version); v < version - 1; ++v)
    CountRead(update.stage, update.member, v, dropped);
}

int HeldVersions::Publish(const Job& update, Versions* dropped) {
  Member& m = members_[update.stage][update.member];
  const int version = graph_.protocol(update.stage).VersionBehind(update);
  if (version == m.newest) return Held(update.stage, update.member);
  if (m.readers.back() == 0 && !m.replaces && dropped != nullptr) {
    dropped->push_back({update.stage, update.member, m.newest});
  }
  m.replaces = false;
  ++m.newest;
  Require(m.newest == version, "updates of a member follow one another");
  m.readers.push_back(ReadersOf(update.stage, update.member, m.newest));
  for (const int snapshot : m.snapshots)
    m.readers.back() += m.newest < snapshot - 1 && m.newest >= OldestSaved(update.stage, snapshot);
  while (m.oldest < m.newest && m.readers.front() == 0) {
    m.readers.pop_front();
    ++m.oldest;
  }
  return Held(update.stage, update.member);
}

}  // namespace weft
