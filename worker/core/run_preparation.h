// Finds what a process makes ready before a run begins: the stages of its ranks, and how much each rank has
// to do. Pure functions of the run's fixed facts.
#ifndef WEFT_WORKER_CORE_RUN_PREPARATION_H_
#define WEFT_WORKER_CORE_RUN_PREPARATION_H_

#include <cstdint>
#include <vector>

#include "schedules/graph/progress.h"
#include "worker/core/local_run.h"
#include "worker/core/worker_effects.h"

namespace weft {

// Says whether a rank of this process computes a stage, by place of the rank and stage.
using ComputedStages = std::vector<std::vector<char>>;
ComputedStages FindComputedStages(const LocalRun& run, const JobTable& jobs);

// Returns the stages that the ranks of this process hold or compute, by rank and stage, ascending.
std::vector<PrepareEffect::Stage> StagesToPrepare(const LocalRun& run, const ComputedStages& computed);

// The number of jobs of a rank in a step (the first of a period) and in the whole run.
struct RankWork {
  int64_t jobs_per_step = 0, jobs = 0;
};
// Counts the work of the ranks of this process, by place of the rank.
std::vector<RankWork> CountWork(const LocalRun& run, const JobTable& jobs);

}  // namespace weft

#endif  // WEFT_WORKER_CORE_RUN_PREPARATION_H_
