// Hands the gradients of micro-batches to the jobs that sum them, in the order of micro-batches.
//
// A sum's bits depend on its order, so a job that consumes gradients takes each in its turn, whatever order
// they arrive in. It starts when the next one is there, takes all that have arrived in order, and starts
// again for the rest.
//
// Invariants: of a job, each gradient is taken once, in ascending order of micro-batches. Pure; one thread.
#ifndef WEFT_WORKER_CORE_GRADIENT_INTAKE_H_
#define WEFT_WORKER_CORE_GRADIENT_INTAKE_H_

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"

namespace weft {

class GradientIntake {
 public:
  // The micro-batches [first, end).
  struct Range {
    int first = 0, end = 0;
  };
  // Refers to `graph`.
  explicit GradientIntake(const Graph& graph) : graph_(graph) {}

  // Returns true if the job is one of these.
  bool IsConsumer(const Job& job) const { return graph_.TakesGradients(job); }

  // The next require a consumer. `id` is the job's number.
  void Arrived(JobId id, int microbatch) { IntakeOf(id).arrived[microbatch] = true; }
  // Returns true if the gradient that the job takes next has arrived.
  bool HasNext(JobId id);
  // Returns the gradients that the job takes now, which may be none.
  Range Take(JobId id);
  // Forgets a job that has ended, if it is a consumer.
  void Forget(JobId id) { intakes_.erase(id); }

 private:
  struct Intake {
    int next = 0;
    std::vector<bool> arrived;  // by micro-batch
  };
  Intake& IntakeOf(JobId id);

  const Graph& graph_;
  absl::flat_hash_map<JobId, Intake> intakes_;
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_GRADIENT_INTAKE_H_
