// Reads the learning-rate schedule of a run (`train.lr_schedule`) from a run file, and evaluates it.
//
// The rate is a pure function of the step's number. The update of step t makes version t + 1 of the weights
// and uses LearningRateAt(train, t), whatever versions its gradients were made with, and whichever rank or
// process makes it. So the rate needs no state, also not in a checkpoint. It is evaluated in double
// precision. Pure.
#ifndef WEFT_RUN_LEARNING_RATE_H_
#define WEFT_RUN_LEARNING_RATE_H_

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"
#include "run/run_spec.h"

namespace weft {

class FileSection;

// Returns the learning rate. With w steps of warm-up, T steps in all and the optimizer's `lr` as the peak:
//
// t < w      lr * (t + 1) / w
// else       constant  lr
// linear    min_lr + (lr - min_lr) * (1 - p)                   p = (t - w) / (T - w)
// cosine    min_lr + (lr - min_lr) * (1 + cos(pi * p)) / 2
// step      lr * gamma ^ floor((t - w) / step_size)
//
// A warm-up may be longer than the run, for instance when only the first steps of a long run are tried.
// Requires 0 <= step < train.steps.
double LearningRateAt(const TrainSpec& train, int step);

// Reads `lr_schedule` of the section `train`. The steps and the optimizer must already be in `spec`. The
// first error stays in `status`.
LearningRateSchedule ReadLearningRateSchedule(FileSection& train, const TrainSpec& spec,
                                              absl::Status& status);
nlohmann::json ToJson(const LearningRateSchedule& schedule);

}  // namespace weft

#endif  // WEFT_RUN_LEARNING_RATE_H_
