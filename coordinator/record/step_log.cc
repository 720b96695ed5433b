#include "coordinator/record/step_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/durable_file.h"
#include "base/run_files.h"
#include "coordinator/record/train_results.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

constexpr size_t kMaxPending = 64 << 20;

// Returns the lines of steps before `end`, without those that are no steps: a crash may have left half a
// line.
absl::StatusOr<std::string> LinesBefore(const std::string& path, int end) {
  errno = EISDIR;  // for what can be opened and is no file
  std::ifstream file = RunFileToRead(path);
  if (const int error = errno; !file.is_open()) {
    if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) return "";
    return absl::UnavailableError(absl::StrCat("cannot read ", path, ": ", RunFileError(error)));
  }
  std::string kept;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const auto step = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!step.is_object() || !step.contains("step") || !step["step"].is_number_integer()) continue;
    if (step["step"].get<int64_t>() < end) absl::StrAppend(&kept, line, "\n");
  }
  if (file.bad()) return absl::UnavailableError(absl::StrCat("cannot read ", path, " to its end"));
  return kept;
}

}  // namespace

StepLog::StepLog(const std::string& folder, int first_step, NonFinite non_finite, EventTerms events)
    : path_(folder + "/steps.jsonl"),
      first_step_(first_step),
      events_(folder, std::move(events)),
      losses_(non_finite) {
  const int made = OpenRunFile(path_, O_WRONLY | O_CREAT, 0644);
  if (made >= 0) close(made);
}

StepLog::~StepLog() {
  if (file_ >= 0) close(file_);
}

absl::Status StepLog::Open() {
  const absl::StatusOr<std::string> kept = LinesBefore(path_, first_step_);
  if (!kept.ok()) return kept.status();
  struct stat info {};
  const bool whole = stat(path_.c_str(), &info) == 0 && info.st_size == static_cast<off_t>(kept->size());
  if (!whole) {
    if (absl::Status cut = WriteWholeFile(path_, *kept); !cut.ok()) return cut;
  }
  if (absl::Status begun = events_.Begin(*kept); !begun.ok())
    absl::StrAppend(&notice_, begun.message(), "; it is written at the end");
  end_ = static_cast<off_t>(kept->size());
  file_ = OpenRunFile(path_, O_RDWR | O_CREAT, 0644);
  if (file_ >= 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": ", RunFileError(errno)));
}

absl::Status StepLog::WritePending() {
  if (file_ < 0) {
    if (absl::Status opened = Open(); !opened.ok()) return opened;
  }
  while (!pending_.empty()) {
    const ssize_t n = pwrite(file_, pending_.data(), pending_.size(), end_);
    if (n < 0 && errno == EINTR) continue;
    const int reason = n < 0 ? errno : ENOSPC;
    // Only whole lines stay in the file.
    const size_t lines = n <= 0 ? 0 : pending_.rfind('\n', static_cast<size_t>(n) - 1) + 1;
    pending_.erase(0, lines);
    end_ += static_cast<off_t>(lines);
    if (pending_.empty()) break;
    if (ftruncate(file_, end_) != 0 || lines == 0) {
      return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": ", RunFileError(reason)));
    }
  }
  return absl::OkStatus();
}

absl::Status StepLog::Append(StepRecord step) {
  absl::StrAppend(&notice_, losses_.Look(&step));
  if (seconds_.empty()) first_loss_ = step.loss;
  seconds_.push_back(step.seconds);
  last_loss_ = step.loss;
  end_seconds_ = step.end_seconds;
  return AppendLine(StepLine(step));
}

absl::Status StepLog::Append(const Validation& validation) {
  if (!validation_.has_value() || validation.step >= validation_->step) validation_ = validation;
  return AppendLine(ValidationLine(validation));
}

absl::Status StepLog::AppendLine(const std::string& line) {
  if (pending_.size() < kMaxPending) absl::StrAppend(&pending_, line, "\n");
  const absl::Status written = WritePending();
  if (absl::Status appended = events_.Append(line); !appended.ok())
    absl::StrAppend(&notice_, appended.message(), "; it is written at the end");
  const bool reported = failing_;
  failing_ = !written.ok();
  return reported ? absl::OkStatus() : written;
}

std::string StepLog::TakeNotice() { return std::exchange(notice_, ""); }

std::optional<std::string> StepLog::WrittenLines() const {
  std::string lines(static_cast<size_t>(end_), '\0');
  if (pread(file_, lines.data(), lines.size(), 0) != static_cast<ssize_t>(lines.size())) return std::nullopt;
  return lines;
}

absl::Status StepLog::Finish() {
  absl::Status written = pending_.empty() ? absl::OkStatus() : WritePending();
  if (file_ >= 0 && !events_.whole()) {
    if (const std::optional<std::string> lines = WrittenLines(); lines.has_value())
      events_.Begin(*lines).IgnoreError();
  }
  struct stat ours {
  }, named{};
  const bool removed = file_ >= 0 && fstat(file_, &ours) == 0 &&
                       (stat(path_.c_str(), &named) != 0 || named.st_ino != ours.st_ino);
  if (!removed || !written.ok()) return written;
  const std::optional<std::string> lines = WrittenLines();
  if (!lines.has_value())
    return absl::UnavailableError(absl::StrCat("cannot write ", path_, " again: it was removed"));
  return WriteWholeFile(path_, *lines);
}

}  // namespace weft
