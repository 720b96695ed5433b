#include "client/training/worker_processes.h"

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/host_memory.h"
#include "base/monotonic_clock.h"
#include "client/training/device_flags.h"

namespace weft {
namespace {

// Returns true for lines that a worker prints while all is well. No such line is the cause of its end.
bool IsInformation(absl::string_view line) {
  return absl::StrContains(line, kWithoutGraphs) || absl::StrContains(line, "weft-worker: note: ") ||
         absl::StrContains(line, "weft-worker: device ") || absl::StrContains(line, " info weft-worker: ");
}

// Returns the lines that are more than information.
std::vector<absl::string_view> Words(absl::string_view text) {
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  lines.erase(std::remove_if(lines.begin(), lines.end(), IsInformation), lines.end());
  return lines;
}

// Returns " (its last events are in FILE)" where the process has left a dump of its flight recorder as it
// ended (base/log/flight_recorder.h); else "".
std::string WhereEventsAre(absl::string_view text) {
  constexpr absl::string_view kWhere = ": the last events are in ";
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t at = line.find(kWhere);
    if (absl::StartsWith(line, "weft-worker: note: SIG") && at != absl::string_view::npos)
      return absl::StrCat(" (its last events are in ", line.substr(at + kWhere.size()), ")");
  }
  return "";
}

// Returns up to five of the lines before the last, "a | b".
std::string EarlierWords(const std::vector<absl::string_view>& lines) {
  constexpr size_t kLines = 5, kBytes = 400;
  std::vector<absl::string_view> earlier;
  for (size_t i = lines.size() - std::min(lines.size(), kLines + 1); i + 1 < lines.size(); ++i)
    earlier.push_back(lines[i].substr(0, kBytes));
  return absl::StrJoin(earlier, " | ");
}

// Returns a hint about memory: the kernel tells nothing to a process that it kills for want of memory, but
// counts such processes.
std::string HintOfMemory(const std::string& ending, int64_t kills_before) {
  const int64_t kills = CountMemoryKills() - kills_before;
  if (ending != "was killed by SIGKILL" || kills <= 0) return "";
  return absl::StrCat(
      " (memory was out: meanwhile the kernel has killed ", kills, kills == 1 ? " process" : " processes",
      " for want of it, on this machine or in this control group; ", ReadHostMemory().Describe(), ")");
}

}  // namespace

absl::Status WorkerProcesses::Start(int count, const std::string& coordinator,
                                    const std::vector<std::string>& further_arguments,
                                    const std::function<std::string(int)>& metrics) {
  const auto program = SiblingProgram("weft-worker");
  if (!program.ok()) return program.status();
  program_ = *program;
  coordinator_ = coordinator;
  further_arguments_ = further_arguments;
  metrics_ = metrics;
  memory_kills_ = CountMemoryKills();
  for (int number = 0; number < count; ++number) {
    if (absl::Status started = StartOne(number); !started.ok()) return started;
  }
  return absl::OkStatus();
}

absl::Status WorkerProcesses::StartOne(int number) {
  std::vector<std::string> command = {program_,
                                      "--coordinator",
                                      coordinator_,
                                      "--process",
                                      absl::StrCat(number),
                                      "--name",
                                      absl::StrCat("worker-", number),
                                      "--owned"};
  command.insert(command.end(), further_arguments_.begin(), further_arguments_.end());
  if (metrics_) command.insert(command.end(), {"--metrics", metrics_(number)});
  auto process = ChildProcess::Start(command, ChildProcess::Output::kJoinsError);
  if (!process.ok()) return process.status();
  processes_.push_back(*std::move(process));
  numbers_.push_back(number);
  reported_.push_back(false);
  device_reported_.push_back(false);
  return absl::OkStatus();
}

void WorkerProcesses::AddTo(std::vector<pollfd>* descriptors) const {
  for (const auto& process : processes_) process->AddTo(descriptors);
}

std::vector<WorkerProcesses::Ended> WorkerProcesses::Poll() {
  std::vector<Ended> ended;
  for (size_t i = 0; i < processes_.size(); ++i) {
    ChildProcess& process = *processes_[i];
    process.Poll();
    if (!process.ended() || reported_[i]) continue;
    reported_[i] = true;
    const std::vector<absl::string_view> words = Words(process.last_words());
    const std::string last = words.empty() ? "" : std::string(words.back().substr(0, 2000));
    ended.push_back({numbers_[i], process.pid(), process.code(), last,
                     absl::StrCat(process.Ending(), HintOfMemory(process.Ending(), memory_kills_),
                                  WhereEventsAre(process.last_words()), last.empty() ? "" : ": ", last),
                     EarlierWords(words)});
  }
  return ended;
}

std::vector<std::string> WorkerProcesses::TakeDevices() {
  std::vector<std::string> taken;
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (device_reported_[i]) continue;
    const std::string device = ReportedDevice(processes_[i]->last_words());
    device_reported_[i] = !device.empty();
    if (device_reported_[i] && devices_.insert(device).second) taken.push_back(device);
  }
  return taken;
}

std::vector<std::string> WorkerProcesses::TakeLinesAboutGraphs() {
  std::vector<std::string> taken;
  for (const auto& process : processes_) {
    for (std::string& line : LinesAboutGraphs(process->last_words()))
      if (about_graphs_.insert(line).second) taken.push_back(std::move(line));
  }
  return taken;
}

bool WorkerProcesses::any_running() const {
  return std::any_of(processes_.begin(), processes_.end(), [](const auto& p) { return !p->ended(); });
}

bool WorkerProcesses::AwaitEnd(double seconds, StopSignals* signals) {
  const double deadline = MonotonicSeconds() + seconds;
  while (true) {
    Poll();
    if (!any_running()) return true;
    const auto remaining = static_cast<int64_t>(1e3 * (deadline - MonotonicSeconds()));
    if (remaining <= 0) return false;
    std::vector<pollfd> descriptors;
    AddTo(&descriptors);
    if (signals != nullptr) descriptors.push_back({signals->descriptor(), POLLIN, 0});
    // A process may close its outputs some time before it ends, so each wait is short.
    poll(descriptors.data(), descriptors.size(), static_cast<int>(std::min<int64_t>(remaining, 20)));
    if (signals != nullptr && signals->Take() != 0) return false;
  }
}

void WorkerProcesses::EndOthers(const std::set<pid_t>& kept) const {
  for (const auto& process : processes_) {
    if (kept.count(process->pid()) == 0) process->Signal(SIGTERM);
  }
}

void WorkerProcesses::WaitForEnd(double seconds) { AwaitEnd(seconds, nullptr); }

void WorkerProcesses::Stop(double grace_seconds, StopSignals* signals) {
  for (const auto& process : processes_) process->Signal(SIGTERM);
  if (AwaitEnd(grace_seconds, signals)) return;
  for (const auto& process : processes_) process->Signal(SIGKILL);
  AwaitEnd(5, nullptr);
}

std::string WorkerProcesses::LastWords() const {
  const auto failed = [](const auto& p) { return p->ended() && !p->succeeded(); };
  const bool any_failed = std::any_of(processes_.begin(), processes_.end(), failed);
  std::string out;
  for (size_t i = 0; i < processes_.size(); ++i) {
    const ChildProcess& process = *processes_[i];
    if (any_failed && !failed(processes_[i])) continue;
    const std::vector<absl::string_view> lines = Words(process.last_words());
    if (lines.empty()) continue;
    absl::StrAppend(&out, "---- last words of process ", numbers_[i], " (pid ", process.pid(), "), which ",
                    process.ended() ? process.Ending() : "still runs", "\n", absl::StrJoin(lines, "\n"),
                    "\n");
  }
  return out;
}

}  // namespace weft
