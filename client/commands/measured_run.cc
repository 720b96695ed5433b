#include "client/commands/measured_run.h"

#include <poll.h>
#include <signal.h>
#include <string.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/training/child_process.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kTrainingStopGrace = std::chrono::milliseconds(1900);  // a training ends within two seconds

// Returns the last line that it wrote, without the prefix of every message.
std::string LastWord(const ChildProcess& child) {
  std::string word = child.Ending();
  for (const absl::string_view line : absl::StrSplit(child.last_words(), '\n')) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (!text.empty()) word = std::string(text);
  }
  absl::string_view text = word;
  absl::ConsumePrefix(&text, "weft: ");
  return std::string(text);
}

// Waits until the program has ended. Returns the signal that came meanwhile, or 0; after a signal it is
// stopped.
int AwaitEnd(ChildProcess& child, StopSignals* signals) {
  int stopped = 0;
  Clock::time_point kill_at = Clock::time_point::max();
  while (!child.ended()) {
    std::vector<pollfd> descriptors = {{signals->descriptor(), POLLIN, 0}};
    child.AddTo(&descriptors);
    poll(descriptors.data(), descriptors.size(), 200);
    child.Poll();
    child.TakeOutput();  // its summary is for people
    if (const int signal = signals->Take(); signal != 0) {
      // A second signal ends the wait.
      kill_at = stopped == 0 ? Clock::now() + kTrainingStopGrace : Clock::now();
      stopped = signal;
      child.Signal(SIGTERM);
    }
    if (Clock::now() >= kill_at) child.Signal(SIGKILL);
  }
  return stopped;
}

absl::StatusOr<Json> ReadSummary(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Json summary = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (summary.is_object()) return summary;
  return absl::InternalError(absl::StrCat("cannot read ", path));
}

}  // namespace

absl::StatusOr<MeasuredRun> TrainAndMeasure(const RunSpec& run, int processes, const DeviceFlags& device,
                                            const std::string& folder, StopSignals* signals) {
  std::error_code error;
  fs::create_directories(folder, error);
  const std::string file = folder + "/run.yaml";
  const bool again = fs::exists(file, error);  // true if the folder is of an earlier comparison
  std::ofstream out(file);
  out << ToJson(run).dump(2) << "\n";  // JSON is YAML
  out.close();
  if (!out) return absl::FailedPreconditionError(absl::StrCat("cannot write ", file));
  const auto program = SiblingProgram("weft");
  if (!program.ok()) return program.status();
  std::vector<std::string> words = {*program, "train", file, "--out", folder};
  if (again) words.emplace_back("--overwrite");
  if (processes > 0) words.insert(words.end(), {"--processes", absl::StrCat(processes)});
  const std::vector<std::string> on = device.Arguments();
  words.insert(words.end(), on.begin(), on.end());
  auto child = ChildProcess::Start(words, ChildProcess::Output::kCaptured);
  if (!child.ok()) return child.status();
  if (const int signal = AwaitEnd(**child, signals); signal != 0) {
    return absl::CancelledError(absl::StrCat("stopped by SIG", sigabbrev_np(signal)));
  }
  if (!(*child)->succeeded()) return absl::FailedPreconditionError(LastWord(**child));
  MeasuredRun measured;
  auto summary = ReadSummary(folder + "/summary.json");
  if (!summary.ok()) return summary.status();
  measured.summary = *std::move(summary);
  auto trace = ReadTrace(folder + "/trace.json");
  if (!trace.ok()) return absl::InternalError(trace.status().message());
  measured.trace = *std::move(trace);
  return measured;
}

ExitCode EndMeasuring(const absl::Status& status) {
  if (!absl::IsCancelled(status)) return Fail(status);
  PrintMessage(status.message());
  return kExitInterrupted;
}

}  // namespace weft
