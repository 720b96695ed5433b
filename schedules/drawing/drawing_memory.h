// Draws the activations that are alive over all ranks against time: several schedules, or runs, in one SVG,
// so that their peaks can be compared.
//
// The vertical axis shows bytes, or numbers of activations where no curve has bytes. Every curve begins at
// its own first job; the legend gives its peak, how far that is below the first curve's, and its mean. Pure;
// the output depends on the arguments only.
#ifndef WEFT_SCHEDULES_DRAWING_DRAWING_MEMORY_H_
#define WEFT_SCHEDULES_DRAWING_DRAWING_MEMORY_H_

#include <string>

#include "absl/types/span.h"
#include "schedules/drawing/drawing.h"
#include "schedules/drawing/live_activations.h"

namespace weft {

struct LiveCurve {
  std::string name;  // "ddp,rule=cdp_v2, measured"
  LiveActivations live;
};

struct LiveDrawingOptions {
  std::string title, subtitle;
  DrawnTime time = DrawnTime::kUnits;
};

std::string DrawLiveActivations(absl::Span<const LiveCurve> curves, const LiveDrawingOptions& options);

}  // namespace weft

#endif  // WEFT_SCHEDULES_DRAWING_DRAWING_MEMORY_H_
