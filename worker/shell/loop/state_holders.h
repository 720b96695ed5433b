// Notes which rank of this process has the state of each stage that migrates: at most one, or the process
// ends.
//
// Each rank's compute sees only its own comings and goings. Here those of all ranks of the process meet, so
// that a doubled state is found when the second holder gets it, not in the numbers at the end. The states of
// other processes are not known: a stage without a holder here may be anywhere else. Not thread-safe; the
// owner locks.
#ifndef WEFT_WORKER_SHELL_LOOP_STATE_HOLDERS_H_
#define WEFT_WORKER_SHELL_LOOP_STATE_HOLDERS_H_

#include "absl/container/flat_hash_map.h"
#include "schedules/job.h"

namespace weft {

class StateHolders {
 public:
  // Notes that a job starts, and the state comes to it, or begins there. Aborts, naming the job, if a rank
  // here has it.
  void Come(Rank rank, const Job& job);
  // Notes that a job starts for which the state has stayed. Aborts, naming the job, if the rank does not have
  // it.
  void Stay(Rank rank, const Job& job) const;
  // Notes that the state is given away at the end of the job. Aborts if the rank does not have it.
  void Leave(Rank rank, const Job& job);
  // Forgets all holders at the end of the run.
  void Clear() { holder_.clear(); }

 private:
  absl::flat_hash_map<int, Rank> holder_;  // by stage
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_STATE_HOLDERS_H_
