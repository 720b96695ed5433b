#include "schedules/drawing/drawing_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/drawing/svg_text.h"

namespace weft {
namespace {

constexpr double kLogFrom = 10;     // the quotient of the largest and the smallest loss
constexpr size_t kSmoothFrom = 50;  // fewer points are drawn as they are
constexpr char kEach[] = "#8fb8d8", kMean[] = "#1d4f69", kValidated[] = "#c76b4f";

std::vector<LossPoint> Finite(const std::vector<LossPoint>& points) {
  std::vector<LossPoint> finite;
  for (const LossPoint& p : points) {
    if (std::isfinite(p.loss)) finite.push_back(p);
  }
  return finite;
}

class LossPicture {
 public:
  explicit LossPicture(const LossCurve& curve)
      : curve_(curve), training_(Finite(curve.training)), validation_(Finite(curve.validation)) {
    if (training_.size() >= kSmoothFrom) {
      // The window is an odd number, about a fortieth of the steps.
      window_ = std::max(5, static_cast<int>(training_.size() / 40) | 1);
      smooth_ = SmoothLoss(training_, window_);
    }
    bool any = false;
    for (const auto* points : {&training_, &validation_}) {
      for (const LossPoint& p : *points) {
        first_ = any ? std::min(first_, p.step) : p.step;
        last_ = any ? std::max(last_, p.step) : p.step;
        least_ = any ? std::min(least_, p.loss) : p.loss;
        most_ = any ? std::max(most_, p.loss) : p.loss;
        any = true;
      }
    }
    if (last_ == first_) last_ = first_ + 1;
    log_ = least_ > 0 && most_ / least_ >= kLogFrom;
    const double low = Scaled(least_), high = Scaled(most_), room = 0.04 * (high - low);
    low_ = high > low ? low - room : low - 1;
    high_ = high > low ? high + room : high + 1;
    if (!log_ && least_ >= 0) low_ = std::max(low_, 0.0);
  }

  std::string Draw() const {
    const double width = kLeft + kWidth + kRight, height = kTop + kHeight + kAxis + kLegend;
    std::string out = OpenSvg(width, height, curve_.title, "");
    absl::StrAppend(&out, SvgHeading(kLeft, curve_.title, curve_.subtitle), VerticalAxis(), StepAxis());
    absl::StrAppend(&out, Line(training_, smooth_.empty() ? kMean : kEach, smooth_.empty() ? 1.8 : 1));
    if (!smooth_.empty()) absl::StrAppend(&out, Line(smooth_, kMean, 2.2));
    absl::StrAppend(&out, Line(validation_, kValidated, 1.6), Dots(), Legend());
    return out + "</svg>\n";
  }

 private:
  // All lengths are in pixels of the picture's own coordinates.
  static constexpr double kLeft = 84, kRight = 36, kTop = 66, kWidth = 880, kHeight = 360;
  static constexpr double kAxis = 52;    // steps
  static constexpr double kLegend = 30;  // below it
  static constexpr double kPixel = 0.5;

  double Scaled(double loss) const { return log_ ? std::log10(loss) : loss; }
  double X(int step) const { return kLeft + static_cast<double>(step - first_) / (last_ - first_) * kWidth; }
  double Y(double loss) const { return kTop + kHeight * (1 - (Scaled(loss) - low_) / (high_ - low_)); }

  // Returns the losses at which the vertical axis has lines: round ones.
  std::vector<double> Levels() const {
    std::vector<double> levels;
    if (!log_) {
      const double distance = TickDistance(high_ - low_);
      for (double i = std::ceil(low_ / distance); i * distance <= high_; ++i) levels.push_back(i * distance);
      return levels;
    }
    // The levels are 1, 2 and 5 times each power of ten; the powers alone where these would be too many.
    for (int power = static_cast<int>(std::floor(low_)); power <= static_cast<int>(high_) + 1; ++power) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double level = factor * std::pow(10, power);
        const bool wanted = factor == 1 || high_ - low_ < 4;
        if (wanted && std::log10(level) >= low_ && std::log10(level) <= high_) levels.push_back(level);
      }
    }
    return levels;
  }

  std::string VerticalAxis() const {
    std::string out = "<g font-size=\"13\" fill=\"#555\" text-anchor=\"end\">\n";
    for (const double level : Levels()) {
      absl::StrAppend(&out, SvgLevel(kLeft, Y(level), kWidth, absl::StrFormat("%.6g", level)));
    }
    return absl::StrCat(out, "</g>\n",
                        SvgVerticalTitle(22, kTop + kHeight / 2, log_ ? "loss (logarithmic)" : "loss"));
  }

  std::string StepAxis() const {
    const double y = kTop + kHeight;
    std::string out =
        absl::StrCat("<path d=\"M", SvgLength(kLeft), " ", SvgLength(y), "h", SvgLength(kWidth),
                     "\" stroke=\"#999\"/>\n<g font-size=\"13\" fill=\"#555\" text-anchor=\"middle\">\n");
    const double distance = std::max(1.0, TickDistance(last_ - first_));
    for (double i = std::ceil(first_ / distance); i * distance <= last_; ++i) {
      const int step = static_cast<int>(std::lround(i * distance));
      absl::StrAppend(&out, "<path d=\"M", SvgLength(X(step)), " ", SvgLength(y),
                      "v5\" stroke=\"#999\"/><text x=\"", SvgLength(X(step)), "\" y=\"", SvgLength(y + 20),
                      "\">", step, "</text>\n");
    }
    return absl::StrCat(out, "<text x=\"", SvgLength(kLeft + kWidth / 2), "\" y=\"", SvgLength(y + 40),
                        "\">step</text>\n</g>\n");
  }

  // Draws a line. The lowest and the highest point stand for many points of one pixel.
  std::string Line(const std::vector<LossPoint>& points, const char* colour, double width) const {
    if (points.size() < 2) return "";
    std::string path;
    const auto add = [&](double x, double y) {
      absl::StrAppend(&path, path.empty() ? "M" : "L", SvgLength(x), " ", SvgLength(y));
    };
    for (size_t next = 0; next < points.size();) {
      const double x = X(points[next].step);
      const double first = points[next].loss;
      double low = first, high = first, last = first;
      for (; next < points.size() && X(points[next].step) < x + kPixel; ++next) {
        last = points[next].loss;
        low = std::min(low, last);
        high = std::max(high, last);
      }
      add(x, Y(first));
      if (high > std::max(first, last)) add(x, Y(high));
      if (low < std::min(first, last)) add(x, Y(low));
      if (last != first) add(x, Y(last));
    }
    return absl::StrCat("<path d=\"", path, "\" fill=\"none\" stroke=\"", colour, "\" stroke-width=\"",
                        SvgLength(width), "\" stroke-linejoin=\"round\"/>\n");
  }

  // Draws dots. Validations are few; so is a training of a step or two, which has no line.
  std::string Dots() const {
    std::string out;
    const auto dot = [&](const LossPoint& p, const char* colour, const char* what) {
      absl::StrAppend(&out, "<circle cx=\"", SvgLength(X(p.step)), "\" cy=\"", SvgLength(Y(p.loss)),
                      "\" r=\"3.5\" fill=\"", colour, "\"><title>", what, " at step ", p.step,
                      absl::StrFormat(": %.6g", p.loss), "</title></circle>\n");
    };
    if (validation_.size() <= 400) {
      for (const LossPoint& p : validation_) dot(p, kValidated, "validation");
    }
    if (training_.size() == 1) dot(training_[0], kMean, "loss");
    return out;
  }

  std::string Legend() const {
    std::string out;
    double x = kLeft;
    const double y = kTop + kHeight + kAxis + 12;
    const auto entry = [&](const char* colour, const std::string& text) {
      absl::StrAppend(&out, "<rect x=\"", SvgLength(x), "\" y=\"", SvgLength(y - 3),
                      "\" width=\"18\" height=\"3\" fill=\"", colour, "\"/><text x=\"", SvgLength(x + 25),
                      "\" y=\"", SvgLength(y + 3), "\" font-size=\"13\">", text, "</text>\n");
      x += 55 + 7.4 * static_cast<double>(text.size());
    };
    if (smooth_.empty()) {
      if (!training_.empty()) entry(kMean, "each step");
    } else {
      entry(kEach, "each step");
      entry(kMean, absl::StrCat("mean of ", window_, " steps"));
    }
    if (!validation_.empty()) {
      entry(kValidated, absl::StrFormat("validation, %.4g at the end", validation_.back().loss));
    }
    return out;
  }

  const LossCurve& curve_;
  const std::vector<LossPoint> training_, validation_;
  std::vector<LossPoint> smooth_;
  int window_ = 1;
  int first_ = 0, last_ = 1;
  double least_ = 0, most_ = 1;
  bool log_ = false;
  double low_ = 0, high_ = 1;  // range of the vertical axis, scaled
};

}  // namespace

std::vector<LossPoint> SmoothLoss(absl::Span<const LossPoint> points, int window) {
  const auto count = static_cast<int>(points.size());
  std::vector<double> sums = {0};
  for (const LossPoint& p : points) sums.push_back(sums.back() + p.loss);
  std::vector<LossPoint> smooth;
  for (int i = 0; i < count; ++i) {
    // The mean takes as many points before as after, so that the ends do not lag.
    const int reach = std::min({window / 2, i, count - 1 - i});
    smooth.push_back({points[i].step, (sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1)});
  }
  return smooth;
}

std::string DrawLoss(const LossCurve& curve) { return LossPicture(curve).Draw(); }

}  // namespace weft
