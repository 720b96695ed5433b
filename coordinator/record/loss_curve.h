// Reads the loss of a training from its steps.jsonl, for the picture loss.svg.
#ifndef WEFT_COORDINATOR_RECORD_LOSS_CURVE_H_
#define WEFT_COORDINATOR_RECORD_LOSS_CURVE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "schedules/drawing/drawing_loss.h"

namespace weft {

// Returns the losses of the lines, and of the validations between them; each step once, from the last line
// about it. Other lines are ignored, so that a log can be read while it is written.
LossCurve ParseLossCurve(absl::string_view lines);

// Draws `folder`/steps.jsonl as `folder`/loss.svg, under that title. Unavailable with the file's name.
absl::Status WriteLossPicture(const std::string& folder, const std::string& title);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_LOSS_CURVE_H_
