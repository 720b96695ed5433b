// Declares the tasks of a rank's seat (rank_seats.h), and does those that are no jobs: a thread makes the
// rank's compute, saves its stages at the run's end, and ends it.
//
// The functions run on the thread that does the task, without locks. Failure: the status of compute or files.
#ifndef WEFT_WORKER_SHELL_LOOP_RANK_TASKS_H_
#define WEFT_WORKER_SHELL_LOOP_RANK_TASKS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_schedule.h"
#include "worker/core/worker_effects.h"
#include "worker/shell/checkpoint/checkpoint_folders.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/loop/job_runner.h"
#include "worker/shell/loop/kept_copies.h"
#include "worker/shell/memory/memory_source.h"

namespace weft {

struct PrepareTask {
  std::shared_ptr<const ScheduledRun> run;
  Rank rank = 0;
  bool first = false;  // the process's first rank, which prepares the folders too
  std::vector<PrepareEffect::Stage> stages;
  std::shared_ptr<const CheckpointFolders> folders;  // null for none
};
struct SaveTask {
  std::vector<int> stages;
  std::string folder;
};
// Begins with copies of the state that processes kept in memory.
struct ResumeTask {
  struct Stage {
    int stage;
    std::vector<Tensor> parts;
  };
  std::shared_ptr<const ScheduledRun> run;
  std::vector<Stage> stages;
};
struct EndTask {
  std::unique_ptr<RankCompute> compute;  // state of a run that is forgotten
};
using RankTask = std::variant<std::monostate, JobTask, PrepareTask, SaveTask, ResumeTask, EndTask>;

// Does a task that is no job. The first one makes the rank's compute with its stages, and writes those of the
// initial checkpoint; the compute is there also where a stage fails. A rank that ends does so in it.
absl::Status DoRankTask(RankTask task, Device& device, MemorySource& memory,
                        std::unique_ptr<RankCompute>* compute);

// Returns the tasks of the ranks that begin with copies, by rank. NotFound for a copy that is not here.
absl::StatusOr<std::map<Rank, ResumeTask>> ResumeTasks(const ResumeEffect& effect,
                                                       const std::shared_ptr<const ScheduledRun>& run,
                                                       uint64_t run_id, const KeptCopies& copies);

// Checks that this process may open the files that the run names, and its output folder (base/run_files.h).
// PermissionDenied with the key in the run file.
absl::Status CheckRunPaths(const RunSpec& run, const std::string& output);

// Refuses a run that surely does not fit into the memory of the host, before anything is allocated: the
// kernel would end this process later, or another one, without a word. It counts the memory that stays, and
// migrating states that are here at a time, once each; a run needs more.
absl::Status CheckHostMemory(const RunSpec& spec, const PrepareEffect& effect);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_RANK_TASKS_H_
