#include "coordinator/shell/run_lines.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

std::string NameOf(const RunInfo& run) { return absl::StrCat("run ", run.id, " (", run.name, ")"); }

// Returns "process 0 (..), process 1 (..) and 6 more".
std::string MembersText(const std::vector<std::string>& members) {
  constexpr size_t kShown = 4;
  const size_t shown = std::min(members.size(), kShown);
  return absl::StrCat(absl::StrJoin(members.begin(), members.begin() + static_cast<int64_t>(shown), ", "),
                      shown == members.size() ? "" : absl::StrCat(" and ", members.size() - shown, " more"));
}

std::string StateLine(const RunInfo& run) {
  const char* verb = run.state == RunState::kCancelled || run.state == RunState::kSubmitted ? " was "
                     : IsFinal(run.state)                                                   ? " has "
                                                                                            : " is ";
  std::string line = absl::StrCat(NameOf(run), verb, RunStateName(run.state));
  if (run.state == RunState::kPreparing && !run.members.empty())
    absl::StrAppend(&line, " on ", MembersText(run.members));
  if (!run.reason.empty()) absl::StrAppend(&line, ": ", run.reason);
  return line;
}

}  // namespace

std::vector<RunLine> RunLines::Of(const RunInfo& run) {
  std::vector<RunLine> lines;
  const auto say = [&](LogSeverity severity, std::string text, bool routine = false) {
    lines.push_back({{severity, 0, std::move(text)}, routine});
  };
  Told& told = told_[run.id];
  if (run.restarts > std::exchange(told.restarts, run.restarts)) {
    say(LogSeverity::kWarning,
        absl::StrCat(NameOf(run), " begins again with step ", run.restart_step, ": ", run.restart_reason));
  }
  if (run.checkpoint_step > std::exchange(told.checkpoint_step, run.checkpoint_step))
    say(LogSeverity::kInfo, absl::StrCat(NameOf(run), " has the checkpoint of step ", run.checkpoint_step),
        /*routine=*/true);
  if (run.failed_checkpoints > std::exchange(told.failed_checkpoints, run.failed_checkpoints))
    say(LogSeverity::kWarning, absl::StrCat(NameOf(run), ": ", run.checkpoint_failure));
  std::string state = StateLine(run);
  if (told.state != state) {
    told.state = state;
    say(run.state == RunState::kFailed ? LogSeverity::kWarning : LogSeverity::kInfo, std::move(state));
  }
  if (IsFinal(run.state)) told_.erase(run.id);
  return lines;
}

LogEntry LineOf(const WorkerChange& change) {
  constexpr const char* kVerbs[] = {" joined", " left", " was lost", " is still busy", " is free again"};
  const bool bad = change.kind == WorkerChange::Kind::kLost || change.kind == WorkerChange::Kind::kBusy;
  return {bad ? LogSeverity::kWarning : LogSeverity::kInfo, 0,
          absl::StrCat(change.label, kVerbs[static_cast<int>(change.kind)], change.reason.empty() ? "" : ": ",
                       change.reason)};
}

LogEntry LineOf(const SlowJob& slow) {
  return {LogSeverity::kWarning, 0, absl::StrCat("run ", slow.run, ": ", slow.sentence)};
}

LogEntry LineOf(const Replanned& replanned) {
  return {LogSeverity::kInfo, 0,
          absl::StrCat("run ", replanned.run, " has the schedule ", replanned.plan->schedule, " in place of ",
                       replanned.former, " from step ", replanned.step, " on: ", replanned.reason)};
}

}  // namespace weft
