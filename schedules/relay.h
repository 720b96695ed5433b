// The order in which the holders of one stage pass a new version of its weights on, where they relay it
// (Schedule::relays).
//
// The home, which makes the version, is first; the others follow in the order in which their micro-batches
// first read it, so that no version waits for one that is needed later. Holders that read none of a version
// come last. The order may change from step to step, as the placement does. Pure.
#ifndef WEFT_SCHEDULES_RELAY_H_
#define WEFT_SCHEDULES_RELAY_H_

#include <vector>

#include "schedules/schedule.h"

namespace weft {

class Relay {
 public:
  // `members`: the stage's holders, ascending. `last_backward`: the kind that completes a gradient.
  Relay(const Schedule& schedule, int stage, const std::vector<Rank>& members, JobKind last_backward);

  // The member that computes the last micro-batch of step 0.
  int home() const { return home_; }

  // From whom the member has the version that the step makes, and to whom it gives it; -1 for nobody.
  int Before(int step, int member) const { return At(step).before[member]; }
  int After(int step, int member) const { return At(step).after[member]; }

 private:
  struct Round {
    std::vector<int> before, after;  // by member
  };
  const Round& At(int step) const { return rounds_[static_cast<size_t>(step) % rounds_.size()]; }

  int home_ = 0;
  std::vector<Round> rounds_;  // [step mod period]
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_RELAY_H_
