// Runs the worker process: threads, lock and waiting around the worker core.
//
// A rank has a seat (Slot), which does one thing at a time: it prepares, computes a job, saves, ends. Where
// the schedule has overlapped pairs it has a second seat, for the jobs that start beside a forward. Threads
// do the work of the seats: as many as there are seats, but no more than kMostThreads or the machine's cores,
// whichever is more, so a process of a thousand ranks has a bounded number of them. Any thread takes the work
// of any seat. Only where a device is given jobs ahead each seat has a thread of its own, because a device's
// libraries keep memory for each thread.
//
// There is no thread between a message and the job that it makes ready: whenever one of these threads has
// nothing to compute it drives the process (takes messages and tensors, steps the core, carries out the
// effects), spinning for a short while and then blocking on the descriptors of session and transport. A job
// that a thread's own job made ready is computed by the same thread. At most one thread drives. While all
// ranks compute long jobs the main thread does, so that peers and coordinator are still answered; between
// short jobs the ranks look for themselves, and a driver that is woken by each message would only take their
// cores away.
//
// A device with a queue of its own is given jobs, and nobody waits for it: the rank's thread is free when a
// job has been launched, and the driver asks which have been done. Until they are, a driver does not block
// for longer than it takes to notice. Tensors for other processes are offered when their bytes are there;
// those that come go to the job that reads them as they are, and it brings them to the device.
//
// Everything but computing happens under one lock; ranks begin and end outside it, on the threads. The time
// under it is microseconds. No waiting happens there, except for the time that a GPU's driver takes where
// communicators end, or where memory grows into which tensors for other processes are copied. Ownership:
// borrows device, transport and link, which outlive it. Run returns when the coordinator says so, Stop was
// called or the link is lost, after the jobs that are being computed or have been launched: then no thread of
// it is left, and device, transport and link are the caller's again. Failure: of the device, names the job
// and fails the run. A thread that hangs (in a file of a dead server, in a job without end) cannot keep the
// process: Run waits `stop_grace_ns` for it, then returns DeadlineExceeded with the name of its task. A
// device that does nothing more for `device_timeout_ns` fails the run too. If a run is aborted, or the loop
// stopped, and the device has not come to an end after `device_grace_ns`, Run returns DeadlineExceeded with
// the name of the job.
//
// In worker_loop.cc: threads, driving and waiting; worker_jobs.cc: jobs; worker_effects.cc: what the core
// decided; worker_snapshots.cc: checkpoints and validations; worker_transfers.cc: tensors; worker_reports.cc:
// reports.
#ifndef WEFT_WORKER_SHELL_LOOP_WORKER_LOOP_H_
#define WEFT_WORKER_SHELL_LOOP_WORKER_LOOP_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "worker/core/worker_core.h"
#include "worker/shell/checkpoint/checkpoint_folders.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/loop/awaited_tensors.h"
#include "worker/shell/loop/collective_groups.h"
#include "worker/shell/loop/job_runner.h"
#include "worker/shell/loop/launched_jobs.h"
#include "worker/shell/loop/snapshot_writer.h"
#include "worker/shell/loop/state_holders.h"
#include "worker/shell/loop/validator.h"
#include "worker/shell/transport/transport.h"

namespace weft {

// The session as the loop sees it; the gRPC stream implements it.
class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;
  // Queues a message; never blocks. Any thread.
  virtual void Send(FromWorker message) = 0;
  // Appends the messages that have arrived. Returns false when the link is lost for good: status() says why.
  virtual bool Drain(std::vector<FromCoordinator>* messages) = 0;
  virtual absl::Status status() const = 0;
  // Returns a descriptor that is readable when Drain has something.
  virtual int event_fd() const = 0;
};

struct WorkerLoopOptions {
  // Time that an idle rank polls before it blocks. Negative: choose by the number of ranks and cores of the
  // machine.
  int spin_microseconds = -1;
  // Time from the claim of a job to the arrival of its input: as long as a slow pipeline may need. A dead
  // peer is noticed at once.
  int64_t transfer_timeout_ns = 900'000'000'000;
  int64_t report_interval_ns = 500'000'000;
  // Longest time between two looks of a thread that waits for messages.
  int64_t look_interval_ns = 1'000'000'000;
  // Figures of the device's driver, for reports (GpuMonitor::Latest); empty without a GPU. Never waits.
  std::function<std::map<std::string, double>()> gpu_figures;
  // Longest time of a job that the device was given, until it is done.
  int64_t device_timeout_ns = 900'000'000'000;
  // Likewise of all its jobs, once the run is aborted or the loop stopped.
  int64_t device_grace_ns = 30'000'000'000;
  // Time from a run's beginning until its groups of collectives are complete: a little less than the
  // coordinator gives all processes to prepare, since the message from here names the ranks that are missing.
  int64_t join_timeout_ns = 290'000'000'000;
  // Time from Stop to the end of the tasks of the host's own threads.
  int64_t stop_grace_ns = 5'000'000'000;
  // Interval at which the coordinator is told again that a data link is silent.
  int64_t stall_interval_ns = 10'000'000'000;
  // Interval of looks, while there is no run, whether other processes can still connect to this one.
  int64_t health_interval_ns = 5'000'000'000;
};

// Figures for /metrics; totals since the process started.
struct WorkerSnapshot {
  bool has_run = false;
  std::array<double, kJobKinds> busy_seconds{};
  std::array<double, kIdleCauses> idle_seconds{};
  BytesByClass live_bytes{}, peak_bytes{};
  // Most versions of one stage's weights, over the ranks.
  int weight_versions = 0, peak_weight_versions = 0;
  std::array<uint64_t, kJobKinds> jobs{};
  std::array<uint64_t, kTensorKinds> bytes_sent{}, bytes_received{};
  TransportCounters transport;
  std::vector<PeerPath> paths;  // paths of the transport, now
  uint64_t bytes_held = 0, stale_grants = 0, failures = 0;
  int silent_links = 0;  // links on which a tensor is awaited and that answer no question
};

class WorkerLoop {
 public:
  WorkerLoop(WorkerLoopOptions options, Device& device, Transport& transport, CoordinatorLink& link);
  ~WorkerLoop();

  // Serves runs until told to stop. Returns OK after Shutdown or Stop, else why the link was lost. Call once.
  absl::Status Run();
  // Stops the loop. Safe in a signal handler's thread (not in the handler).
  void Stop();
  // True if Run returned while the device still had jobs, or a thread was in the middle of one. Their memory
  // has been left as it is, and neither device, transport nor link may be destroyed. The process can only
  // end.
  bool hangs();
  WorkerSnapshot Snapshot();
  // Returns why the process is of no use though it lives; "" while it is of use. Any thread.
  std::string Problem();

 private:
  struct PrepareTask {
    std::shared_ptr<const RunSpec> spec;
    std::vector<PrepareEffect::Stage> stages;
    std::shared_ptr<const CheckpointFolders> folders;  // null for none
  };
  struct SaveTask {
    std::vector<int> stages;
    std::string folder;
  };
  struct EndTask {
    std::unique_ptr<RankCompute> compute;  // state of a run that is forgotten
  };
  using Task = std::variant<std::monostate, JobTask, PrepareTask, SaveTask, EndTask>;
  // A seat: the rank that sits here, if one does, and its next task.
  struct Slot {
    int index = 0;
    Rank rank = -1;
    std::unique_ptr<RankCompute> compute;
    // The seat for the rank's jobs beside a forward; no rank sits there. Null without pairs.
    Slot* second = nullptr;
    bool begun = false;           // true once the rank's present job, or its last, has begun
    std::optional<JobTask> held;  // job for `second`, until the present one has begun
    Task task;
    bool ending = false;  // true while its rank ends, on a thread
    std::vector<int> saved_stages;
    std::array<uint64_t, kTensorKinds> bytes_sent{}, bytes_received{};
    std::map<int32_t, int64_t> left_bytes;  // by stage: most bytes that a forward kept
  };
  // The present task of a thread, to name one that hangs.
  enum class Doing : uint8_t { kNothing, kJob, kPreparing, kSaving, kEnding };
  struct Thread {
    int index = 0;
    bool left = false;     // has ended for good
    bool waiting = false;  // waits for `wake`
    bool blocked = false;  // blocks as the driver, until a message comes or driver_fd_ is written
    Doing doing = Doing::kNothing;
    Rank rank = -1;  // rank of the task
    Job job;
    int64_t since = 0;
    CondVar wake;
    std::thread thread;
  };
  static constexpr int kNobody = -1, kMain = -2;
  static constexpr size_t kMostThreads = 16;

  void DriveUntilStopped();
  void JoinThreads();
  void ThreadMain(Thread* thread);
  // True if each seat has its own thread.
  bool own_threads() const { return device_.launch_ahead() > 1; }
  absl::Status StartThreads(size_t seats) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasTask(const Thread& thread) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns a seat with a task for the thread, which then must do it; null if there is none.
  Slot* NextTask(const Thread& thread) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns false if no thread waits.
  bool WakeOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Describes the tasks that threads have not come back from: "forward (step 3, stage 1, micro-batch 0) of
  // rank 1 for 5.0 s".
  std::string WhatHangs(int64_t now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Enclose the part of a thread's task that runs without the lock.
  void LeaveLock() ABSL_UNLOCK_FUNCTION(mu_);
  void TakeLock() ABSL_EXCLUSIVE_LOCK_FUNCTION(mu_);
  void RunTask(Thread* thread, Slot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunJobTask(JobTask task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForwardBegun(Slot* slot) ABSL_LOCKS_EXCLUDED(mu_);
  // True if the device has jobs or copies that it has been given and not done.
  bool DeviceWorks() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !launched_.empty() || !awaited_.empty();
  }
  // Asks the device. Returns false if it has done none of them since the last look.
  bool PollDevice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void JobEnded(int64_t now, LaunchedJobs::Ended ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CheckDevice(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string AwaitedOfDevice(int64_t now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitDevice();
  // Gives up on a device or a thread that hangs, with everything that it may still touch.
  void LeaveBehind() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static absl::Status NotEnded(const std::string& what);
  // Moves joins and collectives on; false if nothing came of it.
  bool PollCollectives(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginCollective(int64_t now, Slot* slot, const Job& job, const Tensor& from, const Tensor& whole)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool BeginGroups(int64_t now, PrepareEffect& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drive(Thread* thread) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool RanksLookOften() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellStall(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CheckHealth(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveDriving() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes and handles all messages and events; returns false if there was none.
  bool Poll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until there may be something, or for a write to `own_fd`; `blocked` is true meanwhile. Releases the
  // lock, also before it waits: then it returns at once, since all may have changed.
  void Block(int own_fd, bool* blocked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes that the device has been given work: threads that began to wait before look often from now on.
  void LookAtDevice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Queues a message; completions wait for SendGathered, anything else goes at once with all before it.
  void Send(FromWorker message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes the queued messages and releases the lock meanwhile; returns false if there was none.
  bool SendGathered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HandleTransport(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Offer(int64_t now, PeerId peer, const TensorKey& key, Tensor tensor,
             std::shared_ptr<LaunchedJob> made_by) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Arrived(int64_t now, AwaitedTensors::Awaited awaited) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Apply(int64_t now, const JobOutcome* outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyOne(int64_t now, WorkerEffect& effect, const JobOutcome* outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Prepare(int64_t now, PrepareEffect& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckMemory(const RunSpec& spec, const PrepareEffect& effect) const;
  absl::Status SeatRanks(int64_t now, const Assign& a) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Tensor> TakeArrived(const std::vector<TensorKey>& keys) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Start(StartEffect& effect) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Publish(int64_t now, const PublishEffect& effect, const JobOutcome* outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Save(int step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Seal(const SealEffect& seal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SnapshotDone(const SnapshotWriter::Done& done) ABSL_LOCKS_EXCLUDED(mu_);
  void Validate(int step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellValidation(const Validation& validation) ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndRanks(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CheckEnds(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reports the first failure of a run.
  void Fail(int64_t now, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Give(Slot* slot, Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status PrepareRank(Slot* slot, const PrepareTask& task) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status SaveRank(Slot* slot, const SaveTask& task) ABSL_LOCKS_EXCLUDED(mu_);
  void TaskEnded(const absl::Status& status, void (WorkerLoop::*all_ended)(int64_t now))
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AllPrepared(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AllSaved(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Slot* SlotOf(Rank rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountReceived(const TensorKey& key, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<RankReport> Reports(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddRunTo(int64_t now, WorkerSnapshot* snapshot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const WorkerLoopOptions options_;
  Device& device_;
  Transport& transport_;
  CoordinatorLink& link_;
  // The main thread may still wait for messages when a rank's thread has taken over driving, so that each has
  // its own.
  const int main_fd_, driver_fd_;

  Mutex mu_;
  CondVar main_wake_ ABSL_GUARDED_BY(mu_);
  WorkerCore core_ ABSL_GUARDED_BY(mu_);
  WorkerEffects effects_ ABSL_GUARDED_BY(mu_);
  bool applying_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::unique_ptr<Slot>> slots_ ABSL_GUARDED_BY(mu_);
  // Seats of the run's ranks; null: the rank is in another process.
  std::vector<Slot*> slot_of_rank_ ABSL_GUARDED_BY(mu_);
  std::deque<std::unique_ptr<Thread>> threads_ ABSL_GUARDED_BY(mu_);
  // Seats with a task, but for those that have their own threads.
  std::deque<Slot*> queue_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<TensorKey, Tensor> inbox_ ABSL_GUARDED_BY(mu_);
  StateHolders holders_ ABSL_GUARDED_BY(mu_);
  CollectiveGroups groups_ ABSL_GUARDED_BY(mu_);
  LaunchedJobs launched_ ABSL_GUARDED_BY(mu_);
  AwaitedTensors awaited_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const RunSpec> spec_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const CheckpointFolders> folders_ ABSL_GUARDED_BY(mu_);  // null for a run without output
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mu_);                           // processes of the run
  int saving_step_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<FromWorker> outbox_ ABSL_GUARDED_BY(mu_);  // messages not yet given to the link
  size_t gathered_ ABSL_GUARDED_BY(mu_) = 0;            // number of completions in it
  bool sending_ ABSL_GUARDED_BY(mu_) = false;
  int pending_tasks_ ABSL_GUARDED_BY(mu_) = 0;  // number of Prepare or Save tasks
  absl::Status task_status_ ABSL_GUARDED_BY(mu_);
  int driver_ ABSL_GUARDED_BY(mu_) = kNobody;
  bool main_blocked_ ABSL_GUARDED_BY(mu_) = false;
  int asleep_ ABSL_GUARDED_BY(mu_) = 0;      // threads that wait for messages and do not look at the device
  int64_t job_ns_ ABSL_GUARDED_BY(mu_) = 0;  // running mean of the jobs' times
  int64_t last_job_end_ ABSL_GUARDED_BY(mu_) = 0;
  bool prepared_ ABSL_GUARDED_BY(mu_) = false;  // true if every rank of the run has its compute
  // True while a prepared run waits for its groups of collectives.
  bool joining_ ABSL_GUARDED_BY(mu_) = false;
  bool forget_when_idle_ ABSL_GUARDED_BY(mu_) = false;
  int64_t give_up_ns_ ABSL_GUARDED_BY(mu_) = 0;    // time to give up; 0: the run is not aborted
  int64_t end_until_ns_ ABSL_GUARDED_BY(mu_) = 0;  // 0: no ranks of a device end
  // True if a run failed here and the device has not been asked since.
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  bool hangs_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<int64_t> looked_ns_{0};  // time when messages were last taken
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  int64_t spin_ns_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t next_report_ ABSL_GUARDED_BY(mu_) = 0, next_health_ ABSL_GUARDED_BY(mu_) = 0;
  // Time when a silence was reported; nothing while all is well.
  std::optional<int64_t> told_silence_ns_ ABSL_GUARDED_BY(mu_);
  WorkerSnapshot past_ ABSL_GUARDED_BY(mu_);  // totals of forgotten runs
  std::vector<FromCoordinator> messages_ ABSL_GUARDED_BY(mu_);
  std::vector<TransportEvent> events_ ABSL_GUARDED_BY(mu_);
  // Last, so that their threads have ended before anything that they call.
  SnapshotWriter snapshots_;
  Validator validator_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_WORKER_LOOP_H_
