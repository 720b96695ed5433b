// Makes the texts, lengths and axes of the pictures of drawing.h, drawing_memory.h and drawing_loss.h. Pure.
#ifndef WEFT_SCHEDULES_DRAWING_SVG_TEXT_H_
#define WEFT_SCHEDULES_DRAWING_SVG_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "schedules/drawing/drawing.h"

namespace weft {

// Returns the text as it may stand between tags and in attributes. Leaves out control characters, which XML
// does not allow.
std::string EscapeXml(absl::string_view text);

// Returns a length with as few digits as it needs.
std::string SvgLength(double x);

// Returns the distance between ticks of an axis: 1, 2 or 5 times a power of ten, with 5 to 12 ticks.
double TickDistance(double span);

// Returns the opening tag of a picture of that size, its title for readers, and a white ground.
std::string OpenSvg(double width, double height, absl::string_view title, absl::string_view style);
// Returns title and subtitle above the picture, from `x` on.
std::string SvgHeading(double x, absl::string_view title, absl::string_view subtitle);

// Returns the title of a vertical axis, read upwards, with its middle at `x`, `y`.
std::string SvgVerticalTitle(double x, double y, absl::string_view title);

// Returns a line of a vertical axis from `x` on, `plot` wide, with its label before it. For a group whose
// texts end where they are put (text-anchor).
std::string SvgLevel(double x, double y, double plot, absl::string_view label);

// Returns a time axis from `x` on, `plot` wide, for `span` units of time. Seconds are shown in the largest
// unit in which the axis has whole numbers.
std::string SvgTimeAxis(double x, double y, double plot, double span, DrawnTime time);

}  // namespace weft

#endif  // WEFT_SCHEDULES_DRAWING_SVG_TEXT_H_
