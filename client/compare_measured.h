// `weft compare --measure`: a set of schedules trained for a few steps for real, one after another, and what
// each took, beside what the simulator says.
#ifndef WEFT_CLIENT_COMPARE_MEASURED_H_
#define WEFT_CLIENT_COMPARE_MEASURED_H_

#include "client/compare_command.h"
#include "client/console.h"

namespace weft {

// Main thread only.
ExitCode RunMeasuredCompare(const CompareOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMPARE_MEASURED_H_
