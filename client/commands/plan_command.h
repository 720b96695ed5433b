// Runs `weft plan`: finds the schedule, the cut and the placement that take a step in the least predicted
// time and fit the ranks' memory (docs/guide/plan.md).
#ifndef WEFT_CLIENT_COMMANDS_PLAN_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_PLAN_COMMAND_H_

#include <string>

#include "client/console/console.h"

namespace weft {

struct PlanOptions {
  std::string file;                // a run file (.yaml), or a profile (.json); empty with `from`
  std::string from;                // folder of a run that was measured
  int workers = 0;                 // ranks
  double memory = 0;               // bytes of each rank; 0: the run's, else no limit
  std::string profile;             // for a run file: measured times and bytes; empty: counted FLOPs
  double flops = 1e9;              // FLOPs per unit of time, for counted FLOPs
  double bandwidth = 0;            // bytes per unit of time of each link; 0: the profile's, else infinite
  double latency = 0;              // units of time; 0: the profile's, else none
  std::string network;             // file of the network; empty for equal ranks and links
  bool vary_microbatches = false;  // other numbers than the run's are tried
  int microbatches = 0;            // of the step to predict; 0: the run's; for a profile, none
  std::string schedule = "auto";
  double host_bandwidth = 0;  // bytes per unit of time of the copies of `offload`; 0: the profile's
  double time_limit = 10;     // seconds of search
  std::string output = "table";
};

ExitCode RunPlanCommand(const PlanOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_PLAN_COMMAND_H_
