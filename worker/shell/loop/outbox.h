// Keeps the messages to the coordinator that have not been given to the link.
//
// A write of the session costs as much as a short job and wakes another process, whose work takes time of the
// ranks' processors again. So completions gather while ranks are busy. A rank's thread that has nothing to do
// sends them, or one that made them many, or the main thread: every 10 ms while jobs are short, and while all
// ranks compute longer ones when they are due, `gather_ns` behind the first. The last of this process in a
// step is due at once, with all that wait, because the step may be complete with it. Two kinds are urgent,
// and the thread that made them sends them before it takes another job: the first of an attempt, since a
// recovery ends with it, and those of watched steps, since the next job may end the process (Assign).
// Anything else goes at once, with all before it.
//
// Invariants: messages leave in the order in which they came, each once; one thread sends at a time.
// Threads: the owner locks; SendGathered and AwaitSent release its lock meanwhile.
#ifndef WEFT_WORKER_SHELL_LOOP_OUTBOX_H_
#define WEFT_WORKER_SHELL_LOOP_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "proto/session/messages.h"
#include "worker/shell/loop/coordinator_link.h"

namespace weft {

class Outbox {
 public:
  // `gather_ns` is the longest time for which completions wait while all ranks compute.
  Outbox(CoordinatorLink& link, int64_t gather_ns) : link_(link), gather_ns_(gather_ns) {}

  // Notes an attempt, in which the steps before this one are watched.
  void BeginAttempt(int watched_before) {
    watched_before_ = watched_before;
    begins_ = true;
  }
  // Queues a message; with `soon` it may not wait long. Returns true if it waits and is due at once.
  bool Send(int64_t now, FromWorker message, bool soon = false);
  // Writes the queued messages; returns false if there was none. A thread that sends takes what comes
  // meanwhile too, so others return at once.
  bool SendGathered(Mutex& mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Waits until no thread sends. Returns false, without giving the lock away, if none does.
  bool AwaitSent(Mutex& mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Drops what waits, for a link that is lost.
  void Clear() {
    TakeWaiting();
    begins_ = true;  // what comes first over the new link may have waited long
  }
  // Returns true if so many completions wait that a busy thread should send them.
  bool is_full() const { return gathered_ >= kGatherJobs; }
  // Returns when what waits has to be sent, even if all ranks are busy; INT64_MAX if nothing waits.
  int64_t due_ns() const { return due_ns_; }
  bool is_urgent() const { return urgent_; }

 private:
  static constexpr size_t kGatherJobs = 32;  // half of the least credit

  // Notes completions that wait. Returns true if they are due at once.
  bool Gather(int64_t now, const Completions& completions, bool soon);
  // Returns all that waits, so that nothing does.
  std::deque<FromWorker> TakeWaiting();

  CoordinatorLink& link_;
  const int64_t gather_ns_;
  std::deque<FromWorker> waiting_;
  size_t gathered_ = 0;  // number of completions in it
  int64_t due_ns_ = INT64_MAX;
  int watched_before_ = 0;
  bool begins_ = false;   // true until the first completion of an attempt
  bool urgent_ = false;   // true if one that waits is urgent
  bool sending_ = false;  // true while a thread sends without the owner's lock
  CondVar sent_;          // signals its end
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_OUTBOX_H_
