// Says which jobs a process computes at the moment, for its reports. The owner of both parts locks.
#ifndef WEFT_WORKER_SHELL_LOOP_RUNNING_JOBS_H_
#define WEFT_WORKER_SHELL_LOOP_RUNNING_JOBS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/session/messages.h"
#include "worker/shell/loop/device_work.h"
#include "worker/shell/loop/work_threads.h"

namespace weft {

// Returns the jobs that have run for some time: others end before anybody could miss them. While the device
// has jobs, threads that give it more may wait for it.
inline std::vector<RunningJob> LongRunningJobs(int64_t now, const DeviceWork& device,
                                               const WorkThreads& threads) {
  constexpr int64_t kLeast = 500'000'000;
  std::vector<RunningJob> running;
  if (const std::optional<RunningJob> job = device.Running(now)) {
    running.push_back(*job);
  } else {
    threads.AppendRunning(now, &running);
  }
  std::erase_if(running, [](const RunningJob& r) { return r.age_ns < kLeast; });
  return running;
}

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_RUNNING_JOBS_H_
