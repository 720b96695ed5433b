// The order of collectives: which reduce jobs are sums of all members' devices, and which comes before which.
//
// A collective ends when all its members have started it. A device does its collectives one after the other,
// in the order in which they were started there; so two devices that start two of them in different orders
// wait for each other for ever. There is one order for all ranks: by step, and within a step from the last
// stage to the first, as the backwards end. Each rank starts those that it is a member of in that order, each
// when the backwards of the stage that the rank itself computes in the step have ended; it goes on with other
// jobs meanwhile.
//
// Why nothing waits for ever: take all jobs of all steps in this order: the forwards and backwards of step 0,
// its collectives in their order, its updates, then those of step 1, and so on. A forward or backward waits
// for forwards and backwards of its own or earlier steps, and for updates of earlier ones: its own rank's, or
// those of all members whose slices of the weights it gathers, which are messages. A collective waits
// for backwards of its step and, on the device of each member, for collectives before it; not for a norm
// (where gradients are clipped, the norm is taken after the sum), nor for a rank to be idle longer than its
// present job. An update waits for the collective of its stage and, for a norm, for those of its step. So
// every job waits for jobs before it in that order only, but for forwards and backwards of one step, among
// which the schedule has no circle (check.h); the first job that has not ended can always go on. Admission
// changes nothing: the jobs that free activations wait for no collective of a step that is not over
// elsewhere, as deadlock.h looks at with the edges of graph_collective.cc.
//
// Pure; immutable once the stages have been added, ascending.
#ifndef WEFT_SCHEDULES_COLLECTIVES_H_
#define WEFT_SCHEDULES_COLLECTIVES_H_

#include <map>
#include <optional>
#include <vector>

#include "schedules/job.h"

namespace weft {

class CollectiveOrder {
 public:
  // The stage reduces by collectives of these ranks, ascending.
  void Add(int stage, const std::vector<Rank>& members);

  bool any() const { return !groups_.empty(); }
  bool IsCollective(int stage) const {
    return stage < static_cast<int>(group_of_stage_.size()) && group_of_stage_[stage] >= 0;
  }

  // The sets of ranks that have collectives together, each once, numbered in the order of the first stages.
  const std::vector<std::vector<Rank>>& groups() const { return groups_; }
  int GroupOf(int stage) const { return group_of_stage_[stage]; }

  // The reduce that the same rank starts before this one, or after it; of the step before, or behind, at the
  // ends of a step. None before the first of step 0.
  std::optional<Job> Before(const Job& reduce) const;
  Job After(const Job& reduce) const;

 private:
  struct Place {
    int stage, member;
  };
  const std::vector<Place>& PlacesOf(const Job& reduce) const;
  static int IndexIn(const std::vector<Place>& places, int stage);

  std::vector<std::vector<Rank>> groups_;
  std::vector<int> group_of_stage_;            // -1: none
  std::map<Rank, std::vector<Place>> places_;  // by stage, ascending
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_COLLECTIVES_H_
