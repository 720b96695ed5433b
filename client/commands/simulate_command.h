// Runs `weft simulate`: predicts what a schedule does, on a virtual clock (docs/guide/simulate.md).
#ifndef WEFT_CLIENT_COMMANDS_SIMULATE_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_SIMULATE_COMMAND_H_

#include <string>
#include <vector>

#include "client/console/console.h"
#include "schedules/simulator/simulate.h"

namespace weft {

struct SimulateOptions {
  // Halves of a backward that are not given are each half of the whole one, which takes 1. If both halves are
  // given and the whole one is not, it is their sum.
  SimulateOptions() {
    for (JobKind kind : {JobKind::kBackward, JobKind::kBackwardInput, JobKind::kBackwardWeight})
      simulation.duration[static_cast<int>(kind)].clear();
    simulation.duration[static_cast<int>(JobKind::kForward)].clear();
    simulation.steps = 0;
  }

  std::string schedule;               // `name[,key=value..]`, or a file (client/files/schedule_file.h)
  std::vector<std::string> compared;  // further schedules in the same picture of `memory`
  int stages = 0;                     // 0 where the file says it
  int microbatches = 0;               // likewise
  int from_step = -1;                 // step of a trace whose order is taken; -1 for its last
  std::vector<std::string> inputs;  // inputs of each stage: the stages that it reads joined by '+', or "data"
  bool takes_norm = false;          // the run clips gradients by their global norm, as a run file may say
  SimulationOptions simulation;     // times that are not given are empty; 0 steps: as many as it takes
  std::string under;                // schedule to simulate instead of a run file's own; empty for that
  std::string profile;              // times and bytes from this file (client/files/profile.h); empty for none
  double flops = 0;                 // counted FLOPs of a run file in a unit of time; 0: 1e9
  double host_bandwidth = 0;        // of the copies of `offload`, for a run file; 0: the profile's
  std::string network;              // network from this file (client/files/network_file.h); empty for none
  bool jobs = false;                // list every job in the JSON
  bool communication = false;       // count communication steps (table and JSON)
  std::string output = "table";     // table, json, svg, trace, csv, memory or operations
};

ExitCode RunSimulate(const SimulateOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_SIMULATE_COMMAND_H_
