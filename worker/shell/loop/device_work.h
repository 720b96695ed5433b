// Watches what the device of a process has been given and has not done: jobs, and copies of tensors for other
// processes.
//
// Nothing waits here; the thread that drives the process asks now and then. A job may take as long as the
// coordinator lets it, which hears for how long it has been done (Running). A copy waits for the jobs before
// it; a device that has none and does not end a copy for `copy_timeout_ns` is late, which fails the run. Once
// the run is over, the device has a grace to come to an end; then the process cannot go on with it.
//
// Not thread-safe; the owner locks. Ownership: the memory that the device may still write into belongs to
// the jobs and tensors here, so a device that hangs leaves them behind (Release).
#ifndef WEFT_WORKER_SHELL_LOOP_DEVICE_WORK_H_
#define WEFT_WORKER_SHELL_LOOP_DEVICE_WORK_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/session/messages.h"
#include "worker/shell/loop/awaited_tensors.h"
#include "worker/shell/loop/launched_jobs.h"

namespace weft {

class DeviceWork {
 public:
  struct Limits {
    int64_t copy_timeout_ns = 0;  // longest time of a copy that waits for no job
    int64_t grace_ns = 0;         // longest time of all of them, once the run is over
  };
  struct Done {
    std::vector<LaunchedJobs::Ended> jobs;
    std::vector<AwaitedTensors::Awaited> tensors;
    bool any() const { return !jobs.empty() || !tensors.empty(); }
  };
  explicit DeviceWork(Limits limits) : limits_(limits) {}

  void Add(LaunchedJobs::Launch job) { launched_.Add(std::move(job)); }
  void Add(AwaitedTensors::Awaited tensor) { awaited_.Add(std::move(tensor)); }
  bool busy() const { return !launched_.empty() || !awaited_.empty(); }
  // Returns what has been done since the last call, or never will be.
  Done Poll(int64_t now);
  // Returns the job that the device does, of those that it has been given the oldest, and for how long: it
  // began when the device had ended all before it.
  std::optional<RunningJob> Running(int64_t now) const;
  // Returns when the device was last found to have ended something; 0 for never.
  int64_t ended_ns() const { return ended_ns_; }

  // Starts the time in which all work has to come to an end, unless it runs.
  void BeginGrace(int64_t now) {
    if (give_up_ns_ == 0) give_up_ns_ = now + limits_.grace_ns;
  }
  // Starts it anew.
  void RestartGrace(int64_t now) { give_up_ns_ = now + limits_.grace_ns; }
  void EndGrace() { give_up_ns_ = 0; }
  // Returns true if the time is over. The next require that the device is busy.
  bool IsGivenUp(int64_t now) const { return give_up_ns_ != 0 && now > give_up_ns_; }
  bool IsLate(int64_t now) const {
    return launched_.empty() && now - std::max(OldestSince(), ended_ns_) > limits_.copy_timeout_ns;
  }
  // Says which job or copy the device was given first, as DeadlineExceeded.
  absl::Status NotDone(int64_t now) const;

  // Takes everything out, to be kept for as long as the device may touch it.
  std::shared_ptr<void> Release();

 private:
  int64_t OldestSince() const;

  const Limits limits_;
  LaunchedJobs launched_;
  AwaitedTensors awaited_;
  int64_t ended_ns_ = 0;    // 0: never
  int64_t give_up_ns_ = 0;  // 0: no run is over
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_DEVICE_WORK_H_
