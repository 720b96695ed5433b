// Accounts for a rank's time: every instant is busy with one kind of job, or idle for exactly one cause; the
// sum is wall time.
//
// An instant in which both jobs of an overlapped pair are computed is busy once, and counts for the kind of
// the job that began first. The clock is a ledger fed with times: it holds the present state and when it
// began, and closes the interval when the state changes. Pure; times are nanoseconds of one monotonic clock
// and must not run backwards (an earlier time counts as the latest one seen).
//
// A device computes jobs later than they are given to it, and the times are known only afterwards. From
// Launched on until nothing of the rank is in flight, the clock is therefore behind: it notes the causes as
// they change, and each job that has ended settles the time up to its end. While the device computed nothing,
// the cause is the one noted for that time, until the rank gave it the next job. From then on the cause is
// that job's inputs, as long as they were not made, else dispatch. The notes are as many as there were
// changes since the last job that has ended.
//
// The last intervals of idleness are kept, as many as it is told to keep.
#ifndef WEFT_WORKER_CORE_RANK_CLOCK_H_
#define WEFT_WORKER_CORE_RANK_CLOCK_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "proto/session/messages.h"
#include "schedules/job.h"
#include "schedules/timeline.h"

namespace weft {

// The times of a job that is launched: when the rank started it, and when other ranks of the device made the
// last of its inputs.
struct GivenJob {
  int64_t at = std::numeric_limits<int64_t>::max();
  int64_t inputs_made = 0;
};

class RankClock {
 public:
  using Given = GivenJob;
  explicit RankClock(int64_t now, size_t max_spans = 0) : start_(now), since_(now), max_spans_(max_spans) {}

  // Sets the rank idle for `cause` from now on, or as soon as the device has done its jobs.
  void Idle(int64_t now, IdleCause cause) {
    if (behind_) return NoteCause(now, cause);
    Close(now);
    cause_ = cause;
  }

  // Notes that a job that the rank had started was given to the device.
  void Launched() { behind_ = true; }

  // Notes that the rank computed a job from `start` to `end`. The time around it, since the last change and
  // until now, was dispatch, or, of a job that was launched, the noted causes. `overlapped`: a second job is
  // still computed at the same time; both are counted when none is. `in_flight`: the rank has started others
  // that have not ended.
  void Job(int64_t now, int64_t start, int64_t end, JobKind kind, bool overlapped = false,
           bool in_flight = false, Given given = {}) {
    ended_.push_back({start, end, kind, given});
    if (overlapped) return;
    std::sort(ended_.begin(), ended_.end(), [](const Ended& a, const Ended& b) { return a.start < b.start; });
    if (!behind_) cause_ = IdleCause::kDispatch;
    for (const Ended& job : ended_) {
      SettleBefore(job);
      const int64_t busy = std::max<int64_t>(0, job.end - since_);
      busy_[static_cast<int>(job.kind)] += busy;
      since_ += busy;
    }
    ended_.clear();
    if (behind_ && in_flight) return Settle(since_);
    Settle(now);
    behind_ = false;
  }

  // Notes that the rank's awaited tensor was made at `made`: from then until now it was a transfer.
  void Arrived(int64_t now, int64_t made) {
    const IdleCause before = cause();
    if (before != IdleCause::kDependency && before != IdleCause::kReduce) return;
    if (behind_) {
      NoteCause(std::min(now, made), IdleCause::kTransfer);
      return NoteCause(now, before);
    }
    Close(std::min(now, std::max(made, since_)));
    cause_ = IdleCause::kTransfer;
    Close(now);
    cause_ = before;
  }

  int64_t busy(JobKind kind) const { return busy_[static_cast<int>(kind)]; }
  // Returns the idle time without the interval that is still open.
  int64_t idle(IdleCause cause) const { return idle_[static_cast<int>(cause)]; }
  // Returns the newest cause.
  IdleCause cause() const { return notes_.empty() ? cause_ : notes_.back().cause; }
  // Returns the last intervals, in order; adjacent ones have different causes.
  const std::deque<IdleSpan>& spans() const { return spans_; }
  // Returns the time from the start to the end of the last closed interval: equal to the sum of all busy and
  // idle.
  int64_t wall() const { return since_ - start_; }
  // Returns the number of notes and ended jobs that wait to be settled.
  size_t unsettled() const { return notes_.size() + ended_.size(); }

 private:
  struct Note {
    int64_t at;
    IdleCause cause;
  };

  void Close(int64_t now) {
    if (now <= since_) return;
    idle_[static_cast<int>(cause_)] += now - since_;
    if (max_spans_ > 0) Keep({cause_, since_, now});
    since_ = now;
  }
  // Closes up to `until`, for the causes that were noted.
  void Settle(int64_t until) {
    for (; !notes_.empty() && notes_.front().at <= until; notes_.pop_front()) {
      Close(notes_.front().at);
      cause_ = notes_.front().cause;
    }
    Close(until);
  }
  struct Ended {
    int64_t start, end;
    JobKind kind;
    Given given;
  };
  void SettleBefore(const Ended& job) {
    Settle(std::min(job.start, job.given.at));
    if (since_ >= job.start) return;
    CloseFor(std::min(job.start, job.given.inputs_made),
             HasMicrobatch(job.kind) ? IdleCause::kDependency : IdleCause::kReduce);
    CloseFor(job.start, IdleCause::kDispatch);
  }
  void CloseFor(int64_t until, IdleCause cause) {
    const IdleCause after = std::exchange(cause_, cause);
    Close(until);
    cause_ = after;
  }
  void NoteCause(int64_t at, IdleCause cause);
  void Keep(const IdleSpan& span);

  int64_t start_;
  int64_t since_;
  std::vector<Ended> ended_;  // jobs that ended while a job beside them is computed
  bool behind_ = false;
  std::deque<Note> notes_;  // ascending, of causes that differ from the one before; empty unless behind
  IdleCause cause_ = IdleCause::kNoWork;
  std::array<int64_t, kJobKinds> busy_{};
  std::array<int64_t, kIdleCauses> idle_{};
  size_t max_spans_;
  std::deque<IdleSpan> spans_;
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_RANK_CLOCK_H_
