#include "coordinator/record/status_page.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/record/loss_watch.h"
#include "coordinator/record/run_view.h"
#include "schedules/drawing/drawing.h"
#include "schedules/drawing/drawing_bytes.h"
#include "schedules/drawing/drawing_loss.h"
#include "schedules/drawing/svg_text.h"

namespace weft {
namespace {

constexpr size_t kRunsShown = 200;
constexpr size_t kBoxesOfRank = 60;  // jobs of a rank in the timeline
constexpr int kRanksDrawn = 64;

constexpr char kStyle[] = R"(
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;max-width:1080px;padding:0 16px 40px;color:#222;background:#fff}
h1{font-size:22px;margin:20px 0 4px}h2{font-size:17px;margin:28px 0 6px}
a{color:#1d4f69}p{margin:4px 0}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 12px 3px 0;text-align:left;white-space:nowrap;border-bottom:1px solid #e6e3dc}
th{font-weight:600;color:#555}td.number,th.number{text-align:right}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:8px 0}dt{color:#555}dd{margin:0;overflow-wrap:anywhere}
progress{width:100%;height:10px}svg{width:100%;min-width:640px;height:auto;display:block}
.running{color:#2c6e1f}.failed{color:#a33a1d}.waiting,.preparing{color:#8a5a00}
code{overflow-wrap:anywhere;user-select:all;background:#f4f1ea;padding:1px 4px}
footer{margin-top:32px;color:#777;font-size:13px}
)";

std::string Page(const std::string& title, const std::string& body) {
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>", EscapeXml(title),
      "</title><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><style>", kStyle,
      "</style><script src=\"/status.js\" defer></script></head>\n<body>\n<main>\n", body,
      "</main>\n<footer>Weft. The page shows the present state every two seconds; "
      "<a href=\"/metrics\">metrics</a>, <a href=\"/status.json\">JSON</a>.</footer>\n</body></html>\n");
}

std::string Link(const std::string& run) {
  return absl::StrCat("<a href=\"/runs/", EscapeXml(run), "\">", EscapeXml(run), "</a>");
}

bool IsNumber(absl::string_view cell) {
  return !cell.empty() && (absl::ascii_isdigit(static_cast<unsigned char>(cell[0])) || cell == "-");
}

// Returns a table. Cells of the column `link`, if there is one, lead to the run that they name.
std::string Table(const TextCells& cells, const std::string& link = "") {
  std::string out = "<div class=\"scroll\"><table><tr>";
  for (size_t c = 0; c < cells.header.size(); ++c) {
    const bool number = !cells.rows.empty() && IsNumber(cells.rows[0][c]);
    absl::StrAppend(&out, number ? "<th class=\"number\">" : "<th>", EscapeXml(cells.header[c]), "</th>");
  }
  out += "</tr>\n";
  for (const auto& row : cells.rows) {
    out += "<tr>";
    for (size_t c = 0; c < row.size(); ++c) {
      const bool links = cells.header[c] == link && row[c] != "-";
      const bool state = cells.header[c] == "state";
      const std::string kind = IsNumber(row[c]) ? "number" : state ? EscapeXml(row[c]) : "";
      absl::StrAppend(&out, kind.empty() ? "<td>" : absl::StrCat("<td class=\"", kind, "\">"),
                      links ? Link(row[c]) : EscapeXml(row[c]), "</td>");
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

// The list of a run's figures.
class Figures {
 public:
  void Add(absl::string_view name, absl::string_view value) {
    if (value.empty()) return;
    absl::StrAppend(&out_, "<dt>", EscapeXml(name), "</dt><dd>", EscapeXml(value), "</dd>\n");
  }
  std::string Text() const { return absl::StrCat("<dl>\n", out_, "</dl>\n"); }

 private:
  std::string out_;
};

std::string FiguresOf(const RunInfo& run, int64_t now_ns) {
  Figures figures;
  figures.Add("state", RunStateName(run.state));
  figures.Add("why", run.reason);
  figures.Add("schedule", absl::StrCat(run.schedule, ", ", RanksOnProcesses(run)));
  figures.Add("loss", run.has_loss ? LossText(run.loss) : "");
  if (run.validation.has_value()) figures.Add("validation", ValidatedText(*run.validation));
  if (run.started_ns != 0) figures.Add("time", DurationText(run, now_ns));
  if (run.checkpoint_step >= 0) figures.Add("checkpoint", absl::StrCat("of step ", run.checkpoint_step));
  figures.Add("not saved", run.checkpoint_failure);
  if (run.restarts > 0)
    figures.Add("restarts", absl::StrCat(run.restarts, "; the last: ", run.restart_reason));
  figures.Add("folder", run.output);
  for (const std::string& member : run.members) figures.Add("worker", member);
  return figures.Text();
}

std::string Picture(const std::string& svg) {
  return absl::StrCat("<div class=\"scroll\">", svg, "</div>\n");
}

std::string Timeline(const RunRecords::Look& look) {
  DrawingOptions drawing;
  drawing.ranks = std::min(look.run.ranks, kRanksDrawn);
  drawing.stages = look.stages;
  drawing.time = DrawnTime::kSeconds;
  std::vector<DrawnJob> jobs =
      LastSteps(look.jobs, kBoxesOfRank * static_cast<size_t>(std::max(1, look.run.ranks)));
  jobs.erase(
      std::remove_if(jobs.begin(), jobs.end(), [&](const DrawnJob& j) { return j.rank >= drawing.ranks; }),
      jobs.end());
  if (jobs.empty()) return "";
  const auto [first, last] = std::minmax_element(
      jobs.begin(), jobs.end(), [](const DrawnJob& a, const DrawnJob& b) { return a.job.step < b.job.step; });
  drawing.title = "The last steps";
  drawing.subtitle = first->job.step == last->job.step
                         ? absl::StrCat("step ", last->job.step)
                         : absl::StrCat("steps ", first->job.step, " to ", last->job.step);
  return Picture(DrawSvg(jobs, drawing));
}

std::string Loss(const RunHistory& history) {
  if (history.losses().empty()) return "";
  return Picture(DrawLoss({"Loss", "", history.losses(), history.validations()}));
}

std::string Memory(const RunHistory& history) {
  if (history.bytes().size() < 2) return "";
  return Picture(DrawLiveBytes(history.bytes(), {"Memory", "all ranks, by class"}));
}

// Returns the command that writes the run's trace, which one tap selects. The page has no trace itself: one
// is read from the disk, behind an answer of the run's workers, which the thread of the pages does not wait
// for.
std::string TraceCommand(const RunInfo& run) {
  if (run.started_ns == 0) return "";
  return absl::StrCat(
      "<h2>Trace</h2>\n<p>Written for ui.perfetto.dev and Chrome by <code id=\"trace\">weft trace ", run.id,
      " --perfetto run", run.id, ".json</code></p>\n");
}

}  // namespace

std::string StatusPage(const std::vector<RunInfo>& runs, const std::vector<WorkerInfo>& workers,
                       int64_t now_ns) {
  std::vector<RunInfo> shown(runs.rbegin(), runs.rend());
  std::stable_partition(shown.begin(), shown.end(), [](const RunInfo& r) { return !IsFinal(r.state); });
  const size_t live =
      std::count_if(runs.begin(), runs.end(), [](const RunInfo& r) { return !IsFinal(r.state); });
  if (shown.size() > std::max(kRunsShown, live)) shown.resize(std::max(kRunsShown, live));
  std::string body =
      absl::StrCat("<h1>Weft</h1>\n<p>", live, live == 1 ? " run goes on, " : " runs go on, ", workers.size(),
                   workers.size() == 1 ? " worker" : " workers", " connected</p>\n<h2>Runs</h2>\n");
  body += runs.empty() ? "<p>No run was submitted yet.</p>\n" : Table(RunsCells(shown, now_ns), "run");
  for (const RunInfo& r : shown) {
    if (r.state != RunState::kWaiting || r.reason.empty()) continue;
    absl::StrAppend(&body, "<p class=\"waiting\">run ", Link(absl::StrCat(r.id)),
                    " waits: ", EscapeXml(r.reason), "</p>\n");
  }
  if (shown.size() < runs.size())
    absl::StrAppend(&body, "<p>and ", runs.size() - shown.size(), " older runs that have ended</p>\n");
  body += "<h2>Workers</h2>\n";
  body += workers.empty() ? "<p>No worker is connected.</p>\n" : Table(WorkersCells(workers), "run");
  return Page("Weft", body);
}

std::string RunPage(const RunInfo& run, const std::optional<RunRecords::Look>& look, int64_t now_ns) {
  const bool goes_on = !IsFinal(run.state);
  const std::vector<RankReport>& reports = look.has_value() && goes_on ? look->run.reports : run.reports;
  std::string body =
      absl::StrCat("<p><a href=\"/\">All runs</a></p>\n<h1>Run ", run.id, ": ", EscapeXml(run.name),
                   "</h1>\n<p>step ", run.steps_done, " of ", run.steps, "</p>\n<progress max=\"", run.steps,
                   "\" value=\"", run.steps_done, "\"></progress>\n", FiguresOf(run, now_ns));
  if (look.has_value()) body += Loss(look->history);
  if (!reports.empty()) {
    absl::StrAppend(&body, "<h2>Busy and idle, by cause</h2>\n", Table(RankTimeCells(reports)));
  }
  if (look.has_value()) absl::StrAppend(&body, Timeline(*look), Memory(look->history));
  if (!reports.empty()) absl::StrAppend(&body, "<h2>Most memory</h2>\n", Table(RankByteCells(reports)));
  body += TraceCommand(run);
  if (!goes_on && !run.output.empty())
    absl::StrAppend(&body, "<p>Its pictures and figures are in ", EscapeXml(run.output), ".</p>\n");
  return Page(absl::StrCat("Run ", run.id), body);
}

std::string ProblemPage(const std::string& problem) {
  return Page("Weft", absl::StrCat("<h1>Weft</h1>\n<p class=\"failed\">", EscapeXml(problem), "</p>\n"));
}

std::string StatusScript() {
  return R"(setInterval(async () => {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href);
    const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
    document.querySelector('main').replaceWith(page.querySelector('main'));
    document.body.dataset.shownAnew = Number(document.body.dataset.shownAnew ?? 0) + 1;
  } catch { /* the coordinator does not answer; the last state stays */ }
}, 2000);
)";
}

}  // namespace weft
