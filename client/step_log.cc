#include "client/step_log.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/train_results.h"

namespace weft {

StepLog::StepLog(const std::string& folder) : path_(folder + "/steps.jsonl"), out_(path_, std::ios::trunc) {}

absl::Status StepLog::Append(const StepRecord& step) {
  if (seconds_.empty()) first_loss_ = step.loss;
  seconds_.push_back(step.seconds);
  last_loss_ = step.loss;
  end_seconds_ = step.end_seconds;
  errno = 0;
  out_ << StepLine(step) << std::endl;
  if (out_) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": ", std::strerror(errno)));
}

}  // namespace weft
