// Gives a scheme further stages in front that take no rank of their own: each job of such a stage runs on the
// rank of the scheme's first stage for the same micro-batch, a forward right before that stage's and a
// backward right behind it.
//
// A tied parameter is a stage by itself, because a stage hands on one tensor, and copies a tensor at most. A
// family that gave it a rank would leave that rank idle. So the family lays out the other stages, and the
// stages of tied parameters are added here. What the family says of its stage s then holds of stage s +
// count. Where states migrate, that of a leading stage comes to each rank together with the first stage's.
// Pure.
#ifndef WEFT_SCHEDULES_FAMILIES_LEADING_STAGES_H_
#define WEFT_SCHEDULES_FAMILIES_LEADING_STAGES_H_

#include "schedules/schedule.h"
#include "schedules/simulator/simulate.h"

namespace weft {

// Adds `count` stages.
void AddLeadingStages(int count, Schedule* schedule);

// Returns the costs of `stages` stages with the first `count` joined to the one behind them: what the scheme
// without leading stages takes.
SimulationOptions JoinLeadingStages(int count, int stages, const SimulationOptions& costs);

}  // namespace weft

#endif  // WEFT_SCHEDULES_FAMILIES_LEADING_STAGES_H_
