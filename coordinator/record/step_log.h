// Writes steps.jsonl: one line a step, written as the steps end, and one a validation; and beside it the same
// as an event file of TensorBoard.
//
// When a run goes on in the folder of the run before, the lines before its first step stay and the others go,
// since those steps are made again; the file changes when the first step has been made, not before. A line
// that cannot be written, as on a full disk, waits in memory and is tried again with each later step and at
// the end: the log never ends a training. The event file is then made anew at the end.
#ifndef WEFT_COORDINATOR_RECORD_STEP_LOG_H_
#define WEFT_COORDINATOR_RECORD_STEP_LOG_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/record/event_file.h"
#include "coordinator/record/loss_watch.h"
#include "coordinator/record/run_recorder.h"
#include "run/run_spec.h"

namespace weft {

class StepLog {
 public:
  // Makes the file in `folder` if it is not there.
  StepLog(const std::string& folder, int first_step, NonFinite non_finite = NonFinite::kStop,
          EventTerms events = {});
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // Appends a step. Unavailable if lines cannot be written, the first time of each such time; the steps count
  // all the same.
  absl::Status Append(StepRecord step);
  // Appends likewise the line of a validation that is done. Its line says the step whose training begins with
  // those weights, and may come after the lines of later steps.
  absl::Status Append(const Validation& validation);
  // Returns a sentence about the first step that is not finite, once; else "".
  std::string TakeNotice();
  // Writes missing lines after the last step: Unavailable if some are still missing. A file that was removed
  // is written anew.
  absl::Status Finish();

  const std::vector<double>& seconds() const { return seconds_; }  // seconds of each step
  double first_loss() const { return first_loss_; }
  double last_loss() const { return last_loss_; }
  double end_seconds() const { return end_seconds_; }
  const LossWatch& losses() const { return losses_; }
  // Returns the validation of the latest step.
  const std::optional<Validation>& validation() const { return validation_; }

 private:
  absl::Status Open();
  absl::Status WritePending();
  absl::Status AppendLine(const std::string& line);
  // Returns the whole lines of the file; nothing if it cannot be read.
  std::optional<std::string> WrittenLines() const;

  const std::string path_;
  const int first_step_;
  int file_ = -1;
  off_t end_ = 0;        // end of the whole lines in it
  std::string pending_;  // lines that are not in it
  bool failing_ = false;
  EventFile events_;
  LossWatch losses_;
  std::string notice_;
  std::optional<Validation> validation_;
  std::vector<double> seconds_;
  double first_loss_ = 0, last_loss_ = 0, end_seconds_ = 0;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_STEP_LOG_H_
