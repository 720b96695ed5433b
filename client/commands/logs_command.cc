#include "client/commands/logs_command.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/monotonic_clock.h"
#include "base/run_files.h"
#include "coordinator/record/log_file.h"

namespace weft {
namespace {

constexpr absl::Duration kBetweenAnswers = absl::Milliseconds(500);

void EndAtInterrupt(int) { _exit(kExitInterrupted); }

ExitCode Print(const LogsOptions& options, const RunLogLine& line) {
  return PrintData(absl::StrCat(options.coordinator.json ? RunLogJson(line) : RunLogText(line), "\n"));
}

ExitCode PrintFolder(const LogsOptions& options) {
  if (options.follow)
    return Fail(kExitUsage,
                "logs: -f follows a run of a coordinator, and not a folder; give the run's number");
  const auto lines = ReadLogFile(options.run);
  if (!lines.ok()) return Fail(kExitBadConfiguration, lines.status().message());
  for (const RunLogLine& line : *lines) {
    if (!Concerns(line, options.rank)) continue;
    if (const ExitCode printed = Print(options, line); printed != kExitOk) return printed;
  }
  return kExitOk;
}

// Asks for what follows, again and again: for all that is kept, or until the run has ended. Its last lines
// may come a moment after its end.
ExitCode PrintRunLog(const LogsOptions& options, RunsClient& client, uint64_t run) {
  RunsClient::LogPlace place;
  RunInfo followed;
  int64_t lost = 0;  // time since when no answer came
  bool answered = false, ended = false;
  while (true) {
    const RunsClient::LogPlace before = place;
    auto part = client.Logs(run, options.rank, &place);
    if (part.ok() && place.log != before.log) {
      // The log of another coordinator, whose run of this number may be another.
      const auto now = client.Get(run);
      if (now.ok() && !IsSameRun(followed, *now)) return Fail(RunIsGone(run));
      if (now.ok()) {
        followed = *now;
      } else {
        part = now.status();
        place = before;
      }
    }
    if (!part.ok()) {
      const int64_t now = MonotonicNow();
      if (lost == 0) lost = now;
      const bool waits = options.follow && answered && now - lost < kPatienceNs &&
                         (absl::IsUnavailable(part.status()) || absl::IsDeadlineExceeded(part.status()));
      if (!waits) return Fail(part.status());
      absl::SleepFor(kBetweenAnswers);
      continue;
    }
    lost = 0;
    if (part->dropped > 0 && answered)
      PrintMessage(
          absl::StrCat(part->dropped, " lines are not kept any more; the run's log.jsonl may have them"));
    answered = true;
    for (const RunLogLine& line : part->lines) {
      if (const ExitCode printed = Print(options, line); printed != kExitOk) return printed;
    }
    if (part->more) continue;
    if (!options.follow || ended) return kExitOk;
    ended = part->ended;
    absl::SleepFor(kBetweenAnswers);
  }
}

}  // namespace

ExitCode RunLogs(const LogsOptions& options) {
  uint64_t run = 0;
  if (!absl::SimpleAtoi(options.run, &run) || run == 0) {
    std::error_code error;
    if (std::filesystem::is_directory(options.run, error)) return PrintFolder(options);
    if (const absl::Status readable = CheckReadable(options.run); !readable.ok())
      return Fail(kExitBadConfiguration, readable.message());
    return Fail(kExitUsage,
                absl::StrCat("logs: \"", options.run.substr(0, 200),
                             "\" is neither the number of a run, as weft ls shows it, nor a folder"));
  }
  auto client = ConnectTo(options.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  signal(SIGINT, EndAtInterrupt);
  return PrintRunLog(options, **client, run);
}

}  // namespace weft
