// Keeps what the processes of a run last said of the work of each rank: the job that it computes, the
// collective that it has begun, and the cause for which it was idle.
//
// A report names only what has gone on for half a second, and it may be older than the end of a job. So the
// caller compares it with the queue. RunAttempt owns it. Pure; one thread. Memory: a job, a collective and
// the idle times by cause, for each rank.
#ifndef WEFT_COORDINATOR_CORE_RANK_WATCH_H_
#define WEFT_COORDINATOR_CORE_RANK_WATCH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "proto/session/messages.h"

namespace weft {

class RankWatch {
 public:
  struct Seen {
    std::optional<RunningJob> running;           // the oldest of the newest report
    std::optional<RunningJointOperation> joint;  // likewise
    int64_t reported_ns = 0;                     // time of that report
    int64_t ended_ns = 0;                        // time when the rank last ended a job; 0: it has ended none
    std::string idle_cause;  // cause of most of the idle time between the last two reports; "" for none
    std::map<std::string, double> idle_seconds;  // of the newest report
  };

  explicit RankWatch(int ranks) : seen_(ranks) {}

  // Takes the report of a process that has these ranks; what it says of others changes nothing.
  void Take(int64_t now, const std::vector<Rank>& ranks, const Report& report);
  void Ended(int64_t now, Rank rank) { last_end_ns_ = seen_[rank].ended_ns = now; }

  const Seen& Of(Rank rank) const { return seen_[rank]; }
  // Returns when a job last ended; 0: none has.
  int64_t last_end_ns() const { return last_end_ns_; }

 private:
  std::vector<Seen> seen_;
  int64_t last_end_ns_ = 0;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RANK_WATCH_H_
