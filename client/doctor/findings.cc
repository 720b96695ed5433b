#include "client/doctor/findings.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

constexpr int64_t kGiB = 1 << 30;
constexpr int64_t kDay = 24 * 3600;
constexpr int64_t kFewFiles = 4096;          // a worker has a connection or two for each peer
constexpr int64_t kLittleMemory = 2 * kGiB;  // LibTorch alone takes a good part of one
constexpr int64_t kSoon = 14 * kDay;
constexpr double kClockSeconds = 1;  // by which times in logs and listings may differ

std::string Name(Severity severity) {
  switch (severity) {
    case Severity::kOk:
      return "ok";
    case Severity::kSlow:
      return "note";
    case Severity::kBad:
      return "bad";
  }
  return "";
}

// Returns the finding, which is `otherwise` with the advice unless it is fine.
Finding Judge(bool fine, Severity otherwise, std::string name, std::string found, std::string needed,
              const std::string& advice) {
  return {fine ? Severity::kOk : otherwise, std::move(name), std::move(found), std::move(needed),
          fine ? "" : advice};
}

std::string LimitText(int64_t bytes) {
  return bytes < 0 ? "no limit" : absl::StrCat("at most ", FormatBytes(static_cast<double>(bytes)));
}

Finding Processors(const MachineFacts& f) {
  std::string found = absl::StrCat(f.processors);
  if (f.processor_quota.has_value())
    found += absl::StrFormat(", of which the group may use %.1f", *f.processor_quota);
  const double usable = std::min<double>(f.processors, f.processor_quota.value_or(f.processors));
  return Judge(usable >= 1, Severity::kSlow, "processors", found, "1",
               "less than one processor: every job waits for its turn");
}

Finding Memory(const MachineFacts& f) {
  return Judge(f.memory_bytes.value_or(kLittleMemory) >= kLittleMemory, Severity::kBad, "memory",
               f.memory_text, "2 GiB", "a worker needs 2 GiB before it has a model");
}

Finding OpenFiles(const MachineFacts& f) {
  const bool fine = f.open_files < 0 || f.open_files >= kFewFiles;
  return Judge(fine, Severity::kBad, "open files",
               f.open_files < 0 ? "no limit" : absl::StrCat("at most ", f.open_files),
               absl::StrCat(kFewFiles),
               absl::StrCat("each worker and client takes one, and each peer of a worker some: ulimit -Hn ",
                            kFewFiles, " or more (LimitNOFILE= of a unit)"));
}

Finding LockedMemory(const MachineFacts& f) {
  const bool needed = !f.rdma_devices.empty();
  return Judge(!needed || f.locked_bytes < 0, Severity::kSlow, "locked memory", LimitText(f.locked_bytes),
               needed ? "no limit, for RDMA" : "",
               "RDMA devices need memory that is locked: ulimit -l unlimited (LimitMEMLOCK=infinity of a "
               "unit)");
}

Finding SharedMemory(const MachineFacts& f) {
  const std::string needed = f.gpus < 2 ? "" : "1 GiB, for several GPUs";
  if (!f.shared_memory_bytes.has_value())
    return {Severity::kSlow, "/dev/shm", "not there", "a folder in memory",
            "GPUs without a direct path exchange tensors through it: mount a tmpfs there"};
  return Judge(*f.shared_memory_bytes >= kGiB || f.gpus < 2, Severity::kSlow, "/dev/shm",
               absl::StrCat(FormatBytes(static_cast<double>(*f.shared_memory_bytes)), " free"), needed,
               "several GPUs exchange tensors through it: 1 GiB or more (docker run --shm-size=1g)");
}

Finding Tracing(const MachineFacts& f) {
  if (!f.ptrace_scope.has_value()) return {Severity::kOk, "reading other processes", "no restriction"};
  return Judge(
      *f.ptrace_scope <= 1, Severity::kSlow, "reading other processes",
      absl::StrCat("kernel.yama.ptrace_scope is ", *f.ptrace_scope), "0 or 1",
      "workers of one machine copy large tensors through sockets then: sysctl kernel.yama.ptrace_scope=1");
}

Finding Clock(const MachineFacts& f) {
  if (!f.clock_synchronized.has_value()) return {Severity::kOk, "clock", "the kernel does not say"};
  return Judge(*f.clock_synchronized, Severity::kSlow, "clock",
               *f.clock_synchronized ? "synchronized" : "not synchronized, says the kernel",
               "synchronized by NTP or PTP",
               "times in logs and listings, and whether certificates are valid, follow it: run chrony or "
               "systemd-timesyncd (in a container: on its host)");
}

Finding Rdma(const MachineFacts& f) {
  return {Severity::kOk, "RDMA devices",
          f.rdma_devices.empty() ? "none: tensors between machines go by TCP"
                                 : absl::StrJoin(f.rdma_devices, ", ")};
}

Finding Gpus(const MachineFacts& f) {
  if (f.gpu_driver.empty()) return {Severity::kOk, "GPUs", "none: workers compute on processors"};
  return Judge(f.gpus > 0, Severity::kBad, "GPUs", absl::StrCat(f.gpus, ", NVIDIA driver ", f.gpu_driver),
               "1, where the driver is",
               "the driver is there and shows no GPU: pass one to the container, or look into dmesg");
}

Finding CoordinatorPort(const PortFacts& f) {
  const std::string needed = "free, or a coordinator's";
  if (f.is_asked)
    return {Severity::kOk, "coordinator's port", absl::StrCat(f.listen, ": the coordinator's"), needed};
  if (f.listen_problem.empty())
    return {Severity::kOk, "coordinator's port", absl::StrCat(f.listen, ": free"), needed};
  return {Severity::kSlow, "coordinator's port", f.listen_problem, needed,
          "if no coordinator of yours listens there, none can be started: weft-coordinator --listen with "
          "another port"};
}

Finding DataPorts(const PortFacts& f) {
  if (f.data_ports->empty()) return {Severity::kOk, "data ports", "any that is free (--data-ports)"};
  return Judge(f.free_data_ports > 0, Severity::kBad, "data ports",
               absl::StrCat(*f.data_ports, ": ", f.free_data_ports, " of ", f.all_data_ports, " free"),
               "one for each worker process",
               "no worker can be reached from other machines: give --data-ports a range that is free here, "
               "and that the firewall lets through");
}

Finding CoordinatorsClock(const CoordinatorFacts& f) {
  const std::string needed = absl::StrCat("within ", kClockSeconds, " s");
  if (!f.clock_ahead.has_value())
    return {Severity::kOk, "coordinator's clock", "it is of a release that does not tell it"};
  const double difference = std::abs(*f.clock_ahead);
  return Judge(difference - f.clock_error <= kClockSeconds, Severity::kSlow, "coordinator's clock",
               absl::StrFormat("%s %s this one's, to within %s", FormatSeconds(difference),
                               *f.clock_ahead < 0 ? "behind" : "before", FormatSeconds(f.clock_error)),
               needed,
               "times of logs and listings do not fit together, and a new certificate may not be valid yet "
               "on one side: synchronize both machines by NTP");
}

// Returns "0.1.0 (2), not told (1)".
std::string CountsText(const std::map<std::string, int>& counts) {
  return absl::StrJoin(counts, "; ", [](std::string* out, const auto& count) {
    absl::StrAppend(out, count.first.empty() ? "not told" : count.first, " (", count.second, ")");
  });
}

Finding Releases(const CoordinatorFacts& f) {
  bool same = f.release == f.own_release;
  for (const auto& [release, number] : f.releases) same &= release == f.own_release;
  std::string found =
      absl::StrCat("weft ", f.own_release, ", coordinator ", f.release.empty() ? "not told" : f.release);
  if (!f.releases.empty()) absl::StrAppend(&found, ", workers ", CountsText(f.releases));
  return Judge(same, Severity::kSlow, "releases", found, "one everywhere",
               "releases work together, but an older one ignores what it does not know: upgrade those that "
               "are behind, the coordinator first");
}

Finding Libraries(const CoordinatorFacts& f) {
  return Judge(f.libraries.size() < 2, Severity::kSlow, "workers' libraries", CountsText(f.libraries),
               "the same on all workers",
               "a run with ranks on several of them may end with other bits, or fail: give all workers the "
               "same LibTorch, UCX and gRPC");
}

Finding Workers(const CoordinatorFacts& f) {
  const std::string found = absl::StrCat(f.workers, " connected, ", f.free_workers, " free");
  if (f.silent_workers > 0) {
    return {Severity::kSlow, "workers", found, "all answer",
            absl::StrCat(f.silent_workers, " of them say nothing: weft workers shows which")};
  }
  return Judge(f.workers > 0, Severity::kSlow, "workers", found, "1",
               "runs wait until workers are there: weft-worker --coordinator ADDRESS");
}

// Returns the widths of the columns of a table: as wide as the longest cell each, and the last three narrower
// where there is no room. Their cells are wrapped then.
std::vector<int> WidthsOf(const std::vector<std::array<std::string, 5>>& rows, int width) {
  std::vector<int> widths(5, 0);
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c)
      widths[c] = std::max(widths[c], static_cast<int>(TextColumns(row[c])));
  }
  constexpr int kGaps = 2 * 4, kLeast = 12;
  const int room = std::max(width - kGaps - widths[0] - widths[1], 3 * kLeast);
  widths[3] = std::min(widths[3], std::max(kLeast, room / 4));
  widths[2] = std::min(widths[2], std::max(kLeast, (room - widths[3]) / 2));
  widths[4] = std::min(widths[4], std::max(kLeast, room - widths[2] - widths[3]));
  return widths;
}

}  // namespace

std::vector<Finding> JudgeMachine(const MachineFacts& facts) {
  return {Processors(facts), Memory(facts), OpenFiles(facts), LockedMemory(facts), SharedMemory(facts),
          Tracing(facts),    Clock(facts),  Rdma(facts),      Gpus(facts)};
}

std::vector<Finding> JudgePorts(const PortFacts& facts) {
  std::vector<Finding> findings;
  if (!facts.listen.empty()) findings.push_back(CoordinatorPort(facts));
  if (facts.data_ports.has_value()) findings.push_back(DataPorts(facts));
  return findings;
}

Finding JudgeProgram(const std::string& name, const ProgramFacts& facts, const std::string& release) {
  const std::string needed = absl::StrCat("it starts; release ", release);
  if (!facts.is_there) return {Severity::kOk, name, "not beside this weft"};
  if (!facts.problem.empty()) return {Severity::kBad, name, "does not start", needed, facts.problem};
  return Judge(facts.release == release, Severity::kSlow, name,
               absl::StrCat(facts.release, facts.libraries.empty() ? "" : ": ", facts.libraries), needed,
               "it is of another release than this weft: install both from one package");
}

Finding JudgeCertificates(const CertificateFacts& facts) {
  const std::string needed = "valid for more than 14 days";
  if (facts.folder.empty())
    return {Severity::kOk, "certificates", "none", "none on a unix socket or loopback"};
  if (!facts.problem.empty()) return {Severity::kBad, "certificates", facts.folder, needed, facts.problem};
  const bool expires = facts.seconds_left != INT64_MAX;
  const std::string found = absl::StrCat(
      facts.identity, expires ? absl::StrCat(", valid for ", facts.seconds_left / kDay, " days") : "");
  return Judge(facts.seconds_left > kSoon, Severity::kSlow, "certificates", found, needed,
               "they expire soon: weft certs init makes new ones, which programs take without a restart");
}

std::vector<Finding> JudgeCoordinator(const CoordinatorFacts& facts) {
  if (!facts.problem.empty())
    return {{Severity::kBad, "coordinator", facts.address, "an answer", facts.problem}};
  std::vector<Finding> findings = {
      {Severity::kOk, "coordinator", absl::StrCat(facts.address, " answers"), "an answer"},
      CoordinatorsClock(facts),
      Workers(facts),
      Releases(facts)};
  if (!facts.libraries.empty()) findings.push_back(Libraries(facts));
  return findings;
}

std::string FindingsText(const std::vector<Finding>& findings, const TextStyle& style) {
  std::vector<std::array<std::string, 5>> rows = {{"check", "verdict", "found", "needed", "what to do"}};
  for (const Finding& f : findings)
    rows.push_back({f.name, Name(f.severity), f.found, f.needed.empty() ? "-" : f.needed, f.advice});
  const std::vector<int> widths = WidthsOf(rows, style.width);
  std::string out;
  for (const auto& row : rows) {
    std::vector<std::vector<std::string>> cells;
    size_t lines = 0;
    for (size_t c = 0; c < row.size(); ++c) {
      cells.push_back(absl::StrSplit(WrapText(row[c], widths[c]), '\n'));
      lines = std::max(lines, cells.back().size());
    }
    for (size_t i = 0; i < lines; ++i) {
      std::string line;
      for (size_t c = 0; c < cells.size(); ++c) {
        const std::string cell = i < cells[c].size() ? cells[c][i] : "";
        const size_t columns = TextColumns(cell), width = static_cast<size_t>(widths[c]) + 2;
        absl::StrAppend(&line, cell, std::string(columns < width ? width - columns : 1, ' '));
      }
      absl::StripTrailingAsciiWhitespace(&line);
      absl::StrAppend(&out, &row == &rows.front() ? Heading(line, style) : line, "\n");
    }
  }
  return out;
}

nlohmann::ordered_json FindingsJson(const std::vector<Finding>& findings) {
  auto json = nlohmann::ordered_json::array();
  for (const Finding& f : findings) {
    json.push_back({{"verdict", Name(f.severity)},
                    {"name", f.name},
                    {"found", f.found},
                    {"needed", f.needed},
                    {"advice", f.advice}});
  }
  return json;
}

bool AnyBad(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& f) { return f.severity == Severity::kBad; });
}

}  // namespace weft
