// Tells a job that takes long from one that never ends.
//
// A run waits for many things at once, and nearly all of them wait for something else: a rank for a tensor,
// the tensor for its job, the job for another rank. Each such chain ends at a job that runs, a transfer, or a
// silent process (docs/design/waits.md). Only these have deadlines. This class has those of jobs: a job may
// take a multiple of the longest time that a job of its kind and stage has taken, and never less than a
// minimum. A job whose like has not ended before may take a time of its own: nothing is known of it.
//
// A job that takes several times as long as its like, and has not passed its deadline, is slow. It is named
// with the times at which it was claimed, became ready and started, so that it is plain which job waited for
// which.
//
// Run owns it, over all attempts: what a job takes does not change with them. A value; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_JOB_WATCH_H_
#define WEFT_COORDINATOR_CORE_JOB_WATCH_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/job_times.h"
#include "proto/session/messages.h"

namespace weft {

// The longest that a job may run.
struct JobTimeout {
  double times = 10;                     // of the longest time of its like
  int64_t at_least_ns = 60'000'000'000;  // whatever that is
  int64_t first_ns = 3'600'000'000'000;  // where no job of its kind and stage has ended
};

class JobWatch {
 public:
  explicit JobWatch(const JobTimeout& timeout) : timeout_(timeout) {}

  // Notes a job that has ended. Returns a sentence about it if it was slow.
  std::optional<std::string> Ended(int64_t now, Rank rank, const Completion& done, const JobTimes& times);

  // The jobs of one process that take long.
  struct Verdict {
    std::string slow;          // sentence that names them; "" for none
    std::optional<Job> stuck;  // job past its deadline
    std::string reason;        // sentence about that job
  };
  // Judges the jobs that a process reports to run. A sentence about a slow job stays the same until the job
  // has run twice as long, since each new one is stored and shown.
  Verdict Judge(int64_t now, const std::vector<RunningJob>& running, const JobTimes& times);
  // Forgets the jobs that run, at the end of an attempt.
  void EndAttempt() { slow_.clear(); }

  // Returns the longest that the job may run.
  int64_t LimitOf(const Job& job) const;

 private:
  // The times of the jobs of one kind and stage that have ended.
  struct Like {
    int64_t count = 0, mean_ns = 0, longest_ns = 0;
  };
  struct Slow {
    Job job;
    int64_t started_ns = 0;  // on the coordinator's clock
  };
  Like LikeOf(const Job& job) const;
  bool IsSlow(const Job& job, int64_t took) const;
  std::string Evidence(const Job& job, int64_t started_ns, const JobTimes& times) const;

  const JobTimeout timeout_;
  std::vector<std::array<Like, kJobKinds>> likes_;  // by stage
  std::map<Rank, Slow> slow_;                       // slow jobs that run
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_JOB_WATCH_H_
