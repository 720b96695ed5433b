// steps.jsonl: one line a step, written as the steps end.
#ifndef WEFT_CLIENT_STEP_LOG_H_
#define WEFT_CLIENT_STEP_LOG_H_

#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/run_recorder.h"

namespace weft {

class StepLog {
 public:
  explicit StepLog(const std::string& folder);

  // Unavailable if the line cannot be written.
  absl::Status Append(const StepRecord& step);

  const std::vector<double>& seconds() const { return seconds_; }  // of each step
  double first_loss() const { return first_loss_; }
  double last_loss() const { return last_loss_; }
  double end_seconds() const { return end_seconds_; }

 private:
  const std::string path_;
  std::ofstream out_;
  std::vector<double> seconds_;
  double first_loss_ = 0, last_loss_ = 0, end_seconds_ = 0;
};

}  // namespace weft

#endif  // WEFT_CLIENT_STEP_LOG_H_
