// Wants the inputs of claimed jobs that come from other processes, and matches arrivals to the jobs that wait
// for them.
//
// Activations and gradients are wanted when their job is claimed, so that they travel ahead of it; those of a
// forward whose copies its rank's budget counts, when it has its ticket (schedules/dispatch/admission.h). So
// copies come only where there is room for them, and what the forward waits for is made whether it is wanted
// or not. Those of a job that takes gradients before it is claimed are wanted when it begins to. Weights and
// states are large, and a rank has room for few: they are wanted in turn. Claim order agrees with the graph,
// so the first job in it that has not ended, over all ranks, is always among those that may fetch.
//
// Invariants:
//   1. A key is wanted once, and matched once.
//   2. The weights, or states, of at most two jobs of a rank have been wanted in turn and not given up: of
//      the first two in claim order that fetch any and have not ended.
// Pure; one thread.
#ifndef WEFT_WORKER_CORE_TENSOR_WANTS_H_
#define WEFT_WORKER_CORE_TENSOR_WANTS_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "schedules/graph/progress.h"
#include "worker/core/local_run.h"
#include "worker/core/tensor_key.h"
#include "worker/core/worker_effects.h"

namespace weft {

class TensorWants {
 public:
  struct Want {
    JobId job;       // job that waits for the tensor
    int microbatch;  // micro-batch of the job that makes it
    int64_t since;   // time at which it was wanted
  };
  // Refers to `run`.
  explicit TensorWants(const LocalRun& run) : run_(run), turns_(run.ranks()) {}

  // Wants the inputs of a claimed job of the rank, of its weights in turn. `room`: the rank has room for what
  // comes; else Claim wants weights, states and notices, which need none, and ClaimRest the rest.
  void Claim(int64_t now, Rank rank, const Job& job, bool room, WorkerEffects* out);
  void ClaimRest(int64_t now, const Job& job, WorkerEffects* out) { WantInputs(now, job, kRest, out); }
  // Notes that a job of the rank has ended, which may give its turn to the next.
  void Ended(int64_t now, Rank rank, const Job& job, WorkerEffects* out);
  // Takes the want of a tensor that has arrived; nothing for one that is not wanted.
  std::optional<Want> Take(const TensorKey& key);

 private:
  // Kinds of inputs: bits of a set. Notices are those of order edges: they have no bytes.
  enum Inputs : uint8_t { kNotices = 1, kWeights = 2, kRest = 4 };
  struct Turn {
    std::deque<Job> waiting;  // jobs whose weights are not wanted yet, in claim order
    int fetching = 0;         // jobs with wanted weights that have not ended
  };
  bool FetchesInTurn(const Job& job) const;
  static Inputs InputOf(const Edge& edge);
  // `which`: a set of kinds.
  void WantInputs(int64_t now, const Job& job, int which, WorkerEffects* out);
  void WantInTurn(int64_t now, Turn* turn, WorkerEffects* out);

  const LocalRun& run_;
  std::vector<Turn> turns_;  // by place of the rank
  absl::flat_hash_map<TensorKey, Want> wants_;
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_TENSOR_WANTS_H_
