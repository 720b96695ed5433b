#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "schedules/drawing.h"
#include "schedules/svg_text.h"

namespace weft {
namespace {

// All lengths are in pixels of the picture's own coordinates.
constexpr double kLeft = 132;       // labels of the ranks
constexpr double kRight = 90;       // how busy each rank was, the unit of time
constexpr double kTop = 62;         // title, subtitle
constexpr double kAxis = 40;        // below the rows
constexpr double kEntries = 20;     // a line of the legend
constexpr double kPlot = 1100;      // the time axis
constexpr double kHair = 0.35;      // narrower boxes of one kind are drawn as one
constexpr double kTick = 2.4;       // width of a job that takes no time and is drawn all the same
constexpr double kFontLeast = 6.5;  // least font that can still be read
constexpr int kTints = 6;           // shades that tell the stages of one kind apart
constexpr char kGround[] = "#f1efea";

struct Colour {
  double red, green, blue;
};

// A range of colours from the shade of the first stage to that of the last. Lightness falls from forward to
// backward without an overlap of their ranges, so the kinds can be told apart in grey.
struct Palette {
  Colour first, last;
  const char* text;
};
constexpr std::array<Palette, kJobKinds> kPalette = {{
    {{0xcf, 0xe3, 0xf3}, {0x9f, 0xc8, 0xe6}, "#17374f"},  // forward: light blue
    {{0x3b, 0x7f, 0x9e}, {0x1d, 0x4f, 0x69}, "#ffffff"},  // backward: dark blue
    {{0x4f, 0x97, 0x8d}, {0x2d, 0x6f, 0x66}, "#ffffff"},  // backward_input: dark green-blue
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

// The cause that is drawn as bare ground: the input is not computed yet. Every other cause is hatched in a
// colour.
constexpr char kBareCause[] = "dependency";
const std::map<std::string, const char*>& CauseColours() {
  static const auto* const colours = new std::map<std::string, const char*>{
      {"transfer", "#7d5ba6"}, {"limit", "#b8a13a"},    {"memory", "#c2434a"}, {"dispatch", "#9a958a"},
      {"reduce", "#d99a2b"},   {"recovery", "#d0609a"}, {"no_work", "#d8d4ca"}};
  return *colours;
}

// A class of received tensors, in the colour in which it is drawn. Notices that only order jobs are not.
struct Cargo {
  absl::string_view name;
  const char* colour;
  bool always;  // true if it is drawn also where it takes no time
};
constexpr std::array<Cargo, 4> kCargo = {{{"activations", "#5f93bd", false},
                                          {"weights", "#4c8a35", true},
                                          {"gradients of weights", "#d08a17", true},
                                          {"state", "#7d5ba6", true}}};
constexpr int kNoCargo = -1;
int CargoOf(TensorKind tensor) {
  switch (tensor) {
    case TensorKind::kActivation:
    case TensorKind::kInputGradient:
      return 0;
    case TensorKind::kWeights:
      return 1;
    case TensorKind::kGradient:
    case TensorKind::kGradientSum:
    case TensorKind::kNorm:
      return 2;
    case TensorKind::kState:
      return 3;
    case TensorKind::kOrder:
      break;
  }
  return kNoCargo;
}

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

class SvgTimeline {
 public:
  SvgTimeline(absl::Span<const DrawnJob> jobs, const DrawingOptions& options)
      : jobs_(jobs.begin(), jobs.end()), options_(options) {
    std::stable_sort(jobs_.begin(), jobs_.end(), [](const DrawnJob& a, const DrawnJob& b) {
      return a.rank != b.rank ? a.rank < b.rank : a.start < b.start;
    });
    if (!jobs_.empty()) begin_ = end_ = jobs_.front().start;
    for (const DrawnJob& j : jobs_) {
      begin_ = std::min(begin_, j.start);
      end_ = std::max(end_, j.end);
      used_[static_cast<int>(j.job.kind)] |= Shown(j);
      if (!HasMicrobatch(j.job.kind)) continue;
      stages_of_[j.rank].insert(j.job.stage);
      several_microbatches_ |= j.job.microbatch > 0;
      const auto start = first_start_.try_emplace(j.job.step, j.start).first;
      start->second = std::min(start->second, j.start);
    }
    for (const auto& [rank, stages] : stages_of_) stages_move_ |= stages.size() > 1;
    if (end_ <= begin_) end_ = begin_ + 1;
    TakeIdle();
    TakeTransfers();
    SetHeights();
  }

  std::string Draw() {
    Rows();
    const std::string rows = std::exchange(out_, "");
    double height = Bottom() + kAxis;
    const std::string legend = Legend(&height);
    absl::StrAppend(&out_, OpenSvg(kLeft + kPlot + kRight, height + 8, options_.title, Style()),
                    SvgHeading(kLeft, options_.title, options_.subtitle));
    absl::StrAppend(&out_, "<text x=\"", SvgLength(kLeft + kPlot + 8), "\" y=\"", SvgLength(top_ - 8),
                    "\" font-size=\"11\" fill=\"#666\">busy</text>\n", rows,
                    SvgTimeAxis(kLeft, Bottom() + 4, kPlot, end_ - begin_, options_.time), legend,
                    "</svg>\n");
    return std::move(out_);
  }

 private:
  double X(double time) const { return kLeft + (time - begin_) / (end_ - begin_) * kPlot; }
  double Y(Rank rank) const { return top_ + row_ * rank; }
  double Bottom() const { return top_ + row_ * options_.ranks; }
  double BoxHeight() const { return row_ - lane_ - strip_ - (row_ >= 12 ? 3 : 1); }
  double FontSize() const { return std::min(11.0, BoxHeight() - 2); }
  bool Labelled(Rank rank) const { return row_ >= 12 || rank % 8 == 0; }

  // Returns true if the job is drawn. A sum of gradients is drawn also where it takes no time: a common act
  // of ranks must be seen.
  static bool Shown(const DrawnJob& j) { return j.end > j.start || j.job.kind == JobKind::kReduce; }

  using JobKey = std::tuple<int, int, int, JobKind>;
  static JobKey KeyOf(const Job& job) { return {job.step, job.stage, job.microbatch, job.kind}; }

  void TakeIdle() {
    for (const DrawnIdle& idle : options_.idle) {
      if (idle.cause == kBareCause || idle.end <= begin_ || idle.start >= end_) continue;
      idle_.push_back(idle);
      idle_.back().start = std::max(idle.start, begin_);
      idle_.back().end = std::min(idle.end, end_);
      causes_.insert(idle.cause);
    }
    std::stable_sort(idle_.begin(), idle_.end(), [](const DrawnIdle& a, const DrawnIdle& b) {
      return a.rank != b.rank ? a.rank < b.rank : a.start < b.start;
    });
  }

  // Moves weights that take no time to the job that reads them, not to the time when all could be fetched at
  // once.
  void MoveToReader(DrawnTransfer* t) {
    if (t->tensor != TensorKind::kWeights || t->end > t->start) return;
    if (start_of_.empty()) {
      for (const DrawnJob& j : jobs_) start_of_[KeyOf(j.job)] = j.start;
    }
    const auto reader = start_of_.find(KeyOf(t->job));
    if (reader != start_of_.end()) t->start = t->end = reader->second;
  }

  void TakeTransfers() {
    for (const DrawnTransfer& t : options_.transfers) {
      const int cargo = CargoOf(t.tensor);
      if (cargo == kNoCargo || t.end < begin_ || t.start > end_) continue;
      if (t.end <= t.start && !kCargo[cargo].always) continue;
      transfers_.push_back(t);
      MoveToReader(&transfers_.back());
      transfers_.back().start = std::max(transfers_.back().start, begin_);
      transfers_.back().end = std::min(transfers_.back().end, end_);
      carried_[cargo] = true;
    }
    std::stable_sort(transfers_.begin(), transfers_.end(),
                     [](const DrawnTransfer& a, const DrawnTransfer& b) {
                       return a.to != b.to ? a.to < b.to : a.start < b.start;
                     });
  }

  void SetHeights() {
    row_ = options_.ranks <= 12 ? 30 : options_.ranks <= 24 ? 22 : options_.ranks <= 80 ? 15 : 8;
    if (row_ >= 15 && !transfers_.empty()) lane_ = row_ >= 22 ? 6 : 3;
    if (row_ >= 15 && first_start_.size() > 1) strip_ = row_ >= 22 ? 4 : 2;
    row_ += lane_ + strip_;
    top_ = kTop + (first_start_.size() > 1 ? 14 : 0);
  }

  int Tint(int stage) const {
    if (options_.stages <= 1) return 0;
    return static_cast<int>(std::lround(static_cast<double>(stage) / (options_.stages - 1) * (kTints - 1)));
  }

  // Returns the style: one class for each kind and tint in use; texts have their kind's colour.
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
    if (strip_ > 0) absl::StrAppend(&style, ".s0{fill:", kStrip[0], "}.s1{fill:", kStrip[1], "}\n");
    for (size_t c = 0; c < kCargo.size(); ++c) {
      if (carried_[c]) absl::StrAppend(&style, ".c", c, "{fill:", kCargo[c].colour, "}\n");
    }
    absl::StrAppend(&style, "</style>\n");
    if (causes_.empty()) return style;
    absl::StrAppend(&style, "<defs>\n");
    for (const std::string& cause : causes_) {
      absl::StrAppend(&style, "<pattern id=\"", cause,
                      "\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
                      "patternTransform=\"rotate(45)\"><rect width=\"5\" height=\"5\" fill=\"",
                      kGround, "\"/><rect width=\"2\" height=\"5\" fill=\"", ColourOf(cause),
                      "\"/></pattern>\n");
    }
    return style + "</defs>\n";
  }

  static const char* ColourOf(const std::string& cause) {
    const auto found = CauseColours().find(cause);
    return found == CauseColours().end() ? "#9a958a" : found->second;
  }

  void Rows() {
    StepNumbers();
    size_t next = 0, next_idle = 0, next_transfer = 0;
    const auto of_rank = [](const auto& list, size_t* next, auto belongs) {
      const size_t first = *next;
      while (*next < list.size() && belongs(list[*next])) ++*next;
      return absl::MakeConstSpan(list).subspan(first, *next - first);
    };
    for (Rank rank = 0; rank < options_.ranks; ++rank) {
      // The row's ground is the look of idle time.
      absl::StrAppend(&out_, "<rect x=\"", SvgLength(kLeft), "\" y=\"", SvgLength(Y(rank)), "\" width=\"",
                      SvgLength(kPlot), "\" height=\"", SvgLength(BoxHeight()), "\" fill=\"", kGround,
                      "\"/>\n");
      if (Labelled(rank)) RankLabel(rank);
      Idle(of_rank(idle_, &next_idle, [&](const DrawnIdle& i) { return i.rank == rank; }));
      const auto row = of_rank(jobs_, &next, [&](const DrawnJob& j) { return j.rank == rank; });
      Boxes(row);
      Transfers(of_rank(transfers_, &next_transfer, [&](const DrawnTransfer& t) { return t.to == rank; }));
      if (strip_ > 0) Strip(row);
      if (Labelled(rank)) Busy(row, Y(rank) + BoxHeight() / 2 + 4);
    }
  }

  // Draws numbers above the rows, where each step begins.
  void StepNumbers() {
    if (first_start_.size() < 2) return;
    double free = 0;
    for (const auto& [step, start] : first_start_) {
      const double x = X(start);
      if (x < free) continue;
      const std::string text = absl::StrCat("step ", step);
      absl::StrAppend(&out_, "<path d=\"M", SvgLength(x), " ", SvgLength(top_ - 14),
                      "v11\" stroke=\"#999\"/><text x=\"", SvgLength(x + 4), "\" y=\"", SvgLength(top_ - 5),
                      "\" font-size=\"10\" fill=\"#666\">", text, "</text>\n");
      free = x + 12 + 6 * static_cast<double>(text.size());
    }
  }

  // Draws the rank, the stages that it computes, and its number among the ranks that compute the same ones.
  void RankLabel(Rank rank) {
    const double middle = Y(rank) + BoxHeight() / 2 + 4;
    const std::string held = row_ >= 22 ? Held(rank) : "";
    absl::StrAppend(&out_, "<text x=\"", SvgLength(kLeft - 8), "\" y=\"",
                    SvgLength(held.empty() ? middle : middle - 5), "\" text-anchor=\"end\" font-size=\"",
                    SvgLength(std::clamp(FontSize(), 9.0, 11.0)), "\">rank ", rank, "</text>\n");
    if (held.empty()) return;
    absl::StrAppend(&out_, "<text x=\"", SvgLength(kLeft - 8), "\" y=\"", SvgLength(middle + 6),
                    "\" text-anchor=\"end\" font-size=\"9\" fill=\"#666\">", held, "</text>\n");
  }

  std::string Held(Rank rank) const {
    const auto own = stages_of_.find(rank);
    if (own == stages_of_.end() || options_.stages <= 1) return "";
    std::string text = Ranges(own->second);
    if (text.size() > 12) text = absl::StrCat(own->second.size());
    text = text.size() <= 12 && own->second.size() == 1 ? absl::StrCat("stage ", text)
           : text == absl::StrCat(own->second.size())   ? absl::StrCat(text, " stages")
                                                        : absl::StrCat("stages ", text);
    int same = 0, before = 0;
    for (const auto& [other, stages] : stages_of_) {
      if (stages != own->second) continue;
      ++same;
      before += other < rank ? 1 : 0;
    }
    return same > 1 ? absl::StrCat(text, ", replica ", before + 1, "/", same) : text;
  }

  void Idle(absl::Span<const DrawnIdle> row) {
    for (size_t i = 0; i < row.size();) {
      size_t last = i;
      while (last + 1 < row.size() && X(row[last + 1].end) - X(row[i].start) < kHair &&
             row[last + 1].cause == row[i].cause) {
        ++last;
      }
      const double width = X(row[last].end) - X(row[i].start);
      if (width >= kHair) {
        absl::StrAppend(&out_, "<rect fill=\"url(#", row[i].cause, ")\" x=\"", SvgLength(X(row[i].start)),
                        "\" y=\"", SvgLength(Y(row[i].rank)), "\" width=\"", SvgLength(width), "\" height=\"",
                        SvgLength(BoxHeight()), "\"><title>idle: ", row[i].cause, ", ", Time(row[i].start),
                        " to ", Time(row[last].end), "</title></rect>\n");
      }
      i = last + 1;
    }
  }

  // The place of a box in its row's height: over all of it, or above or below the other half of its pair.
  enum class Lane { kWhole, kUpper, kLower };

  // Returns the lane: two jobs of a rank that overlap in time are an overlapped pair.
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
    // Ticks stand over the boxes, which would hide them.
    for (const DrawnJob& j : row) {
      if (j.end <= j.start && Shown(j)) Tick(j);
    }
  }

  // Draws a job that takes no time.
  void Tick(const DrawnJob& drawn) {
    absl::StrAppend(&out_, "<rect class=\"k", static_cast<int>(drawn.job.kind), "t0\" x=\"",
                    SvgLength(X(drawn.start) - kTick / 2), "\" y=\"", SvgLength(Y(drawn.rank)), "\" width=\"",
                    SvgLength(kTick), "\" height=\"", SvgLength(BoxHeight()), "\"><title>",
                    Describe(drawn.job), ", at ", Time(drawn.start), "</title></rect>\n");
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
    const double fits = (width - 2) / (0.64 * static_cast<double>(std::max<size_t>(1, label.size())));
    const double font = std::min({FontSize(), height - 2, fits});
    if (label.empty() || font < kFontLeast) return;
    labelled_ = true;
    absl::StrAppend(&out_, "<text class=\"x", kind, "\"",
                    font < FontSize() ? absl::StrCat(" style=\"font-size:", SvgLength(font), "px\"") : "",
                    " x=\"", SvgLength(x + width / 2), "\" y=\"", SvgLength(y + height / 2 + font * 0.36),
                    "\">", label, "</text>\n");
  }

  // True if the step tells which backward belongs to which forward, since each step has one micro-batch only.
  bool ByStep() const { return !several_microbatches_ && first_start_.size() > 1; }

  // Returns the micro-batch; with stage and kind before it, as in actions, where a rank has several stages.
  std::string Label(const Job& job) const {
    if (!HasMicrobatch(job.kind)) return "";
    const int number = ByStep() ? job.step : job.microbatch;
    if (!stages_move_) return absl::StrCat(number);
    return absl::StrCat(job.stage, std::string(1, ActionLetter(job.kind)), number);
  }

  // Draws received tensors under the boxes.
  void Transfers(absl::Span<const DrawnTransfer> row) {
    if (lane_ == 0) return;
    double drawn_to = -1;
    int drawn_cargo = kNoCargo;
    for (const DrawnTransfer& t : row) {
      const int cargo = CargoOf(t.tensor);
      const double end = X(t.end), start = std::min(X(t.start), end - kTick);
      if (cargo == drawn_cargo && end - drawn_to < kHair) continue;
      drawn_to = end;
      drawn_cargo = cargo;
      absl::StrAppend(&out_, "<rect class=\"c", cargo, "\" x=\"", SvgLength(start), "\" y=\"",
                      SvgLength(Y(t.to) + BoxHeight() + 1), "\" width=\"", SvgLength(end - start),
                      "\" height=\"", SvgLength(lane_ - 2), "\"><title>", TensorKindName(t.tensor),
                      " of stage ", t.job.stage, " from rank ", t.from,
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
      if (X(end) - X(row[i].start) >= kHair) {
        absl::StrAppend(&out_, "<rect class=\"s", row[i].job.step % 2, "\" x=\"", SvgLength(X(row[i].start)),
                        "\" y=\"", SvgLength(Y(row[i].rank) + BoxHeight() + lane_), "\" width=\"",
                        SvgLength(X(end) - X(row[i].start)), "\" height=\"", SvgLength(strip_ - 1),
                        "\"><title>step ", row[i].job.step, "</title></rect>\n");
      }
      i = last + 1;
    }
  }

  void Busy(absl::Span<const DrawnJob> row, double middle) {
    double busy = 0, until = begin_;
    for (const DrawnJob& j : row) {
      busy += std::max(0.0, j.end - std::max(j.start, until));
      until = std::max(until, j.end);
    }
    absl::StrAppend(&out_, "<text x=\"", SvgLength(kLeft + kPlot + 8), "\" y=\"", SvgLength(middle),
                    "\" font-size=\"", SvgLength(std::clamp(FontSize(), 9.0, 11.0)), "\" fill=\"#666\">",
                    absl::StrFormat("%.0f %%", 100 * busy / (end_ - begin_)), "</text>\n");
  }

  // Returns a time since the beginning of the picture.
  std::string Time(double time) const {
    const double t = time - begin_;
    return options_.time == DrawnTime::kSeconds ? FormatSeconds(t) : absl::StrFormat("%.6g", t);
  }

  // Draws the legend in as many lines as it takes; `height` grows with them.
  std::string Legend(double* height) const {
    std::string out;
    double x = kLeft;
    const auto place = [&](double width) {
      if (x > kLeft && x + width > kLeft + kPlot) {
        x = kLeft;
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
      if (used_[k]) entry(Hex(kPalette[k], kTints / 2), JobKindName(static_cast<JobKind>(k)));
    }
    entry(kGround, causes_.empty() ? "idle" : absl::StrCat("idle: ", kBareCause));
    for (const std::string& cause : causes_)
      entry(absl::StrCat("url(#", cause, ")"), absl::StrCat("idle: ", cause));
    for (size_t c = 0; c < kCargo.size(); ++c) {
      if (carried_[c]) entry(kCargo[c].colour, absl::StrCat(kCargo[c].name, " arrive"), 5);
    }
    if (strip_ > 0) {
      entry(kStrip[0], "even step", 4);
      entry(kStrip[1], "odd step", 4);
    }
    for (const std::string& remark : Remarks()) {
      const double at = place(14 + 6.2 * static_cast<double>(remark.size()));
      absl::StrAppend(&out, "<text x=\"", SvgLength(at), "\" y=\"", SvgLength(*height + 10),
                      "\" font-size=\"11\" fill=\"#666\">", remark, "</text>\n");
    }
    *height += kEntries;
    return out;
  }

  // Returns the remarks at the legend's end.
  std::vector<std::string> Remarks() const {
    std::vector<std::string> remarks;
    const std::string number = ByStep() ? "step" : "micro-batch";
    if (labelled_ && stages_move_) {
      std::vector<std::string> letters;
      for (int k = 0; k < kJobKinds; ++k) {
        const auto kind = static_cast<JobKind>(k);
        if (used_[k] && HasMicrobatch(kind))
          letters.push_back(absl::StrCat(std::string(1, ActionLetter(kind)), " ", JobKindName(kind)));
      }
      remarks.push_back(absl::StrCat("4F6: stage 4, ", number, " 6 (", absl::StrJoin(letters, ", "), ")"));
    } else if (labelled_) {
      remarks.push_back(absl::StrCat("number: ", number));
    }
    if (options_.stages > 1) remarks.push_back("shade: stage, later is darker");
    return remarks;
  }

  static constexpr std::array<const char*, 2> kStrip = {"#d5cfc0", "#7a7364"};

  std::vector<DrawnJob> jobs_;  // by rank, then start
  const DrawingOptions& options_;
  std::vector<DrawnIdle> idle_;           // likewise: idle times that are hatched
  std::vector<DrawnTransfer> transfers_;  // likewise, by the rank that receives
  std::set<std::string> causes_;
  std::array<bool, kCargo.size()> carried_{};
  std::map<Rank, std::set<int>> stages_of_;  // stages that a rank computes
  std::map<int, double> first_start_;        // first start of each step
  std::map<JobKey, double> start_of_;        // start of each job, where it is needed
  double begin_ = 0, end_ = 0;
  // Heights: of a row, and in it of received tensors and of the steps.
  double row_ = 0, lane_ = 0, strip_ = 0;
  double top_ = kTop;
  std::array<bool, kJobKinds> used_{};
  bool labelled_ = false;              // some box is wide enough for its number
  bool stages_move_ = false;           // some rank computes more than one stage
  bool several_microbatches_ = false;  // in a step
  std::string out_;
};

}  // namespace

std::string DrawSvg(absl::Span<const DrawnJob> jobs, const DrawingOptions& options) {
  return SvgTimeline(jobs, options).Draw();
}

}  // namespace weft
