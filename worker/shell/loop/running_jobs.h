// Says which jobs a process computes at the moment, and which collectives its device does, for its reports.
// The owner of all parts locks.
#ifndef WEFT_WORKER_SHELL_LOOP_RUNNING_JOBS_H_
#define WEFT_WORKER_SHELL_LOOP_RUNNING_JOBS_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "proto/session/messages.h"
#include "worker/shell/loop/communicators.h"
#include "worker/shell/loop/device_work.h"
#include "worker/shell/loop/work_threads.h"

namespace weft {

// Returns those that have run for some time: others end before anybody could miss them.
template <typename Running>
std::vector<Running> LongRunning(std::vector<Running> running) {
  constexpr int64_t kLeast = 500'000'000;
  std::erase_if(running, [](const Running& r) { return r.age_ns < kLeast; });
  return running;
}

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
  return LongRunning(std::move(running));
}

// Returns the collectives that have run for some time. While the device has jobs they may wait for these.
inline std::vector<RunningJointOperation> LongRunningJointOperations(int64_t now, const DeviceWork& device,
                                                                     const Communicators& communicators) {
  if (device.Running(now).has_value()) return {};
  return LongRunning(communicators.Running(now, device.ended_ns()));
}

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_RUNNING_JOBS_H_
