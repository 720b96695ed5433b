#include "schedules/drawing/drawing_bytes.h"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "schedules/byte_text.h"
#include "schedules/drawing/svg_text.h"

namespace weft {
namespace {

constexpr std::array<const char*, 6> kLayers = {"#5f93bd", "#d08a17", "#4c8a35",
                                                "#7d5ba6", "#c76b4f", "#7a7364"};

class BytesPicture {
 public:
  BytesPicture(absl::Span<const LiveBytes> points, const BytesDrawingOptions& options)
      : points_(points), options_(options) {
    std::set<std::string> names;
    for (const LiveBytes& p : points) {
      double sum = 0;
      for (const auto& [name, bytes] : p.bytes) {
        if (bytes > 0) names.insert(name);
        sum += bytes;
      }
      most_ = std::max(most_, sum);
    }
    // Classes with constant bytes lie below those that change.
    for (const char* lasting : {"weights", "optimizer", "gradients"}) {
      if (names.erase(lasting) > 0) names_.push_back(lasting);
    }
    names_.insert(names_.end(), names.begin(), names.end());
    if (!points.empty()) first_ = points.front().seconds;
    if (points.size() > 1) span_ = std::max(1e-9, points.back().seconds - first_);
    if (most_ <= 0) most_ = 1;
  }

  std::string Draw() const {
    const double width = kLeft + kWidth + kRight, height = kTop + kHeight + kAxis + kLegend;
    std::string out = OpenSvg(width, height, options_.title, "");
    absl::StrAppend(&out, SvgHeading(kLeft, options_.title, options_.subtitle), VerticalAxis());
    for (size_t layer = 0; layer < names_.size(); ++layer) absl::StrAppend(&out, Layer(layer));
    absl::StrAppend(&out, SvgTimeAxis(kLeft, kTop + kHeight, kWidth, span_, DrawnTime::kSeconds), Legend());
    return out + "</svg>\n";
  }

 private:
  // All lengths are in pixels of the picture's own coordinates.
  static constexpr double kLeft = 96, kRight = 84, kTop = 66, kWidth = 820, kHeight = 240;
  static constexpr double kAxis = 48;    // time
  static constexpr double kLegend = 30;  // below it

  double X(double seconds) const { return kLeft + (seconds - first_) / span_ * kWidth; }
  double Y(double bytes) const { return kTop + kHeight * (1 - bytes / most_); }

  // Draws lines at values that are round in the unit in which they are shown.
  std::string VerticalAxis() const {
    double unit = 1;
    while (most_ / unit >= 4096) unit *= 1024;
    const double distance = TickDistance(most_ / unit) * unit;
    std::string out = "<g font-size=\"13\" fill=\"#555\" text-anchor=\"end\">\n";
    for (int i = 0; i * distance <= most_ * (1 + 1e-9); ++i) {
      absl::StrAppend(&out, SvgLevel(kLeft, Y(i * distance), kWidth, FormatBytes(i * distance)));
    }
    return absl::StrCat(out, "</g>\n", SvgVerticalTitle(20, kTop + kHeight / 2, "bytes alive"));
  }

  // Returns the bytes of the first `layers` classes.
  double Below(const LiveBytes& point, size_t layers) const {
    double sum = 0;
    for (size_t i = 0; i < layers; ++i) {
      const auto found = point.bytes.find(names_[i]);
      if (found != point.bytes.end()) sum += found->second;
    }
    return sum;
  }

  // Draws the area between the sum of the classes before, and that sum with this one.
  std::string Layer(size_t layer) const {
    std::string path;
    const auto add = [&](const LiveBytes& point, size_t layers) {
      absl::StrAppend(&path, path.empty() ? "M" : "L", SvgLength(X(point.seconds)), " ",
                      SvgLength(Y(Below(point, layers))));
    };
    for (const LiveBytes& point : points_) add(point, layer + 1);
    for (auto point = points_.rbegin(); point != points_.rend(); ++point) add(*point, layer);
    return absl::StrCat("<path d=\"", path, "Z\" fill=\"", Colour(layer), "\" fill-opacity=\".85\"/>\n");
  }

  std::string Legend() const {
    std::string out;
    double x = kLeft;
    const double y = kTop + kHeight + kAxis + 10;
    for (size_t layer = 0; layer < names_.size(); ++layer) {
      const auto found = points_.back().bytes.find(names_[layer]);
      const std::string text = absl::StrCat(
          names_[layer], " ", FormatBytes(found == points_.back().bytes.end() ? 0 : found->second));
      absl::StrAppend(&out, "<rect x=\"", SvgLength(x), "\" y=\"", SvgLength(y - 8),
                      "\" width=\"14\" height=\"12\" fill=\"", Colour(layer), "\"/><text x=\"",
                      SvgLength(x + 20), "\" y=\"", SvgLength(y + 3), "\" font-size=\"13\">", EscapeXml(text),
                      "</text>\n");
      x += 34 + 6.6 * static_cast<double>(text.size());
    }
    return out;
  }

  static const char* Colour(size_t layer) { return kLayers[layer % kLayers.size()]; }

  const absl::Span<const LiveBytes> points_;
  const BytesDrawingOptions& options_;
  std::vector<std::string> names_;  // of classes, from the lowest layer to the highest
  double most_ = 0, first_ = 0, span_ = 1;
};

}  // namespace

std::string DrawLiveBytes(absl::Span<const LiveBytes> points, const BytesDrawingOptions& options) {
  return BytesPicture(points, options).Draw();
}

}  // namespace weft
