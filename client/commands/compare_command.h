// Runs `weft compare`: every family of schedules on a run file's model, side by side, fastest first; with
// --measure some of them trained for real (compare_measured.h).
#ifndef WEFT_CLIENT_COMMANDS_COMPARE_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_COMPARE_COMMAND_H_

#include <string>
#include <vector>

#include "client/commands/contestants.h"
#include "client/commands/fleet_run.h"
#include "client/console/console.h"
#include "client/training/device_flags.h"

namespace weft {

struct CompareOptions {
  std::string file;           // the run file; its schedule is compared too
  std::string profile;        // profile of the model; empty: counted FLOPs
  double memory = 0;          // bytes a rank; 0: the run file's, else no budget
  double flops = 1e9;         // FLOPs per unit of time, for counted FLOPs
  double bandwidth = 0;       // bytes per unit of time; 0: the profile's, else infinite
  double latency = 0;         // units of time; 0: the profile's, else none
  double host_bandwidth = 0;  // bytes per unit of time of the copies of `offload`; 0: the profile's
  std::string network;        // file of the network; empty for none
  // Number of ranks of each schedule, with the stages that it needs there; 0: as the schedule says.
  int ranks = 0;
  // Number of stages of a new cut; 0: the run file's, or what `ranks` needs.
  int stages = 0;
  Variation vary;  // what is tried beside the run file's own
  // Schedules; each text holds one or several, as SplitSchedules (contestants.h) takes them.
  std::vector<std::string> schedules;
  bool json = false;

  bool measure = false;  // train for real
  int steps = 6;
  int repeats = 3;    // repeats of each training, in turn
  int processes = 0;  // the most processes; 0: as `weft train` chooses, on a fleet one for each rank
  DeviceFlags device;
  FleetOptions fleet;  // in place of this machine and `device`
  std::string out;     // folder that keeps each run's results; empty for none
};

ExitCode RunCompare(const CompareOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_COMPARE_COMMAND_H_
