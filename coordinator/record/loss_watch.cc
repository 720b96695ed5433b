#include "coordinator/record/loss_watch.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft {

std::string LossText(double loss) {
  // The text has no sign, which a printed nan may have.
  if (std::isnan(loss)) return "nan";
  return std::abs(loss) < 1e6 ? absl::StrFormat("%.4f", loss) : absl::StrFormat("%.4g", loss);
}

std::string LossWatch::Look(StepRecord* step) {
  if (step->has_loss) last_loss_ = step->loss;
  step->skipped = non_finite_ == NonFinite::kSkip && step->gradient_norm.has_value() &&
                  !std::isfinite(*step->gradient_norm);
  skipped_steps_ += step->skipped;
  const bool finite = !step->skipped && std::isfinite(last_loss_);
  if (finite || std::exchange(reported_, true)) return "";
  if (step->skipped) {
    return absl::StrCat("step ", step->step,
                        " is skipped: its gradient is not finite; steps.jsonl and the "
                        "summary tell of every such step");
  }
  return absl::StrCat("step ", step->step, ": the loss is ", LossText(last_loss_),
                      "; the run goes on, as train.non_finite says");
}

std::string LossWatch::Warning() const {
  if (std::isfinite(last_loss_)) return "";
  // A step that was skipped has left the weights as they were.
  const bool used = non_finite_ == NonFinite::kContinue;
  return absl::StrCat("the last loss is ", LossText(last_loss_),
                      used ? ", so the weights in the checkpoint are hardly of use" : "");
}

}  // namespace weft
