// Runs the threads of a worker process: they do the tasks of seats, and one of them, or the main thread,
// drives the process meanwhile.
//
// A seat does one task at a time. Threads do the work of the seats: as many as there are seats, but no more
// than kMaxThreads or the machine's cores, whichever is more, so a process of a thousand ranks has a bounded
// number of them. Any thread takes the work of any seat. Only with `own_threads` each seat has a thread of
// its own.
//
// There is no thread between a message and the job that it makes ready: whenever one of these threads has
// nothing to compute it drives the process (Host::Poll), spinning for a short while and then blocking on the
// host's descriptors. A job that a thread's own job made ready is computed by the same thread. While all
// ranks compute long jobs the main thread drives, so that peers and coordinator are still answered; between
// short jobs the ranks look for themselves, and a driver that is woken by each message would only take their
// cores away.
//
// Invariants:
//   1. At most one thread drives.
//   2. A task that was given is done once, unless the threads have been stopped before.
//   3. The host is called under the lock, by the thread that has something to do.
//
// Threads: everything is called with the owner's lock held, unless a comment says otherwise; the constructor
// takes that lock. Ownership: borrows lock and host, which outlive it; a thread that hangs keeps both
// (Detach). Failure: no thread can be started.
#ifndef WEFT_WORKER_SHELL_LOOP_WORK_THREADS_H_
#define WEFT_WORKER_SHELL_LOOP_WORK_THREADS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "proto/session/messages.h"
#include "schedules/job.h"

namespace weft {

// Tells clang's analysis that the lock is held, where a call comes through an interface.
inline void AssertHeld([[maybe_unused]] Mutex& mu) ABSL_ASSERT_EXCLUSIVE_LOCK(mu) {}

class WorkThreads {
 public:
  // The work of a thread for a rank, to name one that hangs.
  struct Doing {
    const char* word = "";   // "preparing"
    std::optional<Job> job;  // job, which says more than a word
    Rank rank = -1;
  };
  // The things that a thread that blocks waits for.
  struct Wait {
    int link_fd = -1, transport_fd = -1;
    int64_t until_ns = 0;
    // The device has work, of whose end no descriptor tells: look again soon.
    bool for_device = false;
  };
  class Host {
   public:
    virtual ~Host() = default;
    // Makes the calling thread ready for tasks. Called without the lock.
    virtual void PrepareThread() = 0;
    // Names the task of the seat.
    virtual Doing TaskAt(int seat) = 0;
    // Does the task of the seat, its own part between Unlock and Lock.
    virtual void DoTask(int64_t now, int seat) = 0;
    // Takes and handles all messages and events; returns false if there was none.
    virtual bool Poll() = 0;
    // Sends what waits to be sent; returns false if there was nothing. May release the lock meanwhile.
    virtual bool SendGathered() = 0;
    // Sends what waits if it is due although all ranks are busy; returns false if it sent nothing. May
    // release the lock.
    virtual bool SendDue() = 0;
    // Returns what a thread that blocks waits for; nothing if it must not block, as there is something to do.
    virtual std::optional<Wait> PrepareToBlock() = 0;
  };

  WorkThreads(Mutex& mu, Host& host, bool own_threads);
  ~WorkThreads();

  // Starts threads for so many seats. With fewer threads than wished for, the work of all seats is done too,
  // later. ResourceExhausted if none can be started, or with own threads not all.
  absl::Status Start(size_t seats);
  // Sets how long a driver polls before it blocks; negative: short if so many threads, of all processes, have
  // to share cores, since they must not spin away each other's time.
  void ChooseSpin(int microseconds, size_t threads);
  // Drives the process on the calling thread, when no other one does, until it is stopped.
  void DriveUntilStopped();
  // Stops the threads: each ends after its present task. Safe at any time.
  void Stop();
  bool stopped() const;
  // Waits for the end of the threads. Returns false if one has not ended by `until`.
  bool Join(int64_t until);
  // Leaves threads that hang to themselves.
  void Detach();
  // Appends the jobs that threads compute, and for how long already.
  void AppendRunning(int64_t now, std::vector<RunningJob>* running) const;
  // Describes the tasks that threads have not come back from: "forward (step 3, stage 1, micro-batch 0) of
  // rank 1 for 5.0 s".
  std::string WhatHangs(int64_t now) const;

  // Gives a task to the seat, which has none.
  void Give(int seat);
  // Enclose the part of a task that runs without the owner's lock. Call on one of the threads.
  static void Unlock(Mutex& mu) ABSL_UNLOCK_FUNCTION(mu);
  static void Lock(Mutex& mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu);
  // Notes a job that has ended, and how long it took.
  void NoteJob(int64_t now, int64_t nanoseconds);

  // Wakes all threads, to look at what has changed.
  void WakeAll();
  // Wakes those that began to block before the device had work: they look often from now on.
  void WakeForDevice();
  // Wakes the main thread if it blocks; else it looks soon by itself.
  void WakeMain();

 private:
  struct Thread {
    int index = 0;
    bool ended = false;    // has ended for good
    bool waiting = false;  // waits for `wake`
    bool blocked = false;  // blocks as the driver, until a message comes or driver_fd_ is written
    bool busy = false;     // does a task
    Doing doing;
    int64_t since = 0;
    CondVar wake;
    std::thread thread;
  };
  static constexpr int kNobody = -1, kMain = -2;
  static constexpr size_t kMaxThreads = 16;

  void ThreadMain(Thread* thread) ABSL_LOCKS_EXCLUDED(mu_);
  void DoTask(Thread* thread, int seat) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasTask(const Thread& thread) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the seat of a task that the thread then must do; -1 if there is none.
  int TakeTask(const Thread& thread) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drive(Thread* thread) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveDriving() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Polls the host.
  bool Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Leaves the lock for long enough that others get it.
  void LeaveLock() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool RanksLookOften() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns false if no thread waits.
  bool WakeOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until there may be something, or for a write to `own_fd`; `blocked` is true meanwhile. Releases the
  // lock, also before it waits: then it returns at once, since all may have changed. Leaves it to others
  // where looks find nothing again and again and there is nothing to wait for.
  void Block(int own_fd, bool* blocked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex& mu_;
  Host& host_;
  const bool own_threads_;
  // The main thread may still wait for messages when a rank's thread has taken over driving, so that each has
  // its own.
  const int main_fd_, driver_fd_;

  CondVar main_wake_ ABSL_GUARDED_BY(mu_);
  std::deque<std::unique_ptr<Thread>> threads_ ABSL_GUARDED_BY(mu_);
  std::deque<int> queue_ ABSL_GUARDED_BY(mu_);    // seats with a task, unless they have their own threads
  std::vector<char> given_ ABSL_GUARDED_BY(mu_);  // by seat with its own thread: whether it has a task
  int driver_ ABSL_GUARDED_BY(mu_) = kNobody;
  bool main_blocked_ ABSL_GUARDED_BY(mu_) = false;
  int asleep_ ABSL_GUARDED_BY(mu_) = 0;      // threads that wait for messages and do not look at the device
  int64_t job_ns_ ABSL_GUARDED_BY(mu_) = 0;  // running mean of the jobs' times
  int64_t last_job_end_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t spin_ns_ ABSL_GUARDED_BY(mu_) = 0;
  // Looks in a row that found nothing, since a thread has waited for messages.
  int vain_looks_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_WORK_THREADS_H_
