// Keeps the snapshots that the coordinator has announced and that this process has not taken yet.
//
// A snapshot of step k is taken of each stage behind its update of step k - 1 and before anything else on
// that rank, by the rank that saves the stage, or, where states migrate, that makes version k.
//
// Invariants: a step is announced at most once; each of its pieces is taken once. Pure; one thread.
#ifndef WEFT_WORKER_CORE_ANNOUNCED_SNAPSHOTS_H_
#define WEFT_WORKER_CORE_ANNOUNCED_SNAPSHOTS_H_

#include <map>

#include "schedules/graph/graph.h"
#include "schedules/sync/saving.h"

namespace weft {

class AnnouncedSnapshots {
 public:
  // Refers to `graph`.
  explicit AnnouncedSnapshots(const Graph& graph) : graph_(graph) {}

  bool IsAnnounced(int step) const { return pieces_.count(step) != 0; }
  // Announces the snapshot of the step, of so many stages, or slices of stages, of this process: at least
  // one.
  void Announce(int step, int pieces) { pieces_[step] = pieces; }
  // Returns true if a snapshot is taken behind the job.
  bool IsTakenBehind(const Job& job) const {
    return job.kind == JobKind::kUpdate && !pieces_.empty() && IsAnnounced(job.step + 1) &&
           Saves(graph_, job);
  }
  // Notes that one was taken behind the update.
  void NoteTaken(const Job& update) {
    if (--pieces_[update.step + 1] == 0) pieces_.erase(update.step + 1);
  }

 private:
  const Graph& graph_;
  std::map<int, int> pieces_;  // by step: pieces that are not taken yet
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_ANNOUNCED_SNAPSHOTS_H_
