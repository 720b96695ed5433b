// Runs the worker process: takes messages and events, has them handled, and ends when told to.
//
// It is the host of the threads that compute and drive (work_threads.h). The driving thread polls the
// session, the device and the transport in turn; the effect runner steps the core with what they bring
// (effect_runner.h). Messages to the coordinator leave by the outbox (outbox.h).
//
// If a device is given jobs ahead, a driver does not block for longer than it takes to notice that one is
// done, and each seat has a thread of its own, because a device's libraries keep memory for each thread.
//
// Everything but computing happens under one lock; ranks begin and end outside it, on the threads. The time
// under it is microseconds. No waiting happens there, except for the time that a GPU's driver takes where
// communicators end, or where memory grows into which tensors for other processes are copied. Ownership:
// borrows device, transport and link, which outlive it. Run returns when the coordinator says so, Stop was
// called or the link is lost, after the jobs that are being computed or have been launched: then no thread of
// it is left, and device, transport and link are the caller's again. Failure: of the device, names the job
// and fails the run. A thread that hangs (in a file of a dead server, in a job without end) cannot keep the
// process: Run waits `stop_grace_ns` for it, then returns DeadlineExceeded with the name of its task. A
// device that does not end a copy within `copy_timeout_ns` fails the run too; how long a job may take is the
// coordinator's to say, which hears what runs. If a run is aborted, or the loop
// stopped, and the device has not come to an end after `device_grace_ns`, Run returns DeadlineExceeded with
// the name of the job.
#ifndef WEFT_WORKER_SHELL_LOOP_WORKER_LOOP_H_
#define WEFT_WORKER_SHELL_LOOP_WORKER_LOOP_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/loop/coordinator_link.h"
#include "worker/shell/loop/effect_runner.h"
#include "worker/shell/loop/loop_events.h"
#include "worker/shell/loop/outbox.h"
#include "worker/shell/loop/rank_reports.h"
#include "worker/shell/loop/work_threads.h"
#include "worker/shell/loop/worker_loop_options.h"
#include "worker/shell/transport/transport.h"

namespace weft {

class WorkerLoop final : private WorkThreads::Host {
 public:
  WorkerLoop(WorkerLoopOptions options, Device& device, Transport& transport, CoordinatorLink& link);
  ~WorkerLoop() override;

  // Serves runs until told to stop. Returns OK after Shutdown or Stop, else why the link was lost. Call once.
  absl::Status Run();
  // Stops the loop. Safe in a signal handler's thread (not in the handler).
  void Stop();
  // Returns true if Run returned while the device still had jobs, or a thread was in the middle of one. Their
  // memory has been left as it is, and neither device, transport nor link may be destroyed. The process can
  // only end.
  bool hangs();
  WorkerSnapshot Snapshot();
  // Returns why the process is of no use though it lives; "" while it is of use. Any thread.
  std::string Problem();
  // Returns the part of that which needs no lock: that messages are not taken any more. Any thread.
  std::string Stall() const;

 private:
  // Methods of WorkThreads::Host.
  void PrepareThread() override { device_.PrepareThread(); }
  WorkThreads::Doing TaskAt(int seat) override;
  void DoTask(int64_t now, int seat) override;
  bool Poll() override;
  bool SendGathered() override;
  bool SendDue() override;
  std::optional<WorkThreads::Wait> PrepareToBlock() override;

  void JoinThreads() ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitDevice() ABSL_LOCKS_EXCLUDED(mu_);
  void StopWith(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives up on a device or a thread that hangs, with everything that it may still touch.
  void LeaveBehind() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Registers anew with a coordinator that does not know this process any more, and tells it what the process
  // has. Returns false if the link is lost for good.
  bool Renew(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Does what is due by the clock.
  void CheckTimes(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CheckHealth(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const WorkerLoopOptions options_;
  Device& device_;
  Transport& transport_;
  CoordinatorLink& link_;
  const LoopEvents events_;

  Mutex mu_;
  WorkThreads threads_ ABSL_GUARDED_BY(mu_);
  Outbox outbox_ ABSL_GUARDED_BY(mu_);
  bool hangs_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::atomic<int64_t> looked_ns_{0};  // time when messages were last taken
  int64_t next_health_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<FromCoordinator> messages_ ABSL_GUARDED_BY(mu_);
  // Last: its threads end before anything that they call. It locks by itself where it is called without.
  EffectRunner runner_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_WORKER_LOOP_H_
