#include "worker/core/local_ranks.h"

#include <cstddef>
#include <optional>

namespace weft {
namespace {

// Returns the first place in the rank's fixed order, counted over all steps; nothing where it has none.
std::optional<int64_t> FirstPlace(const Graph& graph, Rank rank, int first_step) {
  if (!graph.replays()) return std::nullopt;
  return static_cast<int64_t>(graph.schedule().order[rank].size()) * first_step;
}

// Returns how many intervals of idleness a rank keeps, and how many of transfers: some hundred KiB of a
// process.
size_t SpansOfRank(size_t ranks) {
  constexpr size_t kOfProcess = 16384;
  return std::clamp<size_t>(kOfProcess / std::max<size_t>(1, ranks), 16, 8192);
}

}  // namespace

LocalRanks::LocalRanks(int64_t now, const LocalRun& run, const AdmissionOrder& admission,
                       const ComputedStages& computed)
    : run_(run) {
  const Schedule& schedule = run.graph().schedule();
  const std::vector<RankWork> work = CountWork(run, run.tables()->jobs);
  for (const RankLease& lease : run.assignment().leases) {
    const size_t place = ranks_.size();
    // A limit on a stage that the rank does not compute says nothing, and costs a look at each dispatch.
    std::vector<std::optional<int>> limits(schedule.limit ? schedule.stages : 0);
    for (int s = 0; s < static_cast<int>(limits.size()); ++s) {
      if (computed[place][s] != 0) limits[s] = schedule.limit(lease.rank, s);
    }
    ReadyJobs ready(std::move(limits), FirstPlace(run.graph(), lease.rank, run.first_step()),
                    admission.TicketsOf(lease.rank, run.first_step()));
    ranks_.push_back(std::make_unique<LocalRank>(now, lease, run.graph(), std::move(ready),
                                                 SpansOfRank(run.assignment().leases.size())));
    ranks_.back()->takes_from_step = run.first_step();
    ranks_.back()->jobs_per_step = work[place].jobs_per_step;
    ranks_.back()->jobs_remaining = work[place].jobs;
  }
}

std::vector<Rank> LocalRanks::Numbers() const {
  std::vector<Rank> numbers;
  numbers.reserve(ranks_.size());
  for (const auto& rank : ranks_) numbers.push_back(rank->rank);
  return numbers;
}

const RankClock& LocalRanks::ClockAt(int64_t now, Rank number) {
  LocalRank& rank = Of(number);
  // Jobs in flight close their own interval, with their exact times.
  if (rank.in_flight.empty()) rank.clock.Idle(now, rank.clock.cause());
  return rank.clock;
}

}  // namespace weft
