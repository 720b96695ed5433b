// Trains a run briefly on this machine with a program of its own (`weft train`), and reads what it measured.
//
// It is a program of its own, so that whatever happens to one leaves the others and this process alone.
// Ctrl-C ends it. Main thread only (child_process.h).
#ifndef WEFT_CLIENT_COMMANDS_MEASURED_RUN_H_
#define WEFT_CLIENT_COMMANDS_MEASURED_RUN_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "client/commands/measured_schedules.h"
#include "client/console/console.h"
#include "client/training/device_flags.h"
#include "client/training/stop_signals.h"
#include "run/run_spec.h"

namespace weft {

// Trains a run on so many processes, here or elsewhere; `name` tells its folder from others. Cancelled for a
// stop signal, with its name.
using TrainRun =
    std::function<absl::StatusOr<MeasuredRun>(const RunSpec& run, int processes, const std::string& name)>;

// Trains the run on that device with its results in `folder`, which is made. With `processes` 0 `weft train`
// chooses their number. Returns Cancelled for a stop signal, with its name; else FailedPrecondition with the
// last words of the program.
absl::StatusOr<MeasuredRun> TrainAndMeasure(const RunSpec& run, int processes, const DeviceFlags& device,
                                            const std::string& folder, StopSignals* signals);

// Says why measuring has ended before its time. A stop signal is no failure.
ExitCode EndMeasuring(const absl::Status& status);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_MEASURED_RUN_H_
