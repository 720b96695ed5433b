#include "client/training/worker_task.h"

#include <poll.h>
#include <signal.h>

#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "client/training/device_flags.h"
#include "nlohmann/json.hpp"

namespace weft {

absl::Status WorkerTask::Start(const std::string& flag, const RunSpec& spec,
                               const std::vector<std::string>& further_arguments) {
  const auto program = SiblingProgram("weft-worker");
  if (!program.ok()) return program.status();
  auto scratch = ScratchFolder::Make();
  if (!scratch.ok()) return scratch.status();
  scratch_ = *std::move(scratch);
  const std::string file = *scratch_ / "spec.json";
  if (!(std::ofstream(file) << ToJson(spec).dump() << std::flush)) {
    return absl::UnavailableError(absl::StrCat("cannot write ", file));
  }
  std::vector<std::string> arguments = {*program, flag, file};
  arguments.insert(arguments.end(), further_arguments.begin(), further_arguments.end());
  auto process = ChildProcess::Start(arguments, ChildProcess::Output::kCaptured);
  if (!process.ok()) return process.status();
  process_ = *std::move(process);
  return absl::OkStatus();
}

absl::Status WorkerTask::Watch(const std::function<absl::Status(const nlohmann::json&)>& on_line,
                               const std::function<void()>& on_wait) {
  std::string stopped_by;
  double until = 0;  // by MonotonicSeconds; counts once the process has been asked to stop
  while (!process_->ended()) {
    std::vector<pollfd> descriptors = {{signals_.descriptor(), POLLIN, 0}};
    process_->AddTo(&descriptors);
    poll(descriptors.data(), descriptors.size(), 250);
    const int signal = signals_.Take();
    const bool again = signal != 0 && !stopped_by.empty();
    if (signal != 0) stopped_by = absl::StrCat("stopped by SIG", sigabbrev_np(signal));
    const std::optional<double> seconds =
        signal != 0 && !again && ask_ != nullptr ? ask_() : std::optional<double>();
    if (seconds.has_value()) {
      process_->Signal(SIGTERM);
      until = MonotonicSeconds() + *seconds;
    } else if (signal != 0 || (!stopped_by.empty() && MonotonicSeconds() > until)) {
      process_->Signal(SIGKILL);
      return absl::CancelledError(stopped_by);
    }
    process_->Poll();
    if (absl::Status taken = TakeLines(on_line); !taken.ok()) return taken;
    on_wait();
  }
  if (!stopped_by.empty() && !process_->succeeded()) return absl::CancelledError(stopped_by);
  return process_->succeeded() ? absl::OkStatus() : absl::InternalError(process_->Ending());
}

absl::Status WorkerTask::TakeLines(const std::function<absl::Status(const nlohmann::json&)>& on_line) {
  lines_ += process_->TakeOutput();
  size_t begin = 0;
  absl::Status status;
  for (size_t end = lines_.find('\n'); end != std::string::npos && status.ok();
       end = lines_.find('\n', begin)) {
    const auto line = nlohmann::json::parse(lines_.begin() + static_cast<std::ptrdiff_t>(begin),
                                            lines_.begin() + static_cast<std::ptrdiff_t>(end), nullptr,
                                            /*allow_exceptions=*/false);
    begin = end + 1;
    status = line.is_object() ? on_line(line)
                              : absl::InternalError("weft-worker wrote a line that is not a JSON object");
  }
  lines_.erase(0, begin);
  return status;
}

std::string WorkerTask::TakeDevice() {
  if (device_taken_) return "";
  std::string device = ReportedDevice(process_->last_words());
  device_taken_ = !device.empty();
  return device;
}

void WorkerTask::PrintLastWords() {
  process_->Poll();
  const std::string& words = process_->last_words();
  std::fwrite(words.data(), 1, words.size(), stderr);
}

}  // namespace weft
