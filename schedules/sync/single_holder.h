// Declares the protocol of a stage that one rank holds. The files of the other protocols share it.
#ifndef WEFT_SCHEDULES_SYNC_SINGLE_HOLDER_H_
#define WEFT_SCHEDULES_SYNC_SINGLE_HOLDER_H_

#include "schedules/sync/protocol.h"

namespace weft {

// The protocol of a stage that one rank holds, under every choice but those of slices and states.
class SingleHolder : public Protocol {
 public:
  // Requires that Schedule::weights names one rank for all jobs of the stage.
  SingleHolder(const Schedule& schedule, int stage);
  void AddPredecessors(const Graph& graph, const Job& job, Edges* edges) const override;
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SYNC_SINGLE_HOLDER_H_
