// Runs many runs on a fleet of thousands of workers, on a virtual clock: the real coordinator core, a real
// worker core and a real session for each worker, in one thread and from one seed. Machines are lost all the
// time, and replaced. The question is whether every run ends, and what the coordinator's core needs for it.
//
// The world (world.h) plays one run and checks each of its values. The fleet plays many, and moves no values:
// a tensor arrives a little after it was made and wanted. A worker is lost in one of two ways: its connection
// ends, or nothing is heard of it any more, until gRPC's keepalive ends it. Another one joins a little later.
// A run goes on from its newest checkpoint.
//
// It checks that each run finishes, that its steps are told once, in order, that no submission is refused,
// and that no session of a living worker is closed.
#ifndef WEFT_TESTS_SIMULATION_FLEET_H_
#define WEFT_TESTS_SIMULATION_FLEET_H_

#include <cstdint>
#include <string>

#include "coordinator/core/core_options.h"

namespace weft {

struct FleetOptions {
  uint64_t seed = 1;
  int workers = 100;
  int runs = 20;  // all submitted at the start; those that find no free workers wait
  int ranks = 4;  // of a run, each in a process of its own
  int steps = 6;  // of a run, of 4 micro-batches under 1f1b, with a checkpoint behind every second one
  int64_t job_ns = 2'000'000'000;  // mean time of a job
  double lost_a_minute = 0.01;     // share of the workers
  // Losses in a row with the same job in hand that make it poison.
  int poison_losses = CoreOptions().poison_losses;
};

struct FleetResult {
  std::string problem;  // empty if every check held
  int64_t virtual_ns = 0;
  uint64_t events = 0, messages = 0;  // messages of workers
  int lost = 0;                       // workers
  int lost_in_runs = 0;               // of these, while they served a run
  int restarts = 0, from_checkpoints = 0;
  double core_seconds = 0;       // time of this machine's processor in the coordinator's core
  double most_step_seconds = 0;  // of one Step
};

FleetResult RunFleet(const FleetOptions& options);

}  // namespace weft

#endif  // WEFT_TESTS_SIMULATION_FLEET_H_
