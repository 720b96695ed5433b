// Runs `weft profile`: measures the costs of each layer of a run file's model, as a profile (profile.h) that
// the simulator takes.
#ifndef WEFT_CLIENT_COMMANDS_PROFILE_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_PROFILE_COMMAND_H_

#include <string>
#include <vector>

#include "client/commands/fleet_run.h"
#include "client/console/console.h"
#include "client/files/measured_network.h"
#include "client/training/device_flags.h"
#include "run/run_spec.h"

namespace weft {

struct ProfileOptions {
  std::string file;  // the run file; its data must be there
  int steps = 6;     // steps to train; the first one is not counted
  DeviceFlags device;
  std::string output;   // the profile's file; empty for standard output
  int ranks = 0;        // ranks whose speeds are measured, each in a process of its own; 0 for none
  std::string network;  // file of the network that these ranks make; with `ranks`
  FleetOptions fleet;   // in place of this machine and `device`
};

// Returns the run with each layer as a stage, one micro-batch of the same size a step, and all on one rank,
// so that the times and bytes of its jobs are those of single layers.
RunSpec ProfilingRun(const RunSpec& run, int steps);

// Returns the same run with its backwards in halves.
RunSpec SplitProfilingRun(const RunSpec& run, int steps);
// Returns the same run with activations in the host's memory between forward and backward.
RunSpec OffloadProfilingRun(const RunSpec& run, int steps);
// Returns the same run such that every activation, gradient and weight goes from one process to another.
RunSpec LinkProfilingRun(const RunSpec& run, int steps, const RankRing& ring = {});
// Returns the same run with all layers on each of so many ranks, which compute some micro-batches of a step
// each, one after the other.
RunSpec SpeedProfilingRun(const RunSpec& run, int steps, int ranks);

// Runs on the main thread only.
ExitCode RunProfile(const ProfileOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_PROFILE_COMMAND_H_
