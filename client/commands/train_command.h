// Runs `weft train`: the whole training on this machine in one command.
#ifndef WEFT_CLIENT_COMMANDS_TRAIN_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_TRAIN_COMMAND_H_

#include <string>

#include "absl/status/status.h"
#include "client/console/console.h"
#include "client/training/device_flags.h"
#include "run/run_schedule.h"

namespace weft {

struct TrainOptions {
  std::string file;
  int processes = 0;    // 0: as many as ranks, but at most as many as cores
  int spares = 0;       // further processes that wait to take the place of a lost one
  std::string out;      // "" means out/NAME, NAME the run's name
  std::string metrics;  // HOST:PORT of the coordinator's metrics, "" for none
  std::string plan;     // file of the plan to train by; "" for the run file's own schedule
  bool reference = false;
  int until = 0;  // number of the file's steps after which it stops; 0: make all
  DeviceFlags device;
  std::string resume;          // folder of the checkpoint to go on from; "" to begin
  std::string weights;         // weights to begin with; "" for those of the run file
  bool record_hashes = false;  // for `weft diff`; the run file may ask for it too
  bool overwrite = false;      // replaces what a former run left in the folder, once this one has results
  bool json = false;           // prints the results as JSON
};

// Sets which of the file's steps the run makes by `until` and `resume`, and checks that it can.
// OutOfRange for more steps than the file has, else InvalidArgument; it begins with the flag.
absl::Status ChooseSteps(const TrainOptions& options, ScheduledRun* run);

// Checks that the schedule has a rank for each process. InvalidArgument, which begins with the flag.
absl::Status CheckProcesses(int processes, const ScheduledRun& run);

ExitCode RunTrain(const TrainOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_TRAIN_COMMAND_H_
