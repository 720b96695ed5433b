#include "client/doctor/findings.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

constexpr int64_t kGiB = 1 << 30;
constexpr int64_t kDay = 24 * 3600;
constexpr int64_t kFewFiles = 4096;          // a worker has a connection or two for each peer
constexpr int64_t kLittleMemory = 2 * kGiB;  // LibTorch alone takes a good part of one
constexpr int64_t kSoon = 14 * kDay;

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
Finding Judge(bool fine, Severity otherwise, std::string name, std::string found, const std::string& advice) {
  return {fine ? Severity::kOk : otherwise, std::move(name), std::move(found), fine ? "" : advice};
}

Finding Processors(const MachineFacts& f) {
  std::string found = absl::StrCat(f.processors);
  if (f.processor_quota.has_value())
    found += absl::StrFormat(", of which the group may use %.1f", *f.processor_quota);
  const double usable = std::min<double>(f.processors, f.processor_quota.value_or(f.processors));
  return Judge(usable >= 1, Severity::kSlow, "processors", found,
               "less than one processor: every job waits for its turn");
}

Finding Memory(const MachineFacts& f) {
  return Judge(f.memory_bytes.value_or(kLittleMemory) >= kLittleMemory, Severity::kBad, "memory",
               f.memory_text, "a worker needs 2 GiB before it has a model");
}

Finding OpenFiles(const MachineFacts& f) {
  const bool fine = f.open_files < 0 || f.open_files >= kFewFiles;
  return Judge(fine, Severity::kBad, "open files",
               f.open_files < 0 ? "no limit" : absl::StrCat("at most ", f.open_files),
               absl::StrCat("each worker and client takes one, and each peer of a worker some: ulimit -Hn ",
                            kFewFiles, " or more (LimitNOFILE= of a unit)"));
}

Finding SharedMemory(const MachineFacts& f) {
  if (!f.shared_memory_bytes.has_value())
    return {Severity::kSlow, "/dev/shm", "not there",
            "GPUs without a direct path exchange tensors through it"};
  return Judge(*f.shared_memory_bytes >= kGiB || f.gpus < 2, Severity::kSlow, "/dev/shm",
               absl::StrCat(FormatBytes(static_cast<double>(*f.shared_memory_bytes)), " free"),
               "several GPUs exchange tensors through it: 1 GiB or more (docker run --shm-size=1g)");
}

Finding Tracing(const MachineFacts& f) {
  if (!f.ptrace_scope.has_value()) return {Severity::kOk, "reading other processes", "no restriction", ""};
  return Judge(
      *f.ptrace_scope <= 1, Severity::kSlow, "reading other processes",
      absl::StrCat("kernel.yama.ptrace_scope is ", *f.ptrace_scope),
      "workers of one machine copy large tensors through sockets then: sysctl kernel.yama.ptrace_scope=1");
}

Finding Rdma(const MachineFacts& f) {
  if (f.rdma_devices.empty())
    return {Severity::kOk, "RDMA devices", "none: tensors between machines go by TCP", ""};
  const std::string found = absl::StrCat(
      absl::StrJoin(f.rdma_devices, ", "), "; locked memory ",
      f.locked_bytes < 0 ? "without a limit"
                         : absl::StrCat("at most ", FormatBytes(static_cast<double>(f.locked_bytes))));
  return Judge(f.locked_bytes < 0, Severity::kSlow, "RDMA devices", found,
               "they need memory that is locked: ulimit -l unlimited (LimitMEMLOCK=infinity of a unit)");
}

Finding Gpus(const MachineFacts& f) {
  if (f.gpu_driver.empty()) return {Severity::kOk, "GPUs", "none: workers compute on processors", ""};
  return Judge(f.gpus > 0, Severity::kBad, "GPUs", absl::StrCat(f.gpus, ", NVIDIA driver ", f.gpu_driver),
               "the driver is there and shows no GPU: pass one to the container, or look into dmesg");
}

}  // namespace

std::vector<Finding> JudgeMachine(const MachineFacts& facts) {
  return {Processors(facts), Memory(facts), OpenFiles(facts), SharedMemory(facts),
          Tracing(facts),    Rdma(facts),   Gpus(facts)};
}

Finding JudgeCertificates(const CertificateFacts& facts) {
  if (!facts.problem.empty()) return {Severity::kBad, "certificates", facts.folder, facts.problem};
  const bool expires = facts.seconds_left != INT64_MAX;
  const std::string found = absl::StrCat(
      facts.identity, expires ? absl::StrCat(", valid for ", facts.seconds_left / kDay, " days") : "");
  return Judge(facts.seconds_left > kSoon, Severity::kSlow, "certificates", found,
               "they expire soon: weft certs init makes new ones, which programs take without a restart");
}

std::vector<Finding> JudgeCoordinator(const CoordinatorFacts& facts) {
  if (!facts.problem.empty()) return {{Severity::kBad, "coordinator", facts.address, facts.problem}};
  std::vector<Finding> findings = {
      {Severity::kOk, "coordinator", absl::StrCat(facts.address, " answers"), ""}};
  const std::string found = absl::StrCat(facts.workers, " connected, ", facts.free_workers, " free");
  if (facts.silent_workers > 0) {
    findings.push_back(
        {Severity::kSlow, "workers", found,
         absl::StrCat(facts.silent_workers, " of them say nothing: weft workers shows which")});
  } else {
    findings.push_back(Judge(facts.workers > 0, Severity::kSlow, "workers", found,
                             "runs wait until workers are there: weft-worker --coordinator ADDRESS"));
  }
  return findings;
}

std::string FindingsText(const std::vector<Finding>& findings, const TextStyle& style) {
  size_t names = 0;
  for (const Finding& f : findings) names = std::max(names, f.name.size());
  std::string out;
  for (const Finding& f : findings) {
    const std::string head =
        absl::StrFormat("%-4s  %-*s  ", Name(f.severity), static_cast<int>(names), f.name);
    const int indent = static_cast<int>(head.size());
    absl::StrAppend(&out, WrapText(head + f.found, style.width, indent), "\n");
    if (!f.advice.empty())
      absl::StrAppend(&out, WrapText(std::string(head.size(), ' ') + f.advice, style.width, indent), "\n");
  }
  return out;
}

nlohmann::ordered_json FindingsJson(const std::vector<Finding>& findings) {
  auto json = nlohmann::ordered_json::array();
  for (const Finding& f : findings)
    json.push_back(
        {{"verdict", Name(f.severity)}, {"name", f.name}, {"found", f.found}, {"advice", f.advice}});
  return json;
}

bool AnyBad(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& f) { return f.severity == Severity::kBad; });
}

}  // namespace weft
