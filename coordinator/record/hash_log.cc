#include "coordinator/record/hash_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/run_files.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

constexpr size_t kMaxPendingBytes = 64 << 20;

bool EndsInLine(int file) {
  const off_t end = lseek(file, 0, SEEK_END);
  char last = '\n';
  return end <= 0 || pread(file, &last, 1, end - 1) != 1 || last == '\n';
}

}  // namespace

HashLog::HashLog(const std::string& folder, const RunSpec& run, bool same_run)
    : path_(folder + "/hashes.jsonl") {
  if (!run.record_hashes) return;
  const int mode = run.first_step() > 0 || same_run ? O_APPEND : O_APPEND | O_TRUNC;
  file_ = OpenRunFile(path_, O_RDWR | O_CREAT | mode, 0644);
  if (file_ >= 0 && !EndsInLine(file_)) pending_.push_back('\n');  // a crash has left half a line
  const bool has_run = same_run && file_ >= 0 && lseek(file_, 0, SEEK_END) > 0;
  if (!has_run) absl::StrAppend(&pending_, nlohmann::json{{"run", ToJson(run)}}.dump(), "\n");
  failing_ = !Write().ok();
}

HashLog::~HashLog() {
  if (file_ >= 0) close(file_);
}

absl::Status HashLog::Write() {
  while (!pending_.empty()) {
    const ssize_t n = write(file_, pending_.data(), pending_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": ", RunFileError(errno)));
    pending_.erase(0, static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status HashLog::Append(const std::vector<JobHashes>& jobs) {
  if (jobs.empty()) return absl::OkStatus();
  std::string lines;
  for (const JobHashes& job : jobs) absl::StrAppend(&lines, HashLine(job), "\n");
  lines.pop_back();
  return Append(lines);
}

absl::Status HashLog::Append(absl::string_view line) {
  if (pending_.size() < kMaxPendingBytes) absl::StrAppend(&pending_, line, "\n");
  const absl::Status written = Write();
  const bool reported = failing_;
  failing_ = !written.ok();
  return reported ? absl::OkStatus() : written;
}

}  // namespace weft
