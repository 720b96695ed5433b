// Draws a training's loss: one value a step, its average over some steps, and the validations in between.
//
// The vertical axis is logarithmic where the loss falls by a factor of ten or more, else linear. Values that
// are not finite are left out. Pure; the output depends on the arguments only.
#ifndef WEFT_SCHEDULES_DRAWING_DRAWING_LOSS_H_
#define WEFT_SCHEDULES_DRAWING_DRAWING_LOSS_H_

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace weft {

struct LossPoint {
  int step = 0;
  double loss = 0;
};

struct LossCurve {
  std::string title, subtitle;
  std::vector<LossPoint> training, validation;  // each by step, ascending
};

std::string DrawLoss(const LossCurve& curve);

// Returns each point as the mean of those around it, `window` in all where there are so many; the first and
// the last have fewer. Requires an odd window.
std::vector<LossPoint> SmoothLoss(absl::Span<const LossPoint> points, int window);

}  // namespace weft

#endif  // WEFT_SCHEDULES_DRAWING_DRAWING_LOSS_H_
