// Keeps the jobs that the device has been given and has not done, of all ranks of a process.
//
// The thread that drives the process asks now and then which have ended; nothing waits here.
//
// Invariants: the jobs of a rank end in the order in which they were added, those beside forwards in their
// own order. A job beside a forward is reported after every job that was added before that forward. A job
// whose device failed has ended, with that status. Not thread-safe; the owner locks.
#ifndef WEFT_WORKER_SHELL_LOOP_LAUNCHED_JOBS_H_
#define WEFT_WORKER_SHELL_LOOP_LAUNCHED_JOBS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "schedules/job.h"
#include "worker/shell/compute/compute.h"

namespace weft {

class LaunchedJobs {
 public:
  struct Launch {
    Rank rank = 0;
    Job job;
    bool last = true, overlapped = false;  // as in StartEffect
    int64_t launched_ns = 0;
    std::shared_ptr<LaunchedJob> work;
  };
  struct Ended {
    Launch launch;
    absl::Status status;  // the device's failure, naming the job
    LaunchedJob::Figures figures;
  };

  void Add(Launch launch);
  // Appends the jobs that have ended since the last call.
  void Poll(std::vector<Ended>* ended);

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // Returns the job that was added first. Requires that there is one.
  const Launch& oldest() const;

 private:
  struct OfRank {
    std::deque<Launch> in_turn, overlapped;
  };
  void PollQueue(std::deque<Launch>* queue, std::vector<Ended>* ended);

  std::map<Rank, OfRank> ranks_;
  size_t size_ = 0;
};

// Returns "backward of step 3, .. on rank 1".
std::string Describe(const LaunchedJobs::Launch& launch);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_LAUNCHED_JOBS_H_
