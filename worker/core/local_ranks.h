// Holds the ranks of one process during a run, and knows which of them to look at again.
//
// Every change that may affect a rank's next start, or the cause of its idleness, touches the rank. The owner
// looks at touched ranks only, so that a job costs the same however many ranks the process has.
//
// Invariants: ranks keep their place, the one of their lease in the assignment; a rank is in the list of
// touched ones once. Refers to the run. Not movable; pure; one thread.
#ifndef WEFT_WORKER_CORE_LOCAL_RANKS_H_
#define WEFT_WORKER_CORE_LOCAL_RANKS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "schedules/dispatch/admission.h"
#include "worker/core/local_rank.h"
#include "worker/core/local_run.h"
#include "worker/core/run_preparation.h"

namespace weft {

class LocalRanks {
 public:
  LocalRanks(int64_t now, const LocalRun& run, const AdmissionOrder& admission,
             const ComputedStages& computed);
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  // Returns the ranks, by place.
  const std::vector<std::unique_ptr<LocalRank>>& all() const { return ranks_; }
  // Require a rank of this process.
  LocalRank& Of(Rank rank) { return *ranks_[run_.PlaceOf(rank)]; }
  const LocalRank& Of(Rank rank) const { return *ranks_[run_.PlaceOf(rank)]; }
  // Returns the numbers of the ranks, by place.
  std::vector<Rank> Numbers() const;

  // Notes that the rank, or any, is to be looked at.
  void Touch(LocalRank& rank) {
    if (!std::exchange(rank.touched, true)) touched_.push_back(run_.PlaceOf(rank.rank));
  }
  void TouchAll() {
    for (const auto& rank : ranks_) Touch(*rank);
  }
  // Calls `look(rank)` for each touched rank, by place. The call may touch no further rank.
  template <typename Look>
  void ForTouched(Look look) {
    std::sort(touched_.begin(), touched_.end());
    for (const int place : touched_) look(*ranks_[place]);
  }
  // Closes the interval of each touched rank whose `cause(rank)` of idleness is another now; then none is
  // touched.
  template <typename Cause>
  void UpdateIdle(int64_t now, Cause cause) {
    for (const int place : touched_) {
      LocalRank& rank = *ranks_[place];
      const IdleCause of_rank = cause(rank);
      if (of_rank != rank.clock.cause()) rank.clock.Idle(now, of_rank);
      rank.touched = false;
    }
    touched_.clear();
  }
  // Returns the rank's clock, with the present interval of idleness counted up to now.
  const RankClock& ClockAt(int64_t now, Rank rank);

 private:
  const LocalRun& run_;
  std::vector<std::unique_ptr<LocalRank>> ranks_;
  std::vector<int> touched_;  // places
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_LOCAL_RANKS_H_
