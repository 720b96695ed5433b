// Draws the bytes that a run has alive over time, by class, one upon the other, as an SVG.
//
// Pure; the output depends on the arguments only.
#ifndef WEFT_SCHEDULES_DRAWING_DRAWING_BYTES_H_
#define WEFT_SCHEDULES_DRAWING_DRAWING_BYTES_H_

#include <map>
#include <string>

#include "absl/types/span.h"

namespace weft {

// The bytes that were alive at a time, by class: "weights", "activations", ..
struct LiveBytes {
  double seconds = 0;
  std::map<std::string, double> bytes;
};

struct BytesDrawingOptions {
  std::string title, subtitle;
};

// `points` are by time, ascending. A class that is missing at a point has no bytes there.
std::string DrawLiveBytes(absl::Span<const LiveBytes> points, const BytesDrawingOptions& options);

}  // namespace weft

#endif  // WEFT_SCHEDULES_DRAWING_DRAWING_BYTES_H_
