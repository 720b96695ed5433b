// Notes when jobs of an attempt were claimed and when they ended, on the coordinator's clock: the evidence in
// the sentences about a job that takes long.
//
// A job is ready when the last of its predecessors has ended. That is found out when it is asked for, so that
// an ordinary job costs two numbers. Pure; one thread. Memory: a window of steps, as in work_queue.h.
#ifndef WEFT_COORDINATOR_CORE_JOB_TIMES_H_
#define WEFT_COORDINATOR_CORE_JOB_TIMES_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "schedules/graph/graph.h"

namespace weft {

class JobTimes {
 public:
  struct Times {
    int64_t claimed_ns = 0, ready_ns = 0;  // 0: not known
  };

  // Refers to the graph.
  JobTimes(const Graph& graph, int32_t first_step) : graph_(graph), first_step_(first_step) {}

  void Claimed(int64_t now, const std::vector<Job>& jobs);
  void Ended(int64_t now, const Job& job);
  // Forgets the steps before this one, but for the last of them: jobs of later steps wait for it.
  void LeaveBefore(int32_t step);
  // Returns the times of a job whose predecessors have ended.
  Times Of(const Job& job) const;

 private:
  struct Step {
    std::vector<int64_t> claimed, ended;  // by number of the job; 0: not yet
  };
  Step* Open(int32_t step);

  const Graph& graph_;
  int32_t first_step_;  // that of steps_.front()
  std::deque<Step> steps_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_JOB_TIMES_H_
