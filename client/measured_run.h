// A short training of a run on this machine as a program of its own (`weft train`), and what it measured.
//
// A program of its own, so that whatever happens to one leaves the others and this process alone. Ctrl-C ends
// it. Main thread only (child_process.h).
#ifndef WEFT_CLIENT_MEASURED_RUN_H_
#define WEFT_CLIENT_MEASURED_RUN_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/device_flags.h"
#include "client/measured_schedules.h"
#include "client/stop_signals.h"
#include "proto/run/run_spec.h"

namespace weft {

// Trains the run on that device with its results in `folder`, which is made. `processes` 0: as `weft train`
// chooses.
// Cancelled for a stop signal, with its name; else FailedPrecondition with what the program said last.
absl::StatusOr<MeasuredRun> TrainAndMeasure(const RunSpec& run, int processes, const DeviceFlags& device,
                                            const std::string& folder, StopSignals* signals);

}  // namespace weft

#endif  // WEFT_CLIENT_MEASURED_RUN_H_
