// Writes what steps.jsonl says as an event file of TensorBoard, while the run goes on.
//
// The file is made of the lines of steps.jsonl alone, so that it can be made anew at any time. A line of a
// step gives the scalars loss, gradient_norm, learning_rate, seconds_per_step, samples_per_second and
// tokens_per_second, as far as they are known; one of a validation gives validation/loss and each metric, as
// validation/accuracy. Form: records of length, masked CRC-32C and protobuf, as TensorFlow's tfrecord has
// them. Threads: one at a time. Failure: Unavailable; what was written stays, and Begin makes the file whole.
#ifndef WEFT_COORDINATOR_RECORD_EVENT_FILE_H_
#define WEFT_COORDINATOR_RECORD_EVENT_FILE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "run/run_spec.h"

namespace weft {

// Facts that the events have and the lines lack.
struct EventTerms {
  std::function<double(int step)> learning_rate;  // null: unknown
  double samples = 0, tokens = 0;                 // those of a step; 0: unknown
};
EventTerms EventTermsOf(const RunSpec& spec);

class EventFile {
 public:
  // The file in a run's folder. TensorBoard takes every file for one of events whose name has "tfevents".
  static constexpr char kName[] = "events.out.tfevents.weft";

  EventFile(const std::string& folder, EventTerms terms);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Makes the file anew, of these lines.
  absl::Status Begin(absl::string_view lines);
  // Appends the events of a line. Does nothing after a failure.
  absl::Status Append(absl::string_view line);
  bool whole() const { return file_ >= 0; }

 private:
  std::string EventOf(absl::string_view line, double now) const;
  absl::Status Fail(int reason);

  const std::string path_;
  const EventTerms terms_;
  int file_ = -1;
};

// Returns a record of a tfrecord file.
std::string TfRecord(absl::string_view data);

// Returns the CRC-32C (Castagnoli) of the bytes, as RFC 3720, appendix B.4 has it.
uint32_t Crc32c(absl::string_view bytes);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_EVENT_FILE_H_
