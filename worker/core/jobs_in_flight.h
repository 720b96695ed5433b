// Keeps the jobs of one rank that have started and are not done.
//
// A rank has two threads at most: one for its job in turn, and, where the schedule has overlapped pairs, one
// for a job beside a forward. (In the shell these are seats, which any thread may serve: rank_seats.h.) A
// job leaves its thread when it ends, or when a device has been given it; a launched job stays in flight
// until the device has done it.
//
// Invariants:
//   1. A thread has one job at a time.
//   2. Jobs are kept in the order in which they started. Launched jobs end in that order, those beside
//      forwards in their own.
// Pure; one thread. Failure: a job that ends or is launched without having started aborts.
#ifndef WEFT_WORKER_CORE_JOBS_IN_FLIGHT_H_
#define WEFT_WORKER_CORE_JOBS_IN_FLIGHT_H_

#include <cstdint>
#include <vector>

#include "schedules/graph/progress.h"
#include "worker/core/rank_clock.h"

namespace weft {

class JobsInFlight {
 public:
  // Notes that a job starts now, in turn or beside the forward in flight. `begins`: it gives its input to a
  // joint operation, and computes nothing.
  void Start(int64_t now, JobId id, bool overlapped, bool begins);
  // Notes that the device has been given a started job: its thread is free.
  void Launch(JobId id);
  // Ends a job. `overlapped`: another job may be computed at the same time as the one that ended.
  RankClock::Given End(JobId id, bool launched, bool* overlapped);
  // Notes when an input of the job was made on the device, if the job is in flight.
  void NoteMade(JobId id, int64_t made);

  bool empty() const { return jobs_.empty(); }
  // Returns true if both threads are free.
  bool idle() const { return running_ < 0 && overlapped_job_ < 0; }
  // Returns true if the job has its thread, in turn.
  bool IsRunning(JobId id) const { return running_ == id; }
  // Returns true if a job has the second thread.
  bool has_overlapped() const { return overlapped_job_ >= 0; }
  // Returns the number of jobs that compute, in turn or beside forwards.
  int CountComputing(bool overlapped) const;
  // Returns the newest job that did not start beside another; -1 for none.
  JobId newest_in_turn() const;

 private:
  struct InFlight {
    JobId id;
    bool overlapped, launched, begins;
    RankClock::Given given;
  };

  JobId running_ = -1, overlapped_job_ = -1;  // jobs of the two threads
  std::vector<InFlight> jobs_;
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_JOBS_IN_FLIGHT_H_
