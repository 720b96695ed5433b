// Holds the options of the coordinator's core: its times and its limits.
#ifndef WEFT_COORDINATOR_CORE_CORE_OPTIONS_H_
#define WEFT_COORDINATOR_CORE_CORE_OPTIONS_H_

#include <cstddef>
#include <cstdint>

namespace weft {

// Options that may change while runs go on: a change applies to what begins afterwards, and no promise rests
// on one.
struct CoreLimits {
  // Silence after which a process of a running run has lost its leases; workers report twice a second.
  int64_t lease_ns = 15'000'000'000;
  // Time for a broken session to come back, once its worker must know.
  int64_t grace_ns = 10'000'000'000;
  int64_t waiting_ns = 600'000'000'000;    // time for as many worker processes as a run needs to connect
  int64_t preparing_ns = 300'000'000'000;  // time for every process to be Prepared
  int64_t progress_ns = 600'000'000'000;   // time without any job done
  int64_t finishing_ns = 600'000'000'000;  // time for every process to be Finished
  size_t runs_waiting = 20'000;  // most submitted runs that have not ended; a list of them fits one message
  size_t runs_kept = 100;        // number of ended runs that are remembered: the last ones
};

struct CoreOptions : CoreLimits {
  // Number that grows with every life of the coordinator: above every epoch of the lives before.
  uint64_t epoch = 1;
  uint64_t last_run = 0;  // number of the last run of the lives before
  // True if the coordinator's owner starts the workers: then a worker that ends before it connects fails the
  // runs that wait.
  bool fixed_workers = false;

  int64_t hello_ns = 30'000'000'000;      // time from opening a session to Hello
  int64_t detection_ns = 15'000'000'000;  // time in which a worker notices that its connection is dead
  // Time for the workers of a run that is taken up again to come back; then it takes those that are there.
  int64_t gathering_ns = 30'000'000'000;
  // Time that a run goes on with fewer processes than it wants before it takes free ones in, once for each
  // time that it has begun again.
  int64_t expand_ns = 5'000'000'000;
  // Losses in a row with the same job in hand that make it poison (suspect_jobs.h).
  int32_t poison_losses = 3;
  int64_t blame_ns = 1'000'000'000;    // time that a reported failure waits for its cause (run.h)
  int64_t ending_ns = 10'000'000'000;  // time for Forgotten after Abort; then the worker is reported as late

  // Most bytes of the plans of runs that have not ended (RunPlan::bytes).
  int64_t plan_bytes = int64_t{8} << 30;
  // Most bytes of the addresses that the processes of one run are sent.
  int64_t peer_bytes = int64_t{512} << 20;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_CORE_OPTIONS_H_
