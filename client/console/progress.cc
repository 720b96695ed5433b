#include "client/console/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/console/console.h"
#include "coordinator/record/loss_watch.h"
#include "coordinator/record/run_view.h"
#include "schedules/drawing/drawing.h"

namespace weft {
namespace {

constexpr double kDrawEvery = 0.25, kSayEvery = 10, kSayAfter = 3, kWindow = 10;  // seconds
constexpr int kBar = 12;
constexpr size_t kRanksDrawn = 16;
constexpr char kYellow[] = "\x1b[33m", kPlain[] = "\x1b[0m";

struct TerminalSize {
  int columns = 80, rows = 24;
};

TerminalSize SizeOfTerminal() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

// The first `columns` characters of a line; a line that wraps could not be drawn over. Escape sequences of
// colours take no column.
std::string Cut(const std::string& line, int columns) {
  int seen = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      i = line.find('m', i);
      if (i == std::string::npos) return line;
      continue;
    }
    if ((line[i] & 0xc0) != 0x80 && seen++ == columns) return line.substr(0, i) + kPlain;
  }
  return line;
}

std::string Bar(double share, const TextStyle& style) {
  const int full = static_cast<int>(std::clamp<int64_t>(std::lround(share * kBar), 0, kBar));
  std::string bar;
  for (int i = 0; i < kBar; ++i) {
    if (style.unicode) {
      bar += i < full ? "\u2588" : "\u2591";
    } else {
      bar += i < full ? "#" : ".";
    }
  }
  return bar;
}

std::map<std::string, double> Difference(const std::map<std::string, double>& now,
                                         const std::map<std::string, double>& before) {
  std::map<std::string, double> difference = now;
  for (const auto& [name, seconds] : before) difference[name] -= seconds;
  return difference;
}

}  // namespace

void Progress::Show(double now, const ProgressState& state) {
  if (reporter_ != nullptr) reporter_->Tell(state);
  for (const RankReport& report : state.reports) {
    auto& [before, latest] = reports_[report.rank];
    if (report.wall_seconds > latest.wall_seconds) {
      before = std::move(latest);
      latest = report;
    }
  }
  // Without a terminal, a training of a few seconds prints no progress.
  if (!terminal_ && last_shown_ < 0) last_shown_ = now - kSayEvery + kSayAfter;
  const bool last = state.steps > 0 && state.steps_done == state.steps;
  const bool waits_anew = !terminal_ && !state.awaited.empty() && state.awaited != last_awaited_;
  last_awaited_ = state.awaited;
  if (!waits_anew && now - last_shown_ < (terminal_ ? kDrawEvery : kSayEvery) && !(terminal_ && last)) return;
  seen_.push_back({now, state.steps_done});
  while (seen_.size() > 2 && now - seen_.front().now > kWindow) seen_.pop_front();
  const std::string headline = Headline(state);
  if (!terminal_) {
    if (headline != last_line_) PrintMessage(headline);
    last_line_ = headline;
    last_shown_ = now;
    return;
  }
  std::vector<std::string> lines = {Heading(headline, style_)};
  for (const auto& [rank, report] : reports_) {
    if (lines.size() <= kRanksDrawn) lines.push_back(RankLine(report.second));
  }
  if (reports_.size() > kRanksDrawn)
    lines.push_back(absl::StrCat(".. and ", reports_.size() - kRanksDrawn, " more ranks"));
  Draw(lines);
  last_shown_ = now;
}

double Progress::StepsPerSecond() const {
  const double seconds = seen_.back().now - seen_.front().now;
  return seconds > 0 ? (seen_.back().steps_done - seen_.front().steps_done) / seconds : 0;
}

std::string Progress::Headline(const ProgressState& state) const {
  if (state.steps_done == state.first_step) return absl::StrCat(state.name, ": ", state.phase);
  if (state.steps_done == state.steps)
    return absl::StrCat(state.name, ": all ", state.steps, " steps done", state.phase.empty() ? "" : "; ",
                        state.phase);
  std::string line = absl::StrCat(state.name, ": step ", state.steps_done, " of ", state.steps);
  if (state.has_loss) absl::StrAppend(&line, ", loss ", LossText(state.loss));
  if (state.validation.has_value()) absl::StrAppend(&line, ", validation ", LossText(state.validation->loss));
  const double rate = StepsPerSecond();
  if (rate > 0) {
    absl::StrAppendFormat(&line, ", %.3g steps/s", rate);
    const double remaining = (state.steps - state.steps_done) / rate;
    if (remaining >= 1) absl::StrAppend(&line, ", ", FormatSeconds(std::floor(remaining)), " left");
  }
  if (!state.trouble.empty()) absl::StrAppend(&line, "; ", state.trouble);
  return line;
}

std::string Progress::RankLine(const RankReport& report) {
  const RankReport& before = reports_[report.rank].first;
  const double wall = report.wall_seconds - before.wall_seconds;
  if (wall <= 0) return absl::StrCat("  rank ", report.rank);
  double busy = 0;
  for (const auto& [kind, seconds] : Difference(report.busy_seconds, before.busy_seconds)) busy += seconds;
  std::vector<std::pair<double, std::string>> causes;
  for (const auto& [cause, seconds] : Difference(report.idle_seconds, before.idle_seconds)) {
    if (seconds > 0.01 * wall) causes.emplace_back(seconds, cause);
  }
  std::sort(causes.rbegin(), causes.rend());
  std::string line = absl::StrFormat("  rank %-3d %s %3.0f %% busy", report.rank, Bar(busy / wall, style_),
                                     100 * std::min(1.0, busy / wall));
  for (size_t i = 0; i < causes.size() && i < 3; ++i) {
    absl::StrAppend(&line, i == 0 ? "; idle for " : ", ", style_.colour ? kYellow : "", causes[i].second,
                    absl::StrFormat(" %.0f %%", 100 * causes[i].first / wall), style_.colour ? kPlain : "");
  }
  if (const std::string gpu = GpuText(report.gpu, style_); !gpu.empty()) absl::StrAppend(&line, "; ", gpu);
  return line;
}

void Progress::Draw(const std::vector<std::string>& lines) {
  const TerminalSize size = SizeOfTerminal();
  const int shown = std::min(static_cast<int>(lines.size()), std::max(1, size.rows - 1));
  std::string out;
  if (drawn_lines_ > 0) absl::StrAppend(&out, "\r\x1b[", drawn_lines_, "A");
  for (int i = 0; i < shown; ++i) absl::StrAppend(&out, Cut(lines[i], size.columns - 1), "\x1b[K\n");
  absl::StrAppend(&out, "\x1b[J");
  std::fwrite(out.data(), 1, out.size(), stderr);
  drawn_lines_ = shown;
}

void Progress::Clear() {
  if (drawn_lines_ == 0) return;
  std::fprintf(stderr, "\r\x1b[%dA\x1b[J", drawn_lines_);
  drawn_lines_ = 0;
}

}  // namespace weft
