// Watches the losses and norms of a training's steps for values that are infinite or not a number, where the
// run goes on with such (train.non_finite): notes skipped steps, and words the messages to the person. One
// thread.
#ifndef WEFT_COORDINATOR_RECORD_LOSS_WATCH_H_
#define WEFT_COORDINATOR_RECORD_LOSS_WATCH_H_

#include <string>

#include "coordinator/record/run_recorder.h"
#include "run/run_spec.h"

namespace weft {

class LossWatch {
 public:
  explicit LossWatch(NonFinite non_finite) : non_finite_(non_finite) {}

  // Marks a step that was skipped. Returns a sentence for the first step that is not finite, else nothing.
  std::string Look(StepRecord* step);

  int skipped_steps() const { return skipped_steps_; }
  // Returns a warning for the end of a training that ended well; empty where the last loss is finite.
  std::string Warning() const;

 private:
  const NonFinite non_finite_;
  int skipped_steps_ = 0;
  bool reported_ = false;
  double last_loss_ = 0;
};

// Returns "2.3026", "nan", "inf".
std::string LossText(double loss);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_LOSS_WATCH_H_
