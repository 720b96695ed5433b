// Tells a file of a run that is gone or refused for good from one that cannot be used at present: its disk or
// server fails, is full, or is away. A coordinator that starts again gives up no run for the latter.
//
// Threads: any. Failure: as stated.
#ifndef WEFT_COORDINATOR_RECORD_PASSING_FAILURE_H_
#define WEFT_COORDINATOR_RECORD_PASSING_FAILURE_H_

#include <string>

#include "absl/status/status.h"

namespace weft {

// Returns true for an errno whose cause may pass.
bool MayPass(int error);

// Returns OK if the file can be read, or is gone or refused for good; Unavailable if that cannot be told.
absl::Status CheckNoPassingFailure(const std::string& path);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_PASSING_FAILURE_H_
