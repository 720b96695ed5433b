// Says what each rank of a run that runs does or waits for, and follows each chain of waits to its root
// (docs/design/waits.md).
//
// An idle rank waits to start the first job in its claim order that it has in hand. If an input of that job
// is missing, the chain goes on at the rank that must make it, with the job that makes it; if that job has
// all its inputs and another one comes before it there, with that one. So it goes on from job to job until a
// rank computes, a process is silent, or a job that has all its inputs does not start. The last is what a
// transfer, a limit, a checkpoint or the credit holds back. A silent process is the root before anything else
// that is true of its ranks, since what it said last is old.
//
// It asks the work queue, which knows of the ends of jobs that processes have reported. An input that is made
// may still be on its way. Pure: an answer to one question, and nothing is kept.
#ifndef WEFT_COORDINATOR_CORE_WAIT_CHAINS_H_
#define WEFT_COORDINATOR_CORE_WAIT_CHAINS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/job_times.h"
#include "coordinator/core/rank_watch.h"
#include "coordinator/core/run_members.h"
#include "coordinator/core/work_queue.h"
#include "proto/session/run_waits.h"
#include "schedules/graph/graph.h"

namespace weft {

// How long the process of a member has said nothing.
struct MemberSilence {
  bool silent = false;  // true if that is longer than it should be
  int64_t for_ns = 0;
  std::string broken;  // why its session is broken; "" if it is not
};

// Facts of one attempt, on which the answer rests. Refers to its parts.
struct WaitFacts {
  int64_t now = 0;
  int64_t running_since_ns = 0;
  const Graph& graph;
  const WorkQueue& queue;
  const RunMembers& members;
  const RankWatch& seen;
  const JobTimes& times;
  std::vector<MemberSilence> silences;  // by number of the member
  std::string holds;                    // what holds back grants: "the checkpoint of step 40 from .."; or ""
};

// Adds the ranks and the roots of their waits, each root once.
void AddWaits(const WaitFacts& facts, RunWaits* waits);

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_WAIT_CHAINS_H_
