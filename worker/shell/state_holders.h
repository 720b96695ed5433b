// Notes which rank of this process has the state of each stage that migrates: at most one, or the process
// ends.
//
// Each rank's compute sees only its own comings and goings. Here those of all ranks of the process meet, so
// that a doubled state is found when the second holder gets it, not in the numbers at the end. The states of
// other processes are not known: a stage without a holder here may be anywhere else. Not thread-safe; the
// owner locks.
#ifndef WEFT_WORKER_SHELL_STATE_HOLDERS_H_
#define WEFT_WORKER_SHELL_STATE_HOLDERS_H_

#include "absl/container/flat_hash_map.h"
#include "worker/core/worker_core.h"

namespace weft {

class StateHolders {
 public:
  // Notes that a job starts. Aborts, naming it, if a state comes that a rank here has, or a state that should
  // have stayed is not with the rank.
  void Visit(Rank rank, const Job& job, const StateVisit& visit);
  // Notes that the state is given away at the end of the job. Aborts if the rank does not have it.
  void Leave(Rank rank, const Job& job);
  // Forgets all holders at the end of the run.
  void Clear() { holder_.clear(); }

 private:
  absl::flat_hash_map<int, Rank> holder_;  // by stage
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_STATE_HOLDERS_H_
