// Decides which waiting run starts next, and on which workers.
//
// Runs that have begun before come first, by number, because their progress is worth keeping. The others
// start by priority, then by owner, the one whose runs have the fewest processes first, then in the order of
// submission. No run is ended to make room for another one.
//
// A run waits in one of two ways. If enough workers of its pool are connected and some are busy, it waits for
// its turn and holds back the runs of that pool behind it. If too few are connected, it waits for workers,
// with a deadline, and runs behind it that need fewer may pass.
//
// A run gets the reason why it waits whenever that changes. Runs behind the first kExact of their line get a
// shorter reason, which stays true while the runs before them start and end. So the cost of a queue does not
// grow with its length.
//
// Invariants: a run gets only workers of its pool that are free, by process number, and those with which the
// last run failed come last, unless an order names others; a run whose ranks were ordered to processes gets
// these, and no other run gets them meanwhile (run_placement.h); every run that waits says for what. Refers
// to the runs and the workers. Pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_QUEUE_H_
#define WEFT_COORDINATOR_CORE_RUN_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "coordinator/core/run_table.h"
#include "coordinator/core/waiting_runs.h"
#include "coordinator/core/worker_table.h"

namespace weft {

class RunQueue {
 public:
  static constexpr size_t kExact = 32;

  RunQueue(RunTable* runs, WorkerTable* workers) : runs_(*runs), workers_(*workers) {}

  struct Admission {
    Run* run = nullptr;
    std::vector<Worker*> workers;
  };
  // Returns the next run that can start; none at the end of a pass over the queue. The caller starts the run,
  // or ends it, before it asks again. Asked though nothing has changed since the last pass, it looks at no
  // run.
  std::optional<Admission> Next(StepEffects& out);
  // Returns the workers that are free for the run, in the order in which one that needs one takes them.
  std::vector<Worker*> FreeFor(const Run& run);

 private:
  // The state on which the queue depends.
  struct State {
    std::vector<SessionId> free;
    size_t connected = 0, ending = 0, live = 0, begun = 0, gathering = 0;
    uint64_t next_run = 0;
    friend bool operator==(const State&, const State&) = default;
  };
  struct Pass {
    std::vector<uint64_t> begun;                          // runs that have begun before, the next one last
    absl::btree_map<std::string, uint64_t> holding_back;  // by pool: first run that waits for its turn
  };
  State Now() const;
  Pass Begin();
  // Returns the processes that serve each owner's runs.
  WaitingRuns::Processes ProcessesOfOwners() const;
  absl::flat_hash_set<Worker::ProcessKey> ProcessesOfStrangers(const Run& run) const;
  std::vector<Worker*> FreeInSurvey(const Run& run) const;
  // Returns the next run that has not begun before, of a pool that nobody holds back; null for none.
  Run* NextFresh();
  // Returns how the run can start; none if it cannot. `free` and `needed`: the processes that are free for it
  // and those that it needs.
  struct Look {
    std::optional<Admission> admission;
    size_t free = 0, needed = 0;
  };
  Look LookAt(Run& run);
  size_t Needed(const Run& run, size_t free);
  bool AwaitsLeaver(const Run& run);
  bool HasOrdered(const Run& run);
  static bool IsEnding(const Worker& w, const Run& run);
  // Figures of a pool's workers, for the reasons that its runs get.
  struct Pool {
    size_t connected = 0;
    std::string ending;  // "; process 0 (..) has not ended run 3 yet"
  };
  Pool LookAt(const std::string& pool) const;
  // Tell a run why it waits: exactly, with advice, or in words that stay true.
  void Tell(StepEffects& out, Run& run, const Pool& workers, size_t free, size_t needed,
            const std::string& advice);
  void TellRoughly(StepEffects& out, Run& run, const Pool& workers);
  // Tells the runs that have not begun before.
  void TellLines(StepEffects& out);

  RunTable& runs_;
  WorkerTable& workers_;
  WorkerSurvey survey_;  // of the present call
  State seen_;           // as of the end of the last pass
  std::optional<Pass> pass_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_QUEUE_H_
