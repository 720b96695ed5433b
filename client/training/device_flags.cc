#include "client/training/device_flags.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "worker/shell/compute/device_library.h"

namespace weft {

std::vector<std::string> DeviceFlags::Arguments() const {
  std::vector<std::string> arguments;
  if (device != "cpu") arguments = {"--device", device};
  if (!graphs) arguments.push_back("--no-graphs");
  if (nvtx) arguments.push_back("--nvtx");
  return arguments;
}

absl::Status DeviceFlags::Check() const {
  const auto choice = ParseDeviceChoice(device);
  return choice.ok() ? CheckDevice(*choice, DefaultDeviceSearch()) : choice.status();
}

std::string ReportedDevice(absl::string_view words) {
  const size_t begin = words.find(absl::StrCat(kWorkerSays, "device "));
  if (begin == absl::string_view::npos) return "";
  const absl::string_view line = words.substr(begin + kWorkerSays.size());
  const size_t end = line.find('\n');
  return end == absl::string_view::npos ? "" : std::string(line.substr(0, end));
}

std::vector<std::string> LinesAboutGraphs(absl::string_view words) {
  std::vector<std::string> about;
  if (!absl::StrContains(words, kWithoutGraphs)) return about;
  std::vector<absl::string_view> lines = absl::StrSplit(words, '\n');
  lines.pop_back();
  for (absl::string_view line : lines) {
    if (absl::StrContains(line, kWithoutGraphs) && absl::ConsumePrefix(&line, "weft: "))
      about.emplace_back(line);
  }
  return about;
}

}  // namespace weft
