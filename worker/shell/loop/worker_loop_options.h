// Defines the times of a worker process, each with a default for real runs, and who hears of its events.
#ifndef WEFT_WORKER_SHELL_LOOP_WORKER_LOOP_OPTIONS_H_
#define WEFT_WORKER_SHELL_LOOP_WORKER_LOOP_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "base/log/flight_ring.h"

namespace weft {

struct WorkerLoopOptions {
  // Time that an idle rank polls before it blocks. Negative: choose by the number of ranks and cores of the
  // machine.
  int spin_microseconds = -1;
  int64_t report_interval_ns = 500'000'000;
  // Longest time between two looks of a thread that waits for messages.
  int64_t look_interval_ns = 1'000'000'000;
  // Longest time for which completions wait for others while all ranks compute (outbox.h).
  int64_t gather_ns = 100'000'000;
  // Figures of the device's driver, for reports (GpuMonitor::Latest); empty without a GPU. Never waits.
  std::function<std::map<std::string, double>()> gpu_figures;
  // Longest time of a copy that the device was given, once it has no job to do before.
  int64_t copy_timeout_ns = 60'000'000'000;
  // Likewise of all its jobs, once the run is aborted or the loop stopped.
  int64_t device_grace_ns = 30'000'000'000;
  // Time from a run's beginning until its communicators are complete: a little less than the coordinator
  // gives all processes to prepare, since the message from here names the ranks that are missing.
  int64_t join_timeout_ns = 290'000'000'000;
  // Time of a joint operation from its start here: it waits for jobs of the other members, whose deadlines
  // the coordinator has.
  int64_t joint_timeout_ns = 86'400'000'000'000;
  // Time from Stop to the end of the tasks of the host's own threads.
  int64_t stop_grace_ns = 5'000'000'000;
  // Interval at which a data link that stays silent is reported to the coordinator again.
  int64_t stall_interval_ns = 10'000'000'000;
  // Interval of looks, while there is no run, whether other processes can still connect to this one.
  int64_t health_interval_ns = 5'000'000'000;
  // Ring in which events are noted; null for none. Outlives the loop.
  FlightRing* flight_ring = nullptr;
  // Called when something begins not to get on, with a sentence; empty for nobody. Never waits.
  std::function<void(const std::string& why)> stalled;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_WORKER_LOOP_OPTIONS_H_
