// Finds the job of a run that ends each process which takes it.
//
// A process that is lost had jobs in hand: granted to its ranks and not reported done. One of them may have
// ended it. The suspects are the jobs that were in hand at each of the last losses. A job that is done is
// none, and a loss that shares no job with those before begins the count anew: so machines that fail now and
// then make no suspect. A job is poison when it was in hand at `losses` losses in a row, of at least two
// processes: then neither one machine nor one process is the cause, and no other process is to be spent on
// it.
//
// A worker holds jobs ahead of the one that it computes, so the suspects may be several, and the cause is one
// of them. Workers send completions together; from the first loss on, up to the last step of a suspect, they
// send each by itself. So a job that a process has done before a later loss is none of them. Losses without a
// job in hand, as of processes that still prepare, say nothing.
//
// Run (run.h) owns it. A value; pure; one thread. Memory: the jobs in hand of one process, and a few losses.
#ifndef WEFT_COORDINATOR_CORE_SUSPECT_JOBS_H_
#define WEFT_COORDINATOR_CORE_SUSPECT_JOBS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "schedules/job.h"

namespace weft {

// The end of a process, as far as it is known.
struct ProcessLoss {
  std::string process;  // "process 2 (worker-2, pid 4711 on host a)"
  std::string how;      // "was killed by SIGSEGV: <last line>", "its session broke .."
  std::string wrote;    // further last lines of its standard error, "a | b"; "" for none known
};

class SuspectJobs {
 public:
  // Notes that a process was lost with these jobs in hand.
  void Lost(ProcessLoss loss, const std::vector<Job>& in_hand);
  // Notes that the job was done.
  void Done(const Job& job) {
    if (!suspects_.empty()) Clear(job);
  }

  // Returns the step behind the last one of a suspect; 0 without suspects.
  int32_t watched_before() const;
  // Returns true if a job was in hand at so many losses in a row.
  bool Poisoned(int losses) const;
  // Returns a sentence with the suspects and all that is known of each loss. Requires suspects.
  std::string Describe() const;

 private:
  void Clear(const Job& job);

  std::vector<Job> suspects_;        // in the order in which they were claimed
  std::vector<ProcessLoss> losses_;  // that all suspects share, the newest; empty exactly if there are none
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_SUSPECT_JOBS_H_
