// Takes the hashes of a job's values, in a run that records them (`record: hashes`).
//
// It hashes a job's results, and its inputs that came from other processes, as they arrived. So a transfer
// that changed a bit is distinguished from a computation that did. Values in a device's memory are left out.
// Called within the job, on its thread. The functions append to the job's outcome; all but HashTaskFor
// require that the task has hashes to take.
#ifndef WEFT_WORKER_SHELL_LOOP_HASH_NOTES_H_
#define WEFT_WORKER_SHELL_LOOP_HASH_NOTES_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "proto/session/job_hashes.h"
#include "schedules/graph/graph.h"
#include "worker/core/worker_effects.h"
#include "worker/shell/compute/compute.h"

namespace weft {

struct JobTask;
struct JobOutcome;

struct HashTask {
  // An input from another process. Its part is filled in for a value that comes whole.
  struct Arrived {
    bool is_gradient;  // one of the task's gradients; else of its inputs
    size_t index;
    ValueHash hash;
  };
  std::vector<Arrived> arrived;
  // The newest version with which the run began: the weights of forwards that read it are hashed.
  int first_version = 0;
};

// Returns the hashes to take of a job. `is_here`: whether a rank is in this process.
HashTask HashTaskFor(const Graph& graph, const StartEffect& start, int first_version,
                     const std::function<bool(Rank)>& is_here);

// Note inputs that arrived; weights with which the run began, `fetched` for this job or, if empty, held; the
// gradient of a micro-batch, handed out or joining a sum; a sum that this job made of what came; and all
// other results.
void NoteArrived(const JobTask& task, const RankCompute& compute, JobOutcome* outcome);
void NoteInitialWeights(const JobTask& task, RankCompute& compute, const Tensor& fetched,
                        JobOutcome* outcome);
void NoteGradient(const JobTask& task, const BackwardResult& result, bool in_slices, JobOutcome* outcome);
void NoteSum(const JobTask& task, const RankCompute& compute, const Tensor& sum, JobOutcome* outcome);
void NoteResults(const JobTask& task, RankCompute& compute, JobOutcome* outcome);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_HASH_NOTES_H_
