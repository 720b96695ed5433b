#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "schedules/drawing.h"
#include "schedules/svg_text.h"

namespace weft {
namespace {

// All lengths are in pixels of the picture's own coordinates.
constexpr double kLeft = 70;    // labels of the ranks
constexpr double kRight = 90;   // how busy each rank was, the unit of time
constexpr double kTop = 62;     // title, subtitle
constexpr double kBottom = 66;  // axis, legend
constexpr double kPlot = 1100;  // the time axis
constexpr double kHair = 0.35;  // narrower boxes of one kind are drawn as one
constexpr int kTints = 6;       // shades that tell the stages of one kind apart

struct Colour {
  double red, green, blue;
};

// From the shade of the first stage to that of the last. Lightness falls from forward to backward without an
// overlap of their ranges, so the kinds can be told apart in grey.
struct Palette {
  Colour first, last;
  const char* text;
};
constexpr std::array<Palette, kJobKinds> kPalette = {{
    {{0xcf, 0xe3, 0xf3}, {0x9f, 0xc8, 0xe6}, "#17374f"},  // forward: light blue
    {{0x3b, 0x7f, 0x9e}, {0x1d, 0x4f, 0x69}, "#ffffff"},  // backward: dark blue
    {{0x3b, 0x7f, 0x9e}, {0x1d, 0x4f, 0x69}, "#ffffff"},  // backward_input: as backward
    {{0x9b, 0xb4, 0x88}, {0x7d, 0x9b, 0x68}, "#1f2d17"},  // backward_weight: middle green
    {{0xe8, 0xb4, 0x4f}, {0xe8, 0xb4, 0x4f}, "#4a3200"},  // reduce: amber
    {{0xc7, 0x6b, 0x4f}, {0xc7, 0x6b, 0x4f}, "#ffffff"},  // update: brick
}};

std::string Hex(const Palette& palette, int tint) {
  const double t = static_cast<double>(tint) / (kTints - 1);
  const auto mix = [t](double a, double b) { return static_cast<int>(std::lround(a + (b - a) * t)); };
  return absl::StrFormat("#%02x%02x%02x", mix(palette.first.red, palette.last.red),
                         mix(palette.first.green, palette.last.green),
                         mix(palette.first.blue, palette.last.blue));
}

class SvgTimeline {
 public:
  SvgTimeline(absl::Span<const DrawnJob> jobs, const DrawingOptions& options)
      : jobs_(jobs.begin(), jobs.end()), options_(options) {
    std::stable_sort(jobs_.begin(), jobs_.end(), [](const DrawnJob& a, const DrawnJob& b) {
      return a.rank != b.rank ? a.rank < b.rank : a.start < b.start;
    });
    if (!jobs_.empty()) {
      begin_ = end_ = jobs_.front().start;
      for (const DrawnJob& j : jobs_) {
        begin_ = std::min(begin_, j.start);
        end_ = std::max(end_, j.end);
        used_[static_cast<int>(j.job.kind)] |= j.end > j.start;
      }
    }
    if (end_ <= begin_) end_ = begin_ + 1;
    row_ = options.ranks <= 12 ? 30 : options.ranks <= 24 ? 22 : options.ranks <= 80 ? 15 : 8;
  }

  std::string Draw() {
    const double height = kTop + row_ * options_.ranks + kBottom;
    const double width = kLeft + kPlot + kRight;
    absl::StrAppend(&out_, OpenSvg(width, height, options_.title, Style()),
                    SvgHeading(kLeft, options_.title, options_.subtitle));
    absl::StrAppend(&out_, "<text x=\"", SvgLength(kLeft + kPlot + 8), "\" y=\"", SvgLength(kTop - 8),
                    "\" font-size=\"11\" fill=\"#666\">busy</text>\n");
    Rows();
    absl::StrAppend(
        &out_, SvgTimeAxis(kLeft, kTop + row_ * options_.ranks + 4, kPlot, end_ - begin_, options_.time));
    Legend();
    absl::StrAppend(&out_, "</svg>\n");
    return std::move(out_);
  }

 private:
  double X(double time) const { return kLeft + (time - begin_) / (end_ - begin_) * kPlot; }
  double Y(Rank rank) const { return kTop + row_ * rank; }
  double BoxHeight() const { return row_ - (row_ >= 12 ? 3 : 1); }
  double FontSize() const { return std::min(11.0, row_ - 5); }

  int Tint(int stage) const {
    if (options_.stages <= 1) return 0;
    return static_cast<int>(std::lround(static_cast<double>(stage) / (options_.stages - 1) * (kTints - 1)));
  }

  // One class for each kind and tint in use; texts have their kind's colour.
  std::string Style() const {
    // The line between boxes must not wash out the colours of narrow ones.
    const double box = kPlot * options_.ranks / static_cast<double>(std::max<size_t>(1, jobs_.size()));
    std::string style =
        absl::StrCat("<style>\n.b rect{stroke:#fff;stroke-width:", box >= 8 ? ".6" : ".15", "}\n");
    for (int k = 0; k < kJobKinds; ++k) {
      if (!used_[k]) continue;
      for (int tint = 0; tint < kTints; ++tint) {
        absl::StrAppend(&style, ".k", k, "t", tint, "{fill:", Hex(kPalette[k], tint), "}");
      }
      absl::StrAppend(&style, "\n.x", k, "{fill:", kPalette[k].text,
                      ";text-anchor:middle;font-size:", SvgLength(FontSize()), "px}\n");
    }
    return style + "</style>\n";
  }

  void Rows() {
    size_t next = 0;
    for (Rank rank = 0; rank < options_.ranks; ++rank) {
      const double middle = Y(rank) + BoxHeight() / 2 + 4;
      // The row's ground is what idle looks like.
      absl::StrAppend(&out_, "<rect x=\"", SvgLength(kLeft), "\" y=\"", SvgLength(Y(rank)), "\" width=\"",
                      SvgLength(kPlot), "\" height=\"", SvgLength(BoxHeight()), "\" fill=\"#f1efea\"/>\n");
      if (row_ >= 12 || rank % 8 == 0) {
        absl::StrAppend(&out_, "<text x=\"", SvgLength(kLeft - 8), "\" y=\"", SvgLength(middle),
                        "\" text-anchor=\"end\" font-size=\"", SvgLength(std::max(9.0, FontSize())),
                        "\">rank ", rank, "</text>\n");
      }
      const size_t first = next;
      while (next < jobs_.size() && jobs_[next].rank == rank) ++next;
      const absl::Span<const DrawnJob> row = absl::MakeConstSpan(jobs_).subspan(first, next - first);
      Boxes(row);
      if (row_ >= 12 || rank % 8 == 0) Busy(row, middle);
    }
  }

  // Where in its row's height a box stands: over all of it, or above or below the other half of its pair.
  enum class Lane { kWhole, kUpper, kLower };

  // Two jobs of a rank that overlap in time are an overlapped pair.
  Lane LaneOf(absl::Span<const DrawnJob> row, size_t i) const {
    const double hair = (end_ - begin_) * 1e-9;
    if (i + 1 < row.size() && row[i + 1].start + hair < std::min(row[i].end, row[i + 1].end))
      return Lane::kUpper;
    for (size_t back = 1; back <= std::min<size_t>(i, 2); ++back) {
      if (row[i].start + hair < std::min(row[i - back].end, row[i].end)) return Lane::kLower;
    }
    return Lane::kWhole;
  }

  void Boxes(absl::Span<const DrawnJob> row) {
    absl::StrAppend(&out_, "<g class=\"b\">\n");
    for (size_t i = 0; i < row.size();) {
      size_t last = i;
      const Lane lane = LaneOf(row, i);
      // Thousands of boxes thinner than a hair become one box a kind, which looks the same.
      while (lane == Lane::kWhole && last + 1 < row.size() &&
             X(row[last + 1].end) - X(row[i].start) < kHair && row[last + 1].job.kind == row[i].job.kind) {
        ++last;
      }
      if (row[last].end > row[i].start) Box(row[i], row[last].end, lane);
      i = last + 1;
    }
    absl::StrAppend(&out_, "</g>\n");
  }

  void Box(const DrawnJob& drawn, double end, Lane lane) {
    const int kind = static_cast<int>(drawn.job.kind);
    const double x = X(drawn.start), width = std::max(X(end) - x, kHair);
    const double height = lane == Lane::kWhole ? BoxHeight() : BoxHeight() / 2;
    const double y = Y(drawn.rank) + (lane == Lane::kLower ? height : 0);
    absl::StrAppend(&out_, "<rect class=\"k", kind, "t", Tint(drawn.job.stage), "\" x=\"", SvgLength(x),
                    "\" y=\"", SvgLength(y), "\" width=\"", SvgLength(width), "\" height=\"",
                    SvgLength(height), "\"><title>", Describe(drawn.job), ", ", Time(drawn.start), " to ",
                    Time(end), "</title></rect>\n");
    const std::string label = Label(drawn.job);
    // A narrow or low box has smaller figures, down to what can still be read.
    const double fits = (width - 2) / (0.62 * static_cast<double>(std::max<size_t>(1, label.size())));
    const double font = std::min({FontSize(), height - 2, fits});
    if (label.empty() || font < 7) return;
    labelled_ = true;
    absl::StrAppend(&out_, "<text class=\"x", kind, "\"",
                    font < FontSize() ? absl::StrCat(" style=\"font-size:", SvgLength(font), "px\"") : "",
                    " x=\"", SvgLength(x + width / 2), "\" y=\"", SvgLength(y + height / 2 + font * 0.36),
                    "\">", label, "</text>\n");
  }

  // The micro-batch; with the stage before it where a rank has several.
  std::string Label(const Job& job) const {
    if (!HasMicrobatch(job.kind)) return "";
    return options_.stages > options_.ranks || StagesMove() ? absl::StrCat(job.stage, ".", job.microbatch)
                                                            : absl::StrCat(job.microbatch);
  }

  // Some rank executes more than one stage.
  bool StagesMove() const {
    if (stages_move_ < 0) {
      stages_move_ = 0;
      for (size_t i = 1; i < jobs_.size(); ++i) {
        if (jobs_[i].rank == jobs_[i - 1].rank && jobs_[i].job.stage != jobs_[i - 1].job.stage)
          stages_move_ = 1;
      }
    }
    return stages_move_ == 1;
  }

  void Busy(absl::Span<const DrawnJob> row, double middle) {
    double busy = 0, until = begin_;
    for (const DrawnJob& j : row) {
      busy += std::max(0.0, j.end - std::max(j.start, until));
      until = std::max(until, j.end);
    }
    absl::StrAppend(&out_, "<text x=\"", SvgLength(kLeft + kPlot + 8), "\" y=\"", SvgLength(middle),
                    "\" font-size=\"", SvgLength(std::max(9.0, FontSize())), "\" fill=\"#666\">",
                    absl::StrFormat("%.0f %%", 100 * busy / (end_ - begin_)), "</text>\n");
  }

  // A time since the beginning of the picture.
  std::string Time(double time) const {
    const double t = time - begin_;
    return options_.time == DrawnTime::kSeconds ? FormatSeconds(t) : absl::StrFormat("%.6g", t);
  }

  void Legend() {
    double x = kLeft;
    const double y = kTop + row_ * options_.ranks + 40;
    const auto entry = [&](const std::string& fill, absl::string_view text) {
      absl::StrAppend(&out_, "<rect x=\"", SvgLength(x), "\" y=\"", SvgLength(y),
                      "\" width=\"14\" height=\"12\" fill=\"", fill, "\"/><text x=\"", SvgLength(x + 20),
                      "\" y=\"", SvgLength(y + 10), "\" font-size=\"11\">", text, "</text>\n");
      x += 20 + 6.4 * static_cast<double>(text.size()) + 22;
    };
    for (int k = 0; k < kJobKinds; ++k) {
      if (used_[k]) entry(Hex(kPalette[k], kTints / 2), JobKindName(static_cast<JobKind>(k)));
    }
    entry("#f1efea", "idle");
    std::vector<std::string> remarks;
    if (labelled_) remarks.push_back(StagesMove() ? "number: stage.micro-batch" : "number: micro-batch");
    if (options_.stages > 1) remarks.push_back("shade: stage, later is darker");
    absl::StrAppend(&out_, "<text x=\"", SvgLength(x), "\" y=\"", SvgLength(y + 10),
                    "\" font-size=\"11\" fill=\"#666\">", absl::StrJoin(remarks, "; "), "</text>\n");
  }

  std::vector<DrawnJob> jobs_;  // by rank, then start
  const DrawingOptions& options_;
  double begin_ = 0, end_ = 0, row_ = 0;
  std::array<bool, kJobKinds> used_{};
  bool labelled_ = false;         // some box is wide enough for its number
  mutable int stages_move_ = -1;  // -1: not looked yet
  std::string out_;
};

}  // namespace

std::string DrawSvg(absl::Span<const DrawnJob> jobs, const DrawingOptions& options) {
  return SvgTimeline(jobs, options).Draw();
}

}  // namespace weft
