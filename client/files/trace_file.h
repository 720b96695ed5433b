// Reads the jobs of a trace that `weft train` left or `weft simulate -o trace` wrote: their ranks and times.
//
// The file is a Chrome trace as DrawTrace of drawing.h writes it. Tracks do not matter: a job names its rank
// itself, and the trace gives their number. Times are exact to a nanosecond.
//
// Failure: InvalidArgument with one sentence that begins with the file.
#ifndef WEFT_CLIENT_FILES_TRACE_FILE_H_
#define WEFT_CLIENT_FILES_TRACE_FILE_H_

#include <array>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "schedules/drawing/drawing.h"

namespace weft {

struct Trace {
  std::string title;           // title of the run: "tiny: 1f1b"
  bool measured = false;       // false for a simulated trace, with a unit of time as a millisecond
  std::vector<DrawnJob> jobs;  // in seconds since the first job's start; at least one
  int ranks = 0;
  int64_t begin_unix_ns = 0;  // wall clock's time of the first job's start; 0 where it is not known
  // Planned jobs, idle times and durations of transfers, in the same time unit, if the trace has them.
  std::vector<DrawnJob> planned;
  std::vector<DrawnIdle> idle;
  // The jobs of transfers have no stage, -1, where the trace does not tell them or their ranks, as traces of
  // version 0.1. Bytes that are negative or more than 1e15 count as not known: 0.
  std::vector<DrawnTransfer> transfers;
  std::vector<std::vector<int>> inputs;  // as RunTerms::inputs
  std::vector<double> activation_bytes;  // bytes by stage: of a micro-batch's activation; empty if not given
};

absl::StatusOr<Trace> ReadTrace(const std::string& path);
// Reads the text of such a file; `name` is for messages.
absl::StatusOr<Trace> ParseTrace(std::istream& text, const std::string& name);

// Returns the jobs of one step, the last if `step` is -1. OutOfRange for a step that the trace does not have.
absl::StatusOr<std::vector<DrawnJob>> JobsOfStep(const std::string& path, const Trace& trace, int step);

// Returns the mean duration of each kind of job on each stage; 0 where there is none.
std::array<std::vector<double>, kJobKinds> MeanDurations(const std::vector<DrawnJob>& jobs, int stages);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_TRACE_FILE_H_
