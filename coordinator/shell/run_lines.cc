#include "coordinator/shell/run_lines.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

std::string NameOf(const RunInfo& run) { return absl::StrCat("run ", run.id, " (", run.name, ")"); }

std::string StateLine(const RunInfo& run) {
  const char* verb = run.state == RunState::kCancelled ? " was " : IsFinal(run.state) ? " has " : " is ";
  return absl::StrCat(NameOf(run), verb, RunStateName(run.state), run.reason.empty() ? "" : ": ", run.reason);
}

}  // namespace

std::vector<LogEntry> RunLines::Of(const RunInfo& run) {
  std::vector<LogEntry> lines;
  const auto say = [&](LogSeverity severity, std::string text) {
    lines.push_back({severity, 0, std::move(text)});
  };
  Told& told = told_[run.id];
  if (run.restarts > std::exchange(told.restarts, run.restarts)) {
    say(LogSeverity::kWarning,
        absl::StrCat(NameOf(run), " begins again with step ", run.restart_step, ": ", run.restart_reason));
  }
  if (run.checkpoint_step > std::exchange(told.checkpoint_step, run.checkpoint_step))
    say(LogSeverity::kInfo, absl::StrCat(NameOf(run), " has the checkpoint of step ", run.checkpoint_step));
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

}  // namespace weft
