// Runs `weft train --reference`: the plain loop of `weft-worker --reference`, with the same files and summary
// as a training through the runtime.
#ifndef WEFT_CLIENT_TRAINING_REFERENCE_TRAINING_H_
#define WEFT_CLIENT_TRAINING_REFERENCE_TRAINING_H_

#include "client/console/console.h"
#include "client/training/local_training.h"

namespace weft {

// Trains. Ignores `processes` and `metrics` of the options.
ExitCode TrainReference(const LocalTrainingOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_TRAINING_REFERENCE_TRAINING_H_
