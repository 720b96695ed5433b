#include "schedules/families/leading_stages.h"

#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "schedules/sync/catalogue.h"

namespace weft {
namespace {

// Numbers jobs of all stages as the scheme without leading stages does.
struct Shift {
  int count = 0;

  bool IsLeading(const Job& job) const { return job.stage < count; }
  // Returns the job of the scheme whose rank the job takes: itself, or that of the first stage.
  Job Inner(Job job) const {
    job.stage = InnerStage(job.stage);
    return job;
  }
  int InnerStage(int stage) const { return stage < count ? 0 : stage - count; }
  Job Outer(Job job) const {
    job.stage += count;
    return job;
  }
  // Returns the place of a job in an order in which the scheme puts its job at `inner`: beside the first
  // stage's job come, before a forward and behind a backward, those of the leading stages.
  int64_t PlaceOf(const Job& job, int64_t inner) const {
    const int64_t at = inner * (2 * count + 1);
    if (!IsLeading(job)) return at + count;
    return at + (job.kind == JobKind::kForward ? job.stage : 2 * count - job.stage);
  }
};

// Inserts the leading stages' jobs into the order of a rank, with its marks.
void AddToOrder(const Shift& shift, std::vector<Job>* order, std::vector<uint8_t>* marks) {
  std::vector<Job> jobs;
  std::vector<uint8_t> all_marks;
  const auto add = [&](Job job, uint8_t mark) {
    jobs.push_back(job);
    all_marks.push_back(mark);
  };
  const bool marked = !marks->empty();
  std::vector<Job> behind;  // leading jobs that wait for the end of a pair, or of a backward in one piece
  for (size_t i = 0; i < order->size(); ++i) {
    const Job& job = (*order)[i];
    const uint8_t mark = marked ? (*marks)[i] : uint8_t{kInTurn};
    const bool first = job.stage == 0;
    for (int s = 0; first && job.kind == JobKind::kForward && s < shift.count; ++s)
      add(Job::Compute(job.step, s, job.microbatch, job.kind), kInTurn);
    add(shift.Outer(job), mark);
    for (int s = shift.count - 1; first && job.kind != JobKind::kForward && s >= 0; --s)
      behind.push_back(Job::Compute(job.step, s, job.microbatch, job.kind));
    const bool goes_on = marked && i + 1 < order->size() && (*marks)[i + 1] != kInTurn;
    if (goes_on) continue;
    for (const Job& leading : behind) add(leading, kInTurn);
    behind.clear();
  }
  *order = std::move(jobs);
  if (marked) *marks = std::move(all_marks);
}

}  // namespace

void AddLeadingStages(int count, Schedule* schedule) {
  if (count == 0) return;
  const Shift shift{count};
  const Schedule inner = *schedule;
  schedule->stages += count;
  schedule->compute = [shift, of = inner.compute](const Job& job) { return of(shift.Inner(job)); };
  if (inner.weights)
    schedule->weights = [shift, of = inner.weights](const Job& job) { return of(shift.Inner(job)); };
  if (inner.priority) {
    schedule->priority = [shift, of = inner.priority](const Job& job) {
      return shift.PlaceOf(job, of(shift.Inner(job)));
    };
  }
  if (const auto tick = TicksOf(*inner.sync)) {
    schedule->sync =
        Migrating([shift, tick](const Job& job) { return shift.PlaceOf(job, tick(shift.Inner(job))); });
  }
  if (inner.staleness) {
    schedule->staleness = [shift, of = inner.staleness](int stage, int microbatch) {
      return of(shift.InnerStage(stage), microbatch);
    };
  }
  if (inner.precedes) {
    schedule->precedes = [shift, of = inner.precedes](const Job& job) {
      std::vector<Job> before;
      if (shift.IsLeading(job)) return before;
      for (const Job& other : of(shift.Inner(job))) before.push_back(shift.Outer(other));
      return before;
    };
  }
  if (inner.limit) {
    schedule->limit = [shift, of = inner.limit](Rank rank, int stage) {
      return of(rank, shift.InnerStage(stage));
    };
  }
  std::vector<uint8_t> none;
  for (size_t rank = 0; rank < schedule->order.size(); ++rank) {
    AddToOrder(shift, &schedule->order[rank],
               schedule->order_marks.empty() ? &none : &schedule->order_marks[rank]);
  }
}

SimulationOptions JoinLeadingStages(int count, int stages, const SimulationOptions& costs) {
  SimulationOptions joined = costs;
  if (count == 0) return joined;
  const auto join = [&](std::vector<double>* of_stages) {
    if (static_cast<int>(of_stages->size()) != stages) return;  // one value for all stages, or none
    (*of_stages)[count] = std::accumulate(of_stages->begin(), of_stages->begin() + count + 1, 0.0);
    of_stages->erase(of_stages->begin(), of_stages->begin() + count);
  };
  for (std::vector<double>& duration : joined.duration) join(&duration);
  for (std::vector<double>* sums :
       {&joined.accumulate, &joined.cold, &joined.activation, &joined.weight, &joined.state})
    join(sums);
  if (static_cast<int>(joined.output.size()) == stages)
    joined.output.erase(joined.output.begin(), joined.output.begin() + count);
  return joined;
}

}  // namespace weft
