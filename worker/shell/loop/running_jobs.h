// Says which jobs a process computes at the moment, and which collectives its device does, for its reports.
// The owner of all parts locks.
#ifndef WEFT_WORKER_SHELL_LOOP_RUNNING_JOBS_H_
#define WEFT_WORKER_SHELL_LOOP_RUNNING_JOBS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/session/messages.h"
#include "worker/shell/loop/communicators.h"
#include "worker/shell/loop/device_work.h"
#include "worker/shell/loop/work_threads.h"

namespace weft {

// The least age of what is reported: what is younger ends before anybody could miss it.
inline constexpr int64_t kLeastReportedAge = 500'000'000;

// Returns the jobs that have run for some time. While the device has jobs, threads that give it more may wait
// for it.
inline std::vector<RunningJob> LongRunningJobs(int64_t now, const DeviceWork& device,
                                               const WorkThreads& threads) {
  std::vector<RunningJob> running;
  if (const std::optional<RunningJob> job = device.Running(now)) {
    running.push_back(*job);
  } else {
    threads.AppendRunning(now, &running);
  }
  std::erase_if(running, [](const RunningJob& r) { return r.age_ns < kLeastReportedAge; });
  return running;
}

// Returns the collectives that have run for some time. While the device has jobs they may wait for these.
inline std::vector<RunningCollective> LongRunningCollectives(int64_t now, const DeviceWork& device,
                                                             const Communicators& communicators) {
  if (device.Running(now).has_value()) return {};
  std::vector<RunningCollective> running = communicators.Running(now, device.ended_ns());
  std::erase_if(running, [](const RunningCollective& c) { return c.age_ns < kLeastReportedAge; });
  return running;
}

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_RUNNING_JOBS_H_
