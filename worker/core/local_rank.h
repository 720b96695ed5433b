// Holds what the worker core keeps of one rank of its process during a run.
#ifndef WEFT_WORKER_CORE_LOCAL_RANK_H_
#define WEFT_WORKER_CORE_LOCAL_RANK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "proto/session/messages.h"
#include "schedules/dispatch/dispatch.h"
#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"
#include "worker/core/jobs_in_flight.h"
#include "worker/core/rank_activations.h"
#include "worker/core/rank_clock.h"

namespace weft {

struct LocalRank {
  LocalRank(int64_t now, const RankLease& lease, const Graph& graph, ReadyJobs ready_jobs, size_t max_spans)
      : rank(lease.rank),
        token(lease.token),
        ready(std::move(ready_jobs)),
        activations(rank, graph, &ready),
        clock(now, max_spans),
        max_spans(max_spans) {}
  LocalRank(const LocalRank&) = delete;
  LocalRank& operator=(const LocalRank&) = delete;

  // Keeps the span as one of the last.
  void Keep(const TransferSpan& span) {
    transfers.push_back(span);
    if (transfers.size() > max_spans) transfers.pop_front();
  }

  // Returns the time of the job's earlier rounds, once.
  int64_t TakeRounds(JobId id) {
    const auto rounds = rounds_ns.extract(id);
    return rounds.empty() ? 0 : rounds.mapped();
  }

  const Rank rank;
  const Token token;
  ReadyJobs ready;
  RankActivations activations;
  JobsInFlight in_flight;
  RankClock clock;
  const size_t max_spans;  // most spans of idleness, and of transfers
  std::deque<TransferSpan> transfers;
  std::deque<JobId> claimed;        // in claim order; ended and launched ones leave from the front
  std::map<int64_t, Job> unwanted;  // claimed forwards whose inputs wait for their ticket, by ticket
  int64_t jobs_per_step = 0, jobs_remaining = 0;
  int takes_from_step = 0;  // first step whose jobs do not take gradients yet (PendingJobs::BeginTaking)
  std::map<JobId, int64_t> rounds_ns;  // time of the rounds behind jobs that go on (Completion::delay_ns)
  bool granted = false;  // true once it was granted a job; before, the run has not begun for this rank
  bool touched = false;  // set by LocalRanks::Touch
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_LOCAL_RANK_H_
