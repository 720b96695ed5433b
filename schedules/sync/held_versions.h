// Follows which versions of their weights the holders of each stage keep at a time: the newest, and older
// ones until their last reader has ended. The simulator counts with it, and the workers drop versions by it.
//
// The count is exact for jobs on followed ranks. A job of another rank with a follower's weights is known to
// have ended when the micro-batch's gradient is there, or the sum of the stage's by a collective, or, at the
// latest, when the step's update begins.
//
// A run may make some of its steps only. It then begins with every version that a step from its first on may
// read. The state of a step is saved around its update: before the update the version that it begins with,
// behind it all else. A holder that saves (Holder::saves) keeps until then the older versions that later
// steps read; at the end of the run for good, so that another run can go on there. Pure; one thread.
#ifndef WEFT_SCHEDULES_SYNC_HELD_VERSIONS_H_
#define WEFT_SCHEDULES_SYNC_HELD_VERSIONS_H_

#include <deque>
#include <vector>

#include "schedules/graph/graph.h"

namespace weft {

// Returns the most versions of the stage's weights that the member ever holds: the newest, and as many older
// ones as the jobs that read this member's weights may lag behind it, or as it has to save.
int MaxVersions(const Graph& graph, int stage, Rank member);

class HeldVersions {
 public:
  struct Version {
    int stage, member, version;
    friend bool operator==(const Version&, const Version&) = default;
  };
  using Versions = std::vector<Version>;

  // The steps [first, end) of a run.
  struct Steps {
    int end = 1, first = 0;
    bool saved = false;  // at the end
  };
  // Refers to `graph`. Every member of every stage begins with the version that `first` updates have made
  // (one before it where it installs late), and with those before it that may still be read. `followed`, by
  // rank, are those whose jobs are reported here and whose versions are asked for; empty for all.
  HeldVersions(const Graph& graph, Steps steps, std::vector<bool> followed = {});
  HeldVersions(const Graph& graph, int steps) : HeldVersions(graph, Steps{steps}) {}

  // Appends the followed members' initial versions that no job reads. Call once, before any other method.
  void DropUnread(Versions* dropped) const;

  // Notes the end of a compute job of a followed rank: it needs its version no more. Here and below, what
  // nobody needs any more is appended to `dropped`, unless that is null.
  void Read(const Job& job, Versions* dropped);
  // Notes the end of a whole micro-batch on the stage: its jobs on ranks that are not followed need the
  // version of this member no more.
  void ReadElsewhere(int step, int stage, int microbatch, int member, Versions* dropped);

  // Notes the start of an update. Returns false if no job will read the version that it begins with, which it
  // then replaces.
  bool KeepsVersion(const Job& update);
  // Notes the end of an update. Returns how many versions its member holds now.
  int Publish(const Job& update, Versions* dropped);

  // Announces a snapshot of what the followed members save, around the updates that make `version`: of that,
  // and of older ones that later steps read, which are kept for it until those begin. None of these versions
  // has been dropped yet.
  void AddSnapshot(int version);
  // Notes that it has been taken behind this update, which has ended.
  void TakeSnapshot(const Job& update, Versions* dropped);

  // Returns how many versions the member holds: the newest, and older ones with readers left.
  int Held(int stage, int member) const;

 private:
  struct Member {
    std::deque<int> readers;  // that are left of each version from `oldest` on
    int oldest = 0, newest = 0;
    int steady = -1;  // readers of each version but the first and the last ones; -1 if not counted yet
    bool replaces = false;
    std::vector<int> snapshots;  // that will be taken, by their version
  };

  bool IsFollowed(Rank rank) const { return followed_.empty() || followed_[rank]; }
  int CountReaders(int stage, int member, int version) const;
  int ReadersOf(int stage, int member, int version);
  int OldestSaved(int stage, int version) const;
  void CountRead(int stage, int member, int version, Versions* dropped);

  const Graph& graph_;
  const Steps steps_;
  const std::vector<bool> followed_;
  std::vector<std::vector<Member>> members_;  // by stage
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SYNC_HELD_VERSIONS_H_
