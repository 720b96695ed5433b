#include "client/worker_processes.h"

#include <signal.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/device_flags.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

std::string LastLine(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  return lines.empty() ? "" : std::string(lines.back().substr(0, 2000));
}

}  // namespace

absl::Status WorkerProcesses::Start(int count, const std::string& coordinator,
                                    const std::vector<std::string>& further_arguments,
                                    const std::function<std::string(int)>& metrics) {
  const auto program = SiblingProgram("weft-worker");
  if (!program.ok()) return program.status();
  for (int i = 0; i < count; ++i) {
    std::vector<std::string> command = {
        *program, "--coordinator",           coordinator, "--process", absl::StrCat(i),
        "--name", absl::StrCat("worker-", i)};
    command.insert(command.end(), further_arguments.begin(), further_arguments.end());
    if (metrics) command.insert(command.end(), {"--metrics", metrics(i)});
    auto process = ChildProcess::Start(command, ChildProcess::Output::kJoinsError);
    if (!process.ok()) return process.status();
    processes_.push_back(*std::move(process));
    told_.push_back(false);
    device_told_.push_back(false);
  }
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
    if (!process.ended() || told_[i]) continue;
    told_[i] = true;
    const std::string words = LastLine(process.last_words());
    ended.push_back({process.pid(), process.code(), words,
                     absl::StrCat(process.Ending(), words.empty() ? "" : ": ", words)});
  }
  return ended;
}

std::vector<std::string> WorkerProcesses::TakeDevices() {
  std::vector<std::string> taken;
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (device_told_[i]) continue;
    const std::string device = DeviceSaid(processes_[i]->last_words());
    device_told_[i] = !device.empty();
    if (device_told_[i] && devices_.insert(device).second) taken.push_back(device);
  }
  return taken;
}

bool WorkerProcesses::any_running() const {
  return std::any_of(processes_.begin(), processes_.end(), [](const auto& p) { return !p->ended(); });
}

bool WorkerProcesses::AwaitEnd(double seconds, StopSignals* signals) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    Poll();
    if (!any_running()) return true;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    std::vector<pollfd> descriptors;
    AddTo(&descriptors);
    if (signals != nullptr) descriptors.push_back({signals->descriptor(), POLLIN, 0});
    // A process may close its outputs some time before it ends, so never for long.
    poll(descriptors.data(), descriptors.size(), static_cast<int>(std::min<int64_t>(left, 20)));
    if (signals != nullptr && signals->Take() != 0) return false;
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
    if (process.last_words().empty()) continue;
    absl::StrAppend(&out, "---- last words of process ", i, " (pid ", process.pid(), "), which ",
                    process.ended() ? process.Ending() : "still runs", "\n",
                    absl::StripTrailingAsciiWhitespace(process.last_words()), "\n");
  }
  return out;
}

}  // namespace weft
