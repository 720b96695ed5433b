// Names how the gradients of a stage's holders are summed: the choice of a run file (`reduction: ordered`).
#ifndef WEFT_SCHEDULES_SYNC_REDUCTION_MODE_H_
#define WEFT_SCHEDULES_SYNC_REDUCTION_MODE_H_

#include <cstdint>
#include <memory>

namespace weft {

enum class ReductionMode : uint8_t {
  kOrdered,  // by messages, in the order of micro-batches: the same bits everywhere
  kFast,     // by joint operations of the holders' devices where these can serve (joint_order.h)
};

class Sync;
// Returns the choice with which the holders' sums are made in this mode; kOrdered changes nothing.
std::shared_ptr<const Sync> ReducedBy(ReductionMode mode, std::shared_ptr<const Sync> sync);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SYNC_REDUCTION_MODE_H_
