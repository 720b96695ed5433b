// Names the checkpoint of a submitted run that goes on from `checkpoint` of its own output folder. The run's
// last checkpoint takes that name. Until it has ended it may begin again from the one that was there, so that
// one is called `checkpoint-STEP` from the claim of the folder on. Pure but for symbolic links, which are
// resolved; the same submission gets the same name again, whatever has become of the folder.
#ifndef WEFT_COORDINATOR_RECORD_KEPT_CHECKPOINT_H_
#define WEFT_COORDINATOR_RECORD_KEPT_CHECKPOINT_H_

#include <string>

#include "coordinator/core/planned_spec.h"

namespace weft {

// Returns `submitted` with the new name of the checkpoint where the run, which writes into `output`, goes on
// from `checkpoint` there; else as it is.
PlannedSpec WithKeptCheckpoint(const std::string& output, PlannedSpec submitted);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_KEPT_CHECKPOINT_H_
