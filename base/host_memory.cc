#include "base/host_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weft {
namespace {

// Larger than any limit; groups of version 1 write such a number for no limit.
constexpr int64_t kUnlimited = int64_t{1} << 60;

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<int64_t> ReadFigure(const std::string& path) {
  int64_t figure = 0;
  const std::string text(absl::StripAsciiWhitespace(ReadText(path)));
  if (!absl::SimpleAtoi(text, &figure)) return std::nullopt;  // fails for "max" too
  return figure;
}

// The folders of the control groups of this process, its own first, then those above: of version 2, else of
// version 1's memory controller.
struct Groups {
  std::vector<std::string> folders;
  bool version1 = false;
};

Groups GroupsOf(const std::string& root) {
  std::string own, base;
  Groups groups;
  for (const absl::string_view line : absl::StrSplit(ReadText(root + "/proc/self/cgroup"), '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    const bool memory = std::find(controllers.begin(), controllers.end(), "memory") != controllers.end();
    if (!memory && (!fields[1].empty() || groups.version1)) continue;
    groups.version1 = memory;
    own = std::string(fields[2]);
    base = root + (memory ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup");
  }
  if (base.empty()) return groups;
  // Within a container the kernel may show the path as seen from outside; then only the root is there.
  for (std::string path = own == "/" ? "" : own;; path = path.substr(0, path.rfind('/'))) {
    groups.folders.push_back(base + path);
    if (path.empty()) return groups;
  }
}

std::string Gib(int64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (int64_t{1} << 30));
}

}  // namespace

std::optional<int64_t> FigureOf(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, key) || line.empty() || line[0] != ' ') continue;
    line = absl::StripLeadingAsciiWhitespace(line);
    int64_t figure = 0;
    if (absl::SimpleAtoi(line.substr(0, line.find(' ')), &figure)) return figure;
  }
  return std::nullopt;
}

std::optional<int64_t> HostMemory::Least() const {
  if (!available.has_value()) return group_remaining;
  return group_remaining.has_value() ? std::min(*available, *group_remaining) : *available;
}

std::string HostMemory::Describe() const {
  std::vector<std::string> parts;
  if (available.has_value()) parts.push_back(Gib(*available) + " available on the machine");
  if (group_remaining.has_value()) parts.push_back(Gib(*group_remaining) + " left by its control group");
  return absl::StrJoin(parts, ", ");
}

HostMemory ReadHostMemory(const std::string& root) {
  HostMemory memory;
  if (const auto kib = FigureOf(ReadText(root + "/proc/meminfo"), "MemAvailable:"))
    memory.available = *kib * 1024;
  const Groups groups = GroupsOf(root);
  for (const std::string& folder : groups.folders) {
    const auto limit = ReadFigure(folder + (groups.version1 ? "/memory.limit_in_bytes" : "/memory.max"));
    const auto used = ReadFigure(folder + (groups.version1 ? "/memory.usage_in_bytes" : "/memory.current"));
    if (!limit.has_value() || !used.has_value() || *limit >= kUnlimited) continue;
    // The kernel drops cached pages of files that the group has read, so they count as free.
    const std::string stat = ReadText(folder + "/memory.stat");
    const int64_t cached =
        FigureOf(stat, groups.version1 ? "total_inactive_file" : "inactive_file").value_or(0);
    const int64_t remaining = std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - cached));
    memory.group_remaining = std::min(memory.group_remaining.value_or(remaining), remaining);
  }
  return memory;
}

int64_t CountMemoryKills(const std::string& root) {
  const Groups groups = GroupsOf(root);
  for (const std::string& folder : groups.folders) {
    const std::string events =
        ReadText(folder + (groups.version1 ? "/memory.oom_control" : "/memory.events"));
    if (const auto kills = FigureOf(events, "oom_kill")) return *kills;
  }
  return FigureOf(ReadText(root + "/proc/vmstat"), "oom_kill").value_or(0);
}

}  // namespace weft
