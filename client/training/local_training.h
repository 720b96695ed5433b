// Trains on this machine: an embedded coordinator, worker processes, progress, and the files of --out.
//
// Everything that it starts ends before it returns, also after Ctrl-C (within two seconds) and after errors.
#ifndef WEFT_CLIENT_TRAINING_LOCAL_TRAINING_H_
#define WEFT_CLIENT_TRAINING_LOCAL_TRAINING_H_

#include <string>

#include "client/console/console.h"
#include "client/training/device_flags.h"
#include "coordinator/record/output_folder.h"
#include "run/run_schedule.h"

namespace weft {

struct LocalTrainingOptions {
  ScheduledRun run;  // its schedule is checked
  std::string file;  // the run file, as the user wrote it
  int processes = 1;
  int spares = 0;                  // further worker processes, which take the place of lost ones
  OutputFolder* output = nullptr;  // folder in which the run has begun; outlives the training
  std::string metrics;             // HOST:PORT, "" for none
  DeviceFlags device;
  bool reference = false;  // true for the plain loop
  bool json = false;       // true: the results are printed as JSON
};

// Trains the run. Call it on the main thread, before any other thread exists.
ExitCode TrainLocally(const LocalTrainingOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_TRAINING_LOCAL_TRAINING_H_
