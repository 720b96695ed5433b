// Counts the activations of micro-batches that are alive on one rank, and gives their room back to the rank's
// admission of forwards.
//
// An activation lives from the start of its forward to the end of its last backward. If the two are on
// different ranks, each of them has its own copy. Under a byte budget the tickets of a stage cost the counted
// bytes first, and the measured ones once its first forward has ended: every micro-batch has the same sizes,
// so that one measures for all.
//
// Failure: a forward that keeps more than was counted, which ends the run. Pure; one thread.
#ifndef WEFT_WORKER_CORE_RANK_ACTIVATIONS_H_
#define WEFT_WORKER_CORE_RANK_ACTIVATIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "schedules/dispatch/dispatch.h"
#include "schedules/graph/graph.h"

namespace weft {

class RankActivations {
 public:
  // Refers to `graph` and to the rank's ready jobs.
  RankActivations(Rank rank, const Graph& graph, ReadyJobs* ready);

  // Notes that a job starts that makes an activation.
  void Begin();
  // Notes that `activation_bytes` stay of a job, if that was measured. Returns why the run cannot go on; ""
  // if it can.
  std::string Measure(const Job& job, std::optional<int64_t> activation_bytes);
  // Notes that a job has ended, and frees a micro-batch's activation on its stage, with its backward, or,
  // where that is on another rank, with each.
  void End(const Job& job);

  int peak() const { return peak_; }

 private:
  const Rank rank_;
  const Graph& graph_;
  ReadyJobs& ready_;
  int alive_ = 0, peak_ = 0;
  std::vector<bool> measured_;  // by stage: true once a forward's bytes have been measured
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_RANK_ACTIVATIONS_H_
