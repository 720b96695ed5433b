// Follows which versions of weights the ranks of this process hold, and drops those that no job reads any
// more.
//
// A holder keeps a version of its weights as long as a job that reads it is pending, and the newest
// (schedules/sync/held_versions.h). If states migrate, the versions are in the stage's state, which goes
// from rank to rank and drops them itself; here they are only counted.
//
// Invariants: a version is dropped once, when its last reader has ended and it has been handed to all that
// fetch it, and not while an announced snapshot needs it. Pure; one thread.
#ifndef WEFT_WORKER_CORE_RANK_VERSIONS_H_
#define WEFT_WORKER_CORE_RANK_VERSIONS_H_

#include <vector>

#include "schedules/sync/held_versions.h"
#include "worker/core/local_run.h"
#include "worker/core/worker_effects.h"

namespace weft {

class RankVersions {
 public:
  // Refers to `run`.
  explicit RankVersions(const LocalRun& run);

  // Drops initial versions that no job reads. Call once, when the initial weights have been published.
  void DropUnread(WorkerEffects* out);
  // Notes that a job of the rank starts.
  void Started(Rank rank, const Job& job, WorkerEffects* out);
  // Returns true if jobs will still read the version with which the update begins. Requires that it has
  // started.
  bool KeepsVersion(const Job& update, int version);
  // Notes that a micro-batch's gradient has come to the job that sums it: its jobs on other processes' ranks
  // have ended.
  void GradientArrived(const Job& sum, int microbatch, WorkerEffects* out);
  // Notes that a joint operation has made the sum of the reduce.
  void SumMade(const Job& reduce, WorkerEffects* out);
  // Notes that a job of the rank has ended, and its outputs, new weights among them, have been published.
  // `snapshots`: how many of its step are taken behind it.
  void Ended(Rank rank, const Job& job, int snapshots, WorkerEffects* out);
  // Keeps the versions that a snapshot of the step needs.
  void AddSnapshot(int step);

  // Return the most versions of one stage's weights that the rank holds, and has held; 0 if it holds none.
  int Held(Rank rank) const;
  int Peak(Rank rank) const { return ranks_[run_.PlaceOf(rank)].peak; }

 private:
  struct OfRank {
    int peak = 0;
    std::vector<int> state_versions;  // versions by stage, of the states that are here
  };
  // Notes that all jobs of the step that read the version of the job's member have ended.
  void ReadByAll(const Job& job, WorkerEffects* out);
  void Drop(WorkerEffects* out);

  const LocalRun& run_;
  HeldVersions versions_;
  std::vector<OfRank> ranks_;       // by place of the rank
  HeldVersions::Versions dropped_;  // empty between calls
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_RANK_VERSIONS_H_
