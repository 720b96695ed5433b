// A timeline as SVG: its rows, and the style and legend that explain them. timeline_layout.h decides what is
// shown, and where.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "schedules/drawing/drawing.h"
#include "schedules/drawing/svg_palette.h"
#include "schedules/drawing/svg_text.h"
#include "schedules/drawing/timeline_layout.h"

namespace weft {
namespace {

constexpr double kTick = 2.4;       // what takes no time and is drawn all the same
constexpr double kFontLeast = 6.5;  // that can still be read
constexpr double kLines = 1.1;      // height of a line, in heights of its letters
constexpr double kEntries = 20;     // a line of the legend

// Returns "0-3, 6".
std::string Ranges(const std::set<int>& numbers) {
  std::vector<std::string> parts;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const int first = *at;
    int last = first;
    while (++at != numbers.end() && *at == last + 1) last = *at;
    parts.push_back(first == last ? absl::StrCat(first)
                                  : absl::StrCat(first, last == first + 1 ? ", " : "-", last));
  }
  return absl::StrJoin(parts, ", ");
}

// Returns the width of a label in heights of its letters, for the broadest of the usual fonts.
double LabelWidth(absl::string_view label) {
  double width = 0;
  for (const char c : label) {
    switch (c) {
      case 'W':
        width += 1;
        break;
      case 'I':
        width += 0.3;
        break;
      case 'B':
        width += 0.69;
        break;
      default:
        width += 0.64;  // figures, and F
    }
  }
  return width;
}

// The rows of the ranks, and above them the steps.
class TimelineRows {
 public:
  explicit TimelineRows(const TimelineLayout& layout) : layout_(layout) {}

  std::string Draw() {
    DrawRows();
    return std::move(out_);
  }
  // Some box is wide enough for its number.
  bool labelled() const { return labelled_; }

 private:
  int Tint(int stage) const {
    if (layout_.options().stages <= 1) return 0;
    return static_cast<int>(
        std::lround(static_cast<double>(stage) / (layout_.options().stages - 1) * (kTints - 1)));
  }

  void DrawRows() {
    StepNumbers();
    size_t next = 0, next_planned = 0, next_idle = 0, next_transfer = 0;
    const auto of_rank = [](const auto& list, size_t* next, auto belongs) {
      const size_t first = *next;
      while (*next < list.size() && belongs(list[*next])) ++*next;
      return absl::MakeConstSpan(list).subspan(first, *next - first);
    };
    for (Rank rank = 0; rank < layout_.options().ranks; ++rank) {
      if (layout_.plan() > 0) {
        Planned(rank,
                of_rank(layout_.planned(), &next_planned, [&](const DrawnJob& j) { return j.rank == rank; }));
      }
      // The row's ground is what idle looks like.
      absl::StrAppend(&out_, "<rect x=\"", SvgLength(TimelineLayout::kLeft), "\" y=\"",
                      SvgLength(layout_.Y(rank)), "\" width=\"", SvgLength(TimelineLayout::kPlot),
                      "\" height=\"", SvgLength(layout_.BoxHeight()), "\" fill=\"", kGround, "\"/>\n");
      if (layout_.Labels(rank)) RankLabel(rank);
      Idle(of_rank(layout_.idle(), &next_idle, [&](const DrawnIdle& i) { return i.rank == rank; }));
      const auto row = of_rank(layout_.jobs(), &next, [&](const DrawnJob& j) { return j.rank == rank; });
      Boxes(row, {layout_.Y(rank), layout_.BoxHeight()});
      Transfers(
          of_rank(layout_.transfers(), &next_transfer, [&](const DrawnTransfer& t) { return t.to == rank; }));
      if (layout_.strip() > 0) Strip(row);
      if (layout_.Labels(rank)) Busy(row, layout_.Y(rank) + layout_.BoxHeight() / 2 + 4);
    }
  }

  // Draws numbers above the rows, where each step begins.
  void StepNumbers() {
    if (layout_.first_start().size() < 2) return;
    double free = 0;
    for (const auto& [step, start] : layout_.first_start()) {
      const double x = layout_.X(start);
      if (x < free) continue;
      const std::string text = absl::StrCat("step ", step);
      absl::StrAppend(&out_, "<path d=\"M", SvgLength(x), " ", SvgLength(layout_.top() - 14),
                      "v11\" stroke=\"#999\"/><text x=\"", SvgLength(x + 4), "\" y=\"",
                      SvgLength(layout_.top() - 5), "\" font-size=\"10\" fill=\"#666\">", text, "</text>\n");
      free = x + 12 + 6 * static_cast<double>(text.size());
    }
  }

  // Draws the rank, the stages that it computes, and its number among the ranks that compute the same ones.
  void RankLabel(Rank rank) {
    const double middle = layout_.Y(rank) + layout_.BoxHeight() / 2 + 4;
    const std::string held = layout_.row() >= 22 ? Held(rank) : "";
    absl::StrAppend(&out_, "<text x=\"", SvgLength(TimelineLayout::kLeft - 8), "\" y=\"",
                    SvgLength(held.empty() ? middle : middle - 5), "\" text-anchor=\"end\" font-size=\"",
                    SvgLength(std::clamp(layout_.FontSize(), 9.0, 11.0)), "\">rank ", rank, "</text>\n");
    if (held.empty()) return;
    absl::StrAppend(&out_, "<text x=\"", SvgLength(TimelineLayout::kLeft - 8), "\" y=\"",
                    SvgLength(middle + 6), "\" text-anchor=\"end\" font-size=\"9\" fill=\"#666\">", held,
                    "</text>\n");
  }

  std::string Held(Rank rank) const {
    const auto own = layout_.stages_of().find(rank);
    if (own == layout_.stages_of().end() || layout_.options().stages <= 1) return "";
    std::string text = Ranges(own->second);
    if (text.size() > 12) text = absl::StrCat(own->second.size());
    text = text.size() <= 12 && own->second.size() == 1 ? absl::StrCat("stage ", text)
           : text == absl::StrCat(own->second.size())   ? absl::StrCat(text, " stages")
                                                        : absl::StrCat("stages ", text);
    int same = 0, before = 0;
    for (const auto& [other, stages] : layout_.stages_of()) {
      if (stages != own->second) continue;
      ++same;
      before += other < rank ? 1 : 0;
    }
    return same > 1 ? absl::StrCat(text, ", replica ", before + 1, "/", same) : text;
  }

  void Idle(absl::Span<const DrawnIdle> row) {
    for (size_t i = 0; i < row.size();) {
      size_t last = i;
      while (last + 1 < row.size() &&
             layout_.X(row[last + 1].end) - layout_.X(row[i].start) < TimelineLayout::kHair &&
             row[last + 1].cause == row[i].cause) {
        ++last;
      }
      const double width = layout_.X(row[last].end) - layout_.X(row[i].start);
      if (width >= TimelineLayout::kHair) {
        absl::StrAppend(&out_, "<rect fill=\"url(#", row[i].cause, ")\" x=\"",
                        SvgLength(layout_.X(row[i].start)), "\" y=\"", SvgLength(layout_.Y(row[i].rank)),
                        "\" width=\"", SvgLength(width), "\" height=\"", SvgLength(layout_.BoxHeight()),
                        "\"><title>idle: ", row[i].cause, ", ", Time(row[i].start), " to ",
                        Time(row[last].end), "</title></rect>\n");
      }
      i = last + 1;
    }
  }

  // The place of a box in its row's height: over all of it, or above or below the other half of its pair.
  enum class Lane { kWhole, kUpper, kLower };

  // Returns the lane: two jobs of a rank that overlap in time are an overlapped pair.
  Lane LaneOf(absl::Span<const DrawnJob> row, size_t i) const {
    const double hair = (layout_.end() - layout_.begin()) * 1e-9;
    if (i + 1 < row.size() && row[i + 1].start + hair < std::min(row[i].end, row[i + 1].end))
      return Lane::kUpper;
    for (size_t back = 1; back <= std::min<size_t>(i, 2); ++back) {
      if (row[i].start + hair < std::min(row[i - back].end, row[i].end)) return Lane::kLower;
    }
    return Lane::kWhole;
  }

  // The place of a row of boxes.
  struct Band {
    double y, height;
  };

  // Draws what was planned for the rank, above its own row.
  void Planned(Rank rank, absl::Span<const DrawnJob> row) {
    const Band band = {layout_.PlanY(rank), layout_.PlanHeight()};
    absl::StrAppend(&out_, "<g opacity=\".6\">\n<path d=\"M", SvgLength(TimelineLayout::kLeft), " ",
                    SvgLength(band.y + band.height), "h", SvgLength(TimelineLayout::kPlot),
                    "\" stroke=\"#bbb\"/>\n");
    if (band.height >= 9) {
      absl::StrAppend(&out_, "<text x=\"", SvgLength(TimelineLayout::kLeft - 8), "\" y=\"",
                      SvgLength(band.y + band.height / 2 + 3),
                      "\" text-anchor=\"end\" font-size=\"9\" fill=\"#444\">planned</text>\n");
    }
    Boxes(row, band);
    absl::StrAppend(&out_, "</g>\n");
  }

  void Boxes(absl::Span<const DrawnJob> row, const Band& band) {
    absl::StrAppend(&out_, "<g class=\"b\">\n");
    for (size_t i = 0; i < row.size();) {
      size_t last = i;
      const Lane lane = LaneOf(row, i);
      // Thousands of boxes thinner than a hair become one box a kind, which looks the same.
      while (lane == Lane::kWhole && last + 1 < row.size() &&
             layout_.X(row[last + 1].end) - layout_.X(row[i].start) < TimelineLayout::kHair &&
             row[last + 1].job.kind == row[i].job.kind) {
        ++last;
      }
      if (row[last].end > row[i].start) Box(row[i], row[last].end, lane, band);
      i = last + 1;
    }
    absl::StrAppend(&out_, "</g>\n");
    // Ticks stand over the boxes, which would hide them.
    for (const DrawnJob& j : row) {
      if (j.end <= j.start && TimelineLayout::Shows(j)) Tick(j, band);
    }
  }

  // Draws a job that takes no time.
  void Tick(const DrawnJob& drawn, const Band& band) {
    absl::StrAppend(&out_, "<rect class=\"k", static_cast<int>(drawn.job.kind), "t0\" x=\"",
                    SvgLength(layout_.X(drawn.start) - kTick / 2), "\" y=\"", SvgLength(band.y),
                    "\" width=\"", SvgLength(kTick), "\" height=\"", SvgLength(band.height), "\"><title>",
                    Describe(drawn.job), ", at ", Time(drawn.start), "</title></rect>\n");
  }

  void Box(const DrawnJob& drawn, double end, Lane lane, const Band& band) {
    const int kind = static_cast<int>(drawn.job.kind);
    const double x = layout_.X(drawn.start), width = std::max(layout_.X(end) - x, TimelineLayout::kHair);
    const double height = lane == Lane::kWhole ? band.height : band.height / 2;
    const double y = band.y + (lane == Lane::kLower ? height : 0);
    absl::StrAppend(&out_, "<rect class=\"k", kind, "t", Tint(drawn.job.stage), "\" x=\"", SvgLength(x),
                    "\" y=\"", SvgLength(y), "\" width=\"", SvgLength(width), "\" height=\"",
                    SvgLength(height), "\"><title>", Describe(drawn.job), ", ", Time(drawn.start), " to ",
                    Time(end), "</title></rect>\n");
    WriteLabel(drawn.job, x + width / 2, y + height / 2, width - 2, height - 2);
  }

  // Writes the label into the middle of a box. A narrow or low box has smaller figures, down to what can
  // still be read; one that is too narrow for them has its micro-batch below the stage.
  void WriteLabel(const Job& job, double x, double y, double width, double height) {
    if (!HasMicrobatch(job.kind)) return;
    const std::string stage = StageOfLabel(job);
    const std::string number = absl::StrCat(layout_.ByStep() ? job.step : job.microbatch);
    const double line = std::min(height, width / LabelWidth(stage + number));
    const double lines =
        std::min(height / (1 + kLines), width / std::max(LabelWidth(stage), LabelWidth(number)));
    const bool stacked = line < kFontLeast && !stage.empty();
    const double font = std::min(layout_.FontSize(), stacked ? lines : line);
    if (font < kFontLeast) return;
    labelled_ = true;
    if (!stacked) return Text(job.kind, x, y, font, stage + number);
    Text(job.kind, x, y - font * kLines / 2, font, stage);
    Text(job.kind, x, y + font * kLines / 2, font, number);
  }

  void Text(JobKind kind, double x, double y, double font, const std::string& text) {
    absl::StrAppend(
        &out_, "<text class=\"x", static_cast<int>(kind), "\"",
        font < layout_.FontSize() ? absl::StrCat(" style=\"font-size:", SvgLength(font), "px\"") : "",
        " x=\"", SvgLength(x), "\" y=\"", SvgLength(y + font * 0.36), "\">", text, "</text>\n");
  }

  // Returns stage and kind, as in actions, where a rank has several stages.
  std::string StageOfLabel(const Job& job) const {
    if (!layout_.stages_move()) return "";
    return absl::StrCat(job.stage, std::string(1, ActionLetter(job.kind)));
  }

  // Draws received tensors under the boxes.
  void Transfers(absl::Span<const DrawnTransfer> row) {
    if (layout_.lane() == 0) return;
    double drawn_to = -1;
    int drawn_cargo = kNoCargo;
    for (const DrawnTransfer& t : row) {
      const int cargo = CargoOf(t.tensor);
      const double end = layout_.X(t.end), start = std::min(layout_.X(t.start), end - kTick);
      if (cargo == drawn_cargo && end - drawn_to < TimelineLayout::kHair) continue;
      drawn_to = end;
      drawn_cargo = cargo;
      absl::StrAppend(&out_, "<rect class=\"c", cargo, "\" x=\"", SvgLength(start), "\" y=\"",
                      SvgLength(layout_.Y(t.to) + layout_.BoxHeight() + 1), "\" width=\"",
                      SvgLength(end - start), "\" height=\"", SvgLength(layout_.lane() - 2), "\"><title>",
                      TensorKindName(t.tensor), " of stage ", t.job.stage, " from rank ", t.from,
                      t.bytes > 0 ? absl::StrCat(", ", FormatBytes(t.bytes)) : "", ", ", Time(t.start),
                      " to ", Time(t.end), "</title></rect>\n");
    }
  }

  // Draws a strip under the boxes and the received tensors: light for even steps, dark for odd ones.
  void Strip(absl::Span<const DrawnJob> row) {
    for (size_t i = 0; i < row.size();) {
      size_t last = i;
      double end = row[i].end;
      while (last + 1 < row.size() && row[last + 1].job.step == row[i].job.step) {
        ++last;
        end = std::max(end, row[last].end);
      }
      if (layout_.X(end) - layout_.X(row[i].start) >= TimelineLayout::kHair) {
        absl::StrAppend(
            &out_, "<rect class=\"s", row[i].job.step % 2, "\" x=\"", SvgLength(layout_.X(row[i].start)),
            "\" y=\"", SvgLength(layout_.Y(row[i].rank) + layout_.BoxHeight() + layout_.lane()),
            "\" width=\"", SvgLength(layout_.X(end) - layout_.X(row[i].start)), "\" height=\"",
            SvgLength(layout_.strip() - 1), "\"><title>step ", row[i].job.step, "</title></rect>\n");
      }
      i = last + 1;
    }
  }

  void Busy(absl::Span<const DrawnJob> row, double middle) {
    double busy = 0, until = layout_.begin();
    for (const DrawnJob& j : row) {
      busy += std::max(0.0, j.end - std::max(j.start, until));
      until = std::max(until, j.end);
    }
    absl::StrAppend(&out_, "<text x=\"", SvgLength(TimelineLayout::kLeft + TimelineLayout::kPlot + 8),
                    "\" y=\"", SvgLength(middle), "\" font-size=\"",
                    SvgLength(std::clamp(layout_.FontSize(), 9.0, 11.0)), "\" fill=\"#666\">",
                    absl::StrFormat("%.0f %%", 100 * busy / (layout_.end() - layout_.begin())), "</text>\n");
  }

  // Returns a time since the beginning of the picture.
  std::string Time(double time) const {
    const double t = time - layout_.begin();
    return layout_.options().time == DrawnTime::kSeconds ? FormatSeconds(t) : absl::StrFormat("%.6g", t);
  }

  const TimelineLayout& layout_;
  bool labelled_ = false;
  std::string out_;
};

// One class for each kind and tint in use; texts have their kind's colour.
std::string Style(const TimelineLayout& layout) {
  // The line between boxes must not wash out the colours of narrow ones.
  const double box = TimelineLayout::kPlot * layout.options().ranks /
                     static_cast<double>(std::max<size_t>(1, layout.jobs().size()));
  std::string style =
      absl::StrCat("<style>\n.b rect{stroke:#fff;stroke-width:", box >= 8 ? ".6" : ".15", "}\n");
  for (int k = 0; k < kJobKinds; ++k) {
    if (!layout.Uses(static_cast<JobKind>(k))) continue;
    for (int tint = 0; tint < kTints; ++tint) {
      absl::StrAppend(&style, ".k", k, "t", tint, "{fill:", ColourOfKind(static_cast<JobKind>(k), tint), "}");
    }
    absl::StrAppend(&style, "\n.x", k, "{fill:", TextColourOfKind(static_cast<JobKind>(k)),
                    ";text-anchor:middle;font-size:", SvgLength(layout.FontSize()), "px}\n");
  }
  if (layout.strip() > 0)
    absl::StrAppend(&style, ".s0{fill:", kStepColours[0], "}.s1{fill:", kStepColours[1], "}\n");
  for (size_t c = 0; c < kCargo.size(); ++c) {
    if (layout.Carries(static_cast<int>(c)))
      absl::StrAppend(&style, ".c", c, "{fill:", kCargo[c].colour, "}\n");
  }
  absl::StrAppend(&style, "</style>\n");
  if (layout.causes().empty()) return style;
  absl::StrAppend(&style, "<defs>\n");
  for (const std::string& cause : layout.causes()) {
    absl::StrAppend(&style, "<pattern id=\"", cause,
                    "\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
                    "patternTransform=\"rotate(45)\"><rect width=\"5\" height=\"5\" fill=\"",
                    kGround, "\"/><rect width=\"2\" height=\"5\" fill=\"", ColourOfCause(cause),
                    "\"/></pattern>\n");
  }
  return style + "</defs>\n";
}

// Returns the sentences at the legend's end.
std::vector<std::string> Remarks(const TimelineLayout& layout, bool labelled) {
  std::vector<std::string> remarks;
  const std::string number = layout.ByStep() ? "step" : "micro-batch";
  if (labelled && layout.stages_move()) {
    std::vector<std::string> letters;
    for (int k = 0; k < kJobKinds; ++k) {
      const auto kind = static_cast<JobKind>(k);
      if (layout.Uses(static_cast<JobKind>(k)) && HasMicrobatch(kind))
        letters.push_back(absl::StrCat(std::string(1, ActionLetter(kind)), " ", JobKindName(kind)));
    }
    remarks.push_back(absl::StrCat("4F6: stage 4, ", number, " 6 (", absl::StrJoin(letters, ", "), ")"));
  } else if (labelled) {
    remarks.push_back(absl::StrCat("number: ", number));
  }
  if (layout.plan() > 0) remarks.push_back("upper row of a rank: planned");
  if (layout.options().stages > 1) remarks.push_back("shade: stage, later is darker");
  return remarks;
}

// Returns the legend, in as many lines as it takes; `height` grows with them.
std::string Legend(const TimelineLayout& layout, bool labelled, double* height) {
  std::string out;
  double x = TimelineLayout::kLeft;
  const auto place = [&](double width) {
    if (x > TimelineLayout::kLeft && x + width > TimelineLayout::kLeft + TimelineLayout::kPlot) {
      x = TimelineLayout::kLeft;
      *height += kEntries;
    }
    return std::exchange(x, x + width);
  };
  const auto entry = [&](const std::string& fill, absl::string_view text, double tall = 12) {
    const double at = place(42 + 6.4 * static_cast<double>(text.size()));
    absl::StrAppend(&out, "<rect x=\"", SvgLength(at), "\" y=\"", SvgLength(*height + (12 - tall) / 2),
                    "\" width=\"14\" height=\"", SvgLength(tall), "\" fill=\"", fill, "\"/><text x=\"",
                    SvgLength(at + 20), "\" y=\"", SvgLength(*height + 10), "\" font-size=\"11\">", text,
                    "</text>\n");
  };
  for (int k = 0; k < kJobKinds; ++k) {
    if (layout.Uses(static_cast<JobKind>(k)))
      entry(ColourOfKind(static_cast<JobKind>(k), kTints / 2), JobKindName(static_cast<JobKind>(k)));
  }
  if (!layout.bare().empty()) entry(kGround, layout.bare());
  for (const std::string& cause : layout.causes())
    entry(absl::StrCat("url(#", cause, ")"), absl::StrCat("idle: ", cause));
  for (size_t c = 0; c < kCargo.size(); ++c) {
    if (layout.Carries(static_cast<int>(c)))
      entry(kCargo[c].colour, absl::StrCat(kCargo[c].name, " arrive"), 5);
  }
  if (layout.strip() > 0) {
    entry(kStepColours[0], "even step", 4);
    entry(kStepColours[1], "odd step", 4);
  }
  for (const std::string& remark : Remarks(layout, labelled)) {
    const double at = place(14 + 6.2 * static_cast<double>(remark.size()));
    absl::StrAppend(&out, "<text x=\"", SvgLength(at), "\" y=\"", SvgLength(*height + 10),
                    "\" font-size=\"11\" fill=\"#666\">", remark, "</text>\n");
  }
  *height += kEntries;
  return out;
}

}  // namespace

std::string DrawSvg(absl::Span<const DrawnJob> jobs, const DrawingOptions& options) {
  const TimelineLayout layout(jobs, options);
  constexpr double kLeft = TimelineLayout::kLeft, kPlot = TimelineLayout::kPlot;
  TimelineRows rows(layout);
  const std::string drawn = rows.Draw();
  double height = layout.Bottom() + TimelineLayout::kAxis;
  const std::string legend = Legend(layout, rows.labelled(), &height);
  return absl::StrCat(
      OpenSvg(kLeft + kPlot + TimelineLayout::kRight, height + 8, options.title, Style(layout)),
      SvgHeading(kLeft, options.title, options.subtitle), "<text x=\"", SvgLength(kLeft + kPlot + 8),
      "\" y=\"", SvgLength(layout.top() - 8), "\" font-size=\"11\" fill=\"#666\">busy</text>\n", drawn,
      SvgTimeAxis(kLeft, layout.Bottom() + 4, kPlot, layout.end() - layout.begin(), options.time), legend,
      "</svg>\n");
}

}  // namespace weft
