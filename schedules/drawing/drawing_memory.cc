#include "schedules/drawing/drawing_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/drawing/svg_text.h"

namespace weft {
namespace {

// The colours differ in lightness too.
constexpr std::array<const char*, 6> kColours = {"#8fb8d8", "#1d4f69", "#c76b4f",
                                                 "#7d9b68", "#b58a1f", "#6a4c7d"};

class LivePicture {
 public:
  LivePicture(absl::Span<const LiveCurve> curves, const LiveDrawingOptions& options)
      : curves_(curves), options_(options) {
    for (const LiveCurve& curve : curves_) bytes_ |= curve.live.peak_bytes > 0;
    for (const LiveCurve& curve : curves_) {
      most_ = std::max(most_, Peak(curve));
      if (!curve.live.points.empty()) {
        span_ = std::max(span_, curve.live.points.back().time - curve.live.points.front().time);
      }
    }
    if (span_ <= 0) span_ = 1;
    if (most_ <= 0) most_ = 1;
  }

  std::string Draw() const {
    const double height = kTop + kHeight + kAxis + kEntry * static_cast<double>(curves_.size()) + 14;
    std::string out = OpenSvg(kLeft + kWidth + kRight, height, options_.title, "");
    absl::StrAppend(&out, SvgHeading(kLeft, options_.title, options_.subtitle), VerticalAxis());
    for (size_t i = 0; i < curves_.size(); ++i) absl::StrAppend(&out, Curve(i));
    absl::StrAppend(&out, SvgTimeAxis(kLeft, kTop + kHeight, kWidth, span_, options_.time));
    for (size_t i = 0; i < curves_.size(); ++i) absl::StrAppend(&out, Entry(i));
    return out + "</svg>\n";
  }

 private:
  // All lengths are in pixels of the picture's own coordinates.
  static constexpr double kLeft = 100;  // what the vertical axis says
  static constexpr double kRight = 90;  // the unit of time
  static constexpr double kTop = 66;    // title, subtitle
  static constexpr double kWidth = 1060, kHeight = 340;
  static constexpr double kAxis = 48;   // the time axis
  static constexpr double kEntry = 20;  // a line of the legend

  double Peak(const LiveCurve& curve) const {
    return bytes_ ? curve.live.peak_bytes : curve.live.peak_activations;
  }
  double Mean(const LiveCurve& curve) const {
    return bytes_ ? curve.live.mean_bytes : curve.live.mean_activations;
  }
  double Y(double value) const { return kTop + kHeight * (1 - value / most_); }
  std::string Shown(double value) const {
    return bytes_ ? FormatBytes(value) : absl::StrFormat("%.4g", value);
  }

  // Draws lines at round values; of bytes, round in the unit in which they are shown.
  std::string VerticalAxis() const {
    double unit = 1;
    while (bytes_ && most_ / unit >= 1024) unit *= 1024;
    const double distance = std::max(TickDistance(most_ / unit) * unit, bytes_ ? 0.0 : 1.0);
    std::string out = "<g font-size=\"11\" fill=\"#666\" text-anchor=\"end\">\n";
    for (int i = 0; i * distance <= most_ * (1 + 1e-9); ++i) {
      const std::string y = SvgLength(Y(i * distance));
      absl::StrAppend(&out, "<path d=\"M", SvgLength(kLeft), " ", y, "h", SvgLength(kWidth),
                      "\" stroke=\"#e6e3dc\"/><text x=\"", SvgLength(kLeft - 8), "\" y=\"",
                      SvgLength(Y(i * distance) + 4), "\">", Shown(i * distance), "</text>\n");
    }
    return absl::StrCat(
        out, "</g>\n",
        SvgVerticalTitle(20, kTop + kHeight / 2, bytes_ ? "bytes of activations" : "activations"));
  }

  // Draws a curve as a line of steps: an activation stays alive until the next point. The lowest and the
  // highest point stand for many points of one pixel.
  std::string Curve(size_t i) const {
    const auto& points = curves_[i].live.points;
    if (points.empty()) return "";
    const auto value = [&](const LiveActivations::Point& p) { return bytes_ ? p.bytes : p.activations; };
    std::string path = absl::StrCat("M", SvgLength(kLeft), " ", SvgLength(Y(0)));
    for (size_t next = 0; next < points.size();) {
      const double x = kLeft + (points[next].time - points.front().time) / span_ * kWidth;
      double low = value(points[next]), high = low, last = low;
      const auto here = [&](const LiveActivations::Point& p) {
        return kLeft + (p.time - points.front().time) / span_ * kWidth < x + kPixel;
      };
      for (; next < points.size() && here(points[next]); ++next) {
        last = value(points[next]);
        low = std::min(low, last);
        high = std::max(high, last);
      }
      absl::StrAppend(&path, "H", SvgLength(x));
      if (high != last) absl::StrAppend(&path, "V", SvgLength(Y(high)));
      if (low != last) absl::StrAppend(&path, "V", SvgLength(Y(low)));
      absl::StrAppend(&path, "V", SvgLength(Y(last)));
    }
    // The first curve, with which the others are compared, is filled with a light colour.
    return absl::StrCat("<path d=\"", path, "\" fill=\"", i == 0 ? kColours[0] : "none",
                        "\" fill-opacity=\".25\" stroke=\"", Colour(i),
                        "\" stroke-width=\"1.6\" stroke-linejoin=\"round\"/>\n");
  }

  std::string Entry(size_t i) const {
    const LiveCurve& curve = curves_[i];
    const double y = kTop + kHeight + kAxis + kEntry * static_cast<double>(i);
    std::string text = absl::StrCat(curve.name, ": peak ", Shown(Peak(curve)));
    const double first = Peak(curves_[0]);
    if (i > 0 && first > 0) {
      const double below = 100 * (1 - Peak(curve) / first);
      absl::StrAppend(
          &text, absl::StrFormat(", %.0f %% %s the first", std::abs(below), below >= 0 ? "below" : "above"));
    }
    absl::StrAppend(&text, "; mean ", Shown(Mean(curve)));
    return absl::StrCat("<rect x=\"", SvgLength(kLeft), "\" y=\"", SvgLength(y),
                        "\" width=\"14\" height=\"12\" fill=\"", Colour(i), "\"/><text x=\"",
                        SvgLength(kLeft + 20), "\" y=\"", SvgLength(y + 10), "\" font-size=\"12\">",
                        EscapeXml(text), "</text>\n");
  }

  static const char* Colour(size_t i) { return kColours[i % kColours.size()]; }

  static constexpr double kPixel = 0.5;
  const absl::Span<const LiveCurve> curves_;
  const LiveDrawingOptions& options_;
  bool bytes_ = false;
  double most_ = 0, span_ = 0;
};

}  // namespace

std::string DrawLiveActivations(absl::Span<const LiveCurve> curves, const LiveDrawingOptions& options) {
  return LivePicture(curves, options).Draw();
}

}  // namespace weft
