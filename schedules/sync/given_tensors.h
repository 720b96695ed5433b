// Says which jobs wait, within a budget of bytes, until tensors that their rank has given to others are back.
//
// A tensor stays as long as its last reader has it. A rank that is slow to give it back would make the rank
// that made it keep more than jobs need:
//
//   - Versions of weights: an update makes a version beside those that are still read. The update that would
//     exceed the versions that jobs need at a time waits for the oldest. What computes with that one is done
//     when the update's gradients are here, and what installs it waits for nothing behind the update.
//   - Running sums (Protocol::passes_sums): the backward of the next micro-batch takes the sum. The rank's
//     backward of a micro-batch behind that one waits until it has been taken, or, where there is none in the
//     step, the first one of each later step whose weights contain the sum.
//
// So each wait ends. Without a budget nothing waits, and the rank has room for all that readers may have.
// Pure; refers to no graph.
#ifndef WEFT_SCHEDULES_SYNC_GIVEN_TENSORS_H_
#define WEFT_SCHEDULES_SYNC_GIVEN_TENSORS_H_

#include <optional>
#include <vector>

#include "schedules/graph/edge.h"
#include "schedules/graph/graph.h"

namespace weft {

class GivenTensors {
 public:
  explicit GivenTensors(const Graph& graph);

  // Returns the jobs of the same rank that wait until what the edge brings has been given back. They may be
  // behind the run's last step, or, for a version that the run begins with, before its first.
  std::vector<Job> JobsBehind(const Graph& graph, const Edge& edge) const;

 private:
  // Versions by stage and member that the member has at a time, the one that is being made among them; 0
  // where updates wait for none. Empty without a budget.
  std::vector<std::vector<int>> most_;
};

// Returns true if, within a budget, updates of the stage wait for versions of a holder that keeps these. Not
// where a checkpoint may keep older ones than the holder's jobs read: an update that waits for its readers
// alone may find all of those still there.
bool AwaitsVersions(const Graph& graph, int stage, const Kept& kept);

// Returns how many running sums of the stage the rank has at a time at most, within a budget, of those that
// it hands on in a run of so many steps; nothing where backwards wait for none: the stage passes no sums, or
// its steps are placed differently.
std::optional<int> SumsInTurn(const Graph& graph, int stage, Rank rank, int steps);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SYNC_GIVEN_TENSORS_H_
