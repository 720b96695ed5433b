// Carries out what the worker core decides for the ranks of this process, and steps the core with what comes
// of it: jobs that end, tensors that arrive, operations of the devices that are over.
//
// It joins the machines of a run, each with a state of its own: the life of the run in this process, from its
// preparation to its end (run_life.h), the seats of the ranks (rank_seats.h), jobs from their start to their
// end (started_jobs.h), tensors (tensor_exchange.h), what a device has been given (device_work.h), its
// communicators (communicators.h), and what is saved beside the jobs (state_saver.h). This class itself keeps
// the core and what it has decided, and the figures for reports.
//
// A device with a queue of its own is given jobs, and nobody waits for it: the rank's seat is free when a
// job has been launched, and the driver asks which have been done (PollDevice).
//
// Invariants:
//   1. Effects are carried out in the core's order. Those that come meanwhile are carried out behind them.
//   2. The core forgets a run when its life is over.
//
// Threads: everything is called with the owner's lock held, unless a comment says otherwise; only computing,
// preparing, saving and ending a rank release it. The writer's and the validator's threads take it.
// Ownership: borrows all that the constructor takes. Failure: of a job or the device fails the run, once; a
// device that comes to no end is the owner's to handle (CheckEnds).
#ifndef WEFT_WORKER_SHELL_LOOP_EFFECT_RUNNER_H_
#define WEFT_WORKER_SHELL_LOOP_EFFECT_RUNNER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "worker/core/worker_core.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/loop/communicators.h"
#include "worker/shell/loop/device_work.h"
#include "worker/shell/loop/loop_events.h"
#include "worker/shell/loop/outbox.h"
#include "worker/shell/loop/rank_reports.h"
#include "worker/shell/loop/rank_rounds.h"
#include "worker/shell/loop/rank_seats.h"
#include "worker/shell/loop/run_life.h"
#include "worker/shell/loop/silence_reports.h"
#include "worker/shell/loop/started_jobs.h"
#include "worker/shell/loop/state_saver.h"
#include "worker/shell/loop/taken_tensors.h"
#include "worker/shell/loop/tensor_exchange.h"
#include "worker/shell/loop/work_threads.h"
#include "worker/shell/loop/worker_loop_options.h"
#include "worker/shell/transport/transport.h"

namespace weft {

class EffectRunner {
 public:
  EffectRunner(const WorkerLoopOptions& options, Device& device, Transport& transport, Mutex& mu,
               WorkThreads& threads, Outbox& outbox, const LoopEvents& events);

  // Serve WorkThreads::Host.
  WorkThreads::Doing TaskAt(int seat);
  void DoTask(int seat);

  // Handle what has happened. The polls return false if nothing has.
  void OnMessage(int64_t now, const FromCoordinator& message);
  // Tells a coordinator that does not know this process any more what the process has (WorkerCore::Return).
  void Return(int64_t now);
  bool PollDevice();
  bool PollTransport(int64_t now);
  bool PollCommunicators(int64_t now);
  bool PollTaken(int64_t now);
  // Forgets a run that is over, if nothing of it is in progress any more.
  void ForgetIfIdle(int64_t now);
  // Reports on the run to the coordinator, once in each report interval.
  void SendReportIfDue(int64_t now);

  // Returns true if the device has jobs or copies that it has been given and not done.
  bool DeviceWorks() const;
  // Returns true if a thread has to look often: nobody tells what the device does.
  bool LooksOften() const;
  // Returns why the device is lost for this process: it does not come to an end; OK while it may.
  absl::Status CheckEnds(int64_t now) const;
  // Returns the time by which CheckEnds or SendReportIfDue wants to be called; INT64_MAX for none.
  int64_t next_look() const;

  const WorkerCore& core() const;
  // Returns true if something of a run has failed here since the last call.
  bool TakeFailure();
  // Returns true if a run has ended since the last call that failed here.
  bool TakeFailedRun();
  // Returns the figures of this run and those before.
  WorkerSnapshot Figures(int64_t now);

  // Ends the writer of snapshots (SnapshotWriter::End). Call without the lock.
  bool EndSnapshots(int64_t until) { return saver_.End(until); }
  // Starts the time in which the device has to come to an end. Returns false once that time is over.
  bool AwaitsDevice(int64_t now);
  // Says which work the device has not done. Requires that there is some.
  absl::Status DeviceNotDone(int64_t now) const;
  // Leaves behind all that a device or a thread that hangs may still touch.
  void LeaveBehind();

 private:
  void Apply(int64_t now, const JobOutcome* outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyOne(int64_t now, WorkerEffect& effect, const JobOutcome* outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Fails the run here; its first failure is reported. `link_to`: the other end of the data link that failed;
  // `job`: the job that did.
  void Fail(int64_t now, const absl::Status& status, std::optional<PeerId> link_to = std::nullopt,
            const Job* job = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Start(StartEffect& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Do the seat's task, which is a job, or a part of a round.
  void DoJob(Seat& seat) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DoPartOfRound(Seat& seat) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForwardBegun(Rank rank) ABSL_LOCKS_EXCLUDED(mu_);
  void JobDoneOnDevice(int64_t now, LaunchedJobs::Ended ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes that the device has been given work: threads that began to wait before look often from now on.
  void LookAtDevice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Send(FromWorker message, bool soon = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<RankReport> Reports(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SnapshotDone(const SnapshotWriter::Done& done) ABSL_LOCKS_EXCLUDED(mu_);
  void SendValidation(const Validation& validation) ABSL_LOCKS_EXCLUDED(mu_);

  void Prepare(int64_t now, PrepareEffect& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AllPrepared(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Has the ranks begin with copies of the state that this process keeps.
  void Resume(int64_t now, const ResumeEffect& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Hands a copy to another process.
  absl::Status OfferCopy(int64_t now, const PublishEffect& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CopiesDone(const SnapshotWriter::Done& done) ABSL_LOCKS_EXCLUDED(mu_);
  // Goes on where all ranks have been prepared, have saved, have begun with copies or have ended.
  void RoundOver(int64_t now, const RankRounds::Over& round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the run, and forgets it if it is over.
  void Forget(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const WorkerLoopOptions& options_;
  Device& device_;
  Transport& transport_;
  Mutex& mu_;
  WorkThreads& threads_;
  Outbox& outbox_;
  const LoopEvents& log_;

  WorkerCore core_ ABSL_GUARDED_BY(mu_);
  WorkerEffects effects_ ABSL_GUARDED_BY(mu_);
  bool applying_ ABSL_GUARDED_BY(mu_) = false;
  RankSeats seats_ ABSL_GUARDED_BY(mu_);
  DeviceWork device_work_ ABSL_GUARDED_BY(mu_);
  TakenTensors taken_;
  TensorExchange exchange_ ABSL_GUARDED_BY(mu_);
  Communicators communicators_ ABSL_GUARDED_BY(mu_);
  StartedJobs started_ ABSL_GUARDED_BY(mu_);
  RunLife life_ ABSL_GUARDED_BY(mu_);
  std::vector<TransportEvent> events_ ABSL_GUARDED_BY(mu_);

  int64_t next_report_ ABSL_GUARDED_BY(mu_) = 0;
  SilenceReports silence_ ABSL_GUARDED_BY(mu_);
  bool failed_ ABSL_GUARDED_BY(mu_) = false, failed_run_ ABSL_GUARDED_BY(mu_) = false;
  WorkerSnapshot past_ ABSL_GUARDED_BY(mu_);  // totals of forgotten runs
  // Last, so that their threads have ended before anything that they call.
  StateSaver saver_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_EFFECT_RUNNER_H_
