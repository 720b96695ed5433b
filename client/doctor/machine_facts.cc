#include "client/doctor/machine_facts.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/host_memory.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

int64_t HardLimit(decltype(RLIMIT_NOFILE) what) {
  rlimit limit{};
  if (getrlimit(what, &limit) != 0) return 0;
  return limit.rlim_max == RLIM_INFINITY ? -1 : static_cast<int64_t>(limit.rlim_max);
}

int Processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

// Reads "QUOTA PERIOD" of a control group, where it is the root of what the process sees, as in a container.
std::optional<double> ProcessorQuota(const std::string& root) {
  const std::vector<std::string> words =
      absl::StrSplit(Read(root + "/sys/fs/cgroup/cpu.max"), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  double quota = 0, period = 0;
  if (words.size() != 2 || !absl::SimpleAtod(words[0], &quota) || !absl::SimpleAtod(words[1], &period) ||
      period <= 0)
    return std::nullopt;
  return quota / period;
}

std::optional<int64_t> FreeBytes(const std::string& folder) {
  struct statvfs info {};
  if (statvfs(folder.c_str(), &info) != 0) return std::nullopt;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

std::optional<bool> ClockSynchronized() {
  timex clock{};  // changes nothing
  const int state = adjtimex(&clock);
  if (state < 0) return std::nullopt;
  return state != TIME_ERROR && (clock.status & STA_UNSYNC) == 0;
}

// Returns the version in "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun ..": the first word
// with a figure and a point.
std::string DriverVersion(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n'));
  for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    if (word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos)
      return std::string(word);
  }
  return "";
}

}  // namespace

MachineFacts ReadMachineFacts(const std::string& root) {
  MachineFacts facts;
  facts.processors = Processors();
  facts.processor_quota = ProcessorQuota(root);
  const HostMemory memory = ReadHostMemory(root);
  facts.memory_bytes = memory.Least();
  facts.memory_text = memory.Describe();
  facts.open_files = HardLimit(RLIMIT_NOFILE);
  facts.locked_bytes = HardLimit(RLIMIT_MEMLOCK);
  facts.shared_memory_bytes = FreeBytes(root + "/dev/shm");
  int scope = 0;
  const std::string yama = Read(root + "/proc/sys/kernel/yama/ptrace_scope");
  if (absl::SimpleAtoi(yama, &scope)) facts.ptrace_scope = scope;
  facts.gpu_driver = DriverVersion(Read(root + "/proc/driver/nvidia/version"));
  facts.gpus = static_cast<int>(NamesIn(root + "/proc/driver/nvidia/gpus").size());
  facts.rdma_devices = NamesIn(root + "/sys/class/infiniband");
  facts.clock_synchronized = ClockSynchronized();
  return facts;
}

}  // namespace weft
