// How the learning rate goes over the steps of a run (`train.lr_schedule`), read from a run file and
// evaluated.
//
// The rate is a pure function of the step's number: the update of step t, which makes version t + 1 of the
// weights, uses LearningRateAt(train, t), whatever versions its gradients were made with, and whichever rank
// or process makes it. So it needs no state, in a checkpoint neither. Evaluated in double precision. Pure.
#ifndef WEFT_PROTO_RUN_LEARNING_RATE_H_
#define WEFT_PROTO_RUN_LEARNING_RATE_H_

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"
#include "proto/run/run_spec.h"

namespace weft {

class FileSection;

// With w steps of warm-up, T steps in all and the optimizer's `lr` as the peak:
//
//   t < w      lr * (t + 1) / w
//   else       constant  lr
//              linear    min_lr + (lr - min_lr) * (1 - p)                   p = (t - w) / (T - w)
//              cosine    min_lr + (lr - min_lr) * (1 + cos(pi * p)) / 2
//              step      lr * gamma ^ floor((t - w) / step_size)
//
// A warm-up may be longer than the run, as it is where the first steps of a long one are tried. Requires
// 0 <= step < train.steps.
double LearningRateAt(const TrainSpec& train, int step);

// `lr_schedule` of the section `train`, whose steps and optimizer have been read into `spec`. The first error
// stays in `status`.
LearningRateSchedule ReadLearningRateSchedule(FileSection& train, const TrainSpec& spec,
                                              absl::Status& status);
nlohmann::json ToJson(const LearningRateSchedule& schedule);

}  // namespace weft

#endif  // WEFT_PROTO_RUN_LEARNING_RATE_H_
