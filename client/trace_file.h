// The jobs of a trace that `weft train` left behind or `weft simulate -o trace` wrote, read back: what ran
// where and when.
//
// The file is a Chrome trace as DrawTrace of drawing.h writes it. Tracks do not matter: a job says its rank
// itself, and the trace how many there are. Times are exact to a nanosecond.
//
// Failure: InvalidArgument with one sentence that begins with the file.
#ifndef WEFT_CLIENT_TRACE_FILE_H_
#define WEFT_CLIENT_TRACE_FILE_H_

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "schedules/drawing.h"

namespace weft {

struct Trace {
  std::string title;           // of what ran: "tiny: 1f1b"
  bool measured = false;       // else simulated, a unit of time as a millisecond
  std::vector<DrawnJob> jobs;  // in seconds since the first job's start; at least one
  int ranks = 0;
  std::vector<std::vector<int>> inputs;  // as Schedule::inputs
  std::vector<double> left_bytes;        // by stage: of a micro-batch's activation; empty if not told
};

absl::StatusOr<Trace> ReadTrace(const std::string& path);

// The jobs of one step, the last if `step` is -1.
absl::StatusOr<std::vector<DrawnJob>> JobsOfStep(const std::string& path, const Trace& trace, int step);

// The mean duration of each kind of job on each stage; 0 where there is none.
std::array<std::vector<double>, kJobKinds> MeanDurations(const std::vector<DrawnJob>& jobs, int stages);

}  // namespace weft

#endif  // WEFT_CLIENT_TRACE_FILE_H_
