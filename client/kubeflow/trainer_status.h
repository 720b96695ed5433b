// Says how far a training is, in the form in which Kubeflow's Trainer takes it for the status of a TrainJob.
//
// The form is that of Kubeflow's proposal 2779 (TrainJob progress, Trainer 2.2). Pure.
#ifndef WEFT_CLIENT_KUBEFLOW_TRAINER_STATUS_H_
#define WEFT_CLIENT_KUBEFLOW_TRAINER_STATUS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "client/console/progress_state.h"

namespace weft {

// Returns the body of a request: the share of the steps that are done, the seconds that the rest takes at
// this speed, where that is known, and the metrics: step, steps, loss, validation_loss, and validation_NAME
// of an exported model's own. `steps_per_second`: 0 where it is not known. `time`: "2026-01-23T10:30:45Z".
std::string TrainerStatus(const ProgressState& state, double steps_per_second, absl::string_view time);

}  // namespace weft

#endif  // WEFT_CLIENT_KUBEFLOW_TRAINER_STATUS_H_
