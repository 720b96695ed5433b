#include "schedules/sync/state_route.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/require.h"

namespace weft {
namespace {

void Require(bool condition, const Job& job, const char* invariant) {
  if (!condition) BrokenInvariant(absl::StrCat(invariant, "; it is ", Describe(job)).c_str());
}

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

int64_t CycleOf(const Ticks& tick) {
  return tick(Job::Compute(1, 0, 0, JobKind::kForward)) - tick(Job::Compute(0, 0, 0, JobKind::kForward));
}

}  // namespace

StateRoute::StateRoute(const Schedule& schedule, Ticks ticks, int steps, int first_step)
    : tick_(std::move(ticks)), steps_(steps), first_step_(first_step) {
  const int64_t cycle = CycleOf(tick_);
  for (int s = 0; s < schedule.stages; ++s) {
    Stage& stage = stages_.emplace_back();
    std::vector<std::pair<int64_t, Stop>> by_tick;
    int64_t last = 0;
    for (int b = 0; b < schedule.microbatches; ++b) {
      for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
        const int64_t tick = tick_(Job::Compute(0, s, b, kind));
        const int64_t shift = FloorDiv(tick, cycle);
        by_tick.push_back({tick - shift * cycle, {b, kind, static_cast<int32_t>(shift)}});
        if (kind == JobKind::kForward || (b > 0 && tick <= last)) continue;
        last = tick;
        stage.last_backward = b;
      }
      stage.staleness.push_back(schedule.StalenessOf(s, b));
    }
    stage.max_staleness = schedule.MaxStaleness(s);
    std::sort(by_tick.begin(), by_tick.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    stage.of_job.resize(by_tick.size());
    int32_t least = by_tick[0].second.shift, most = least;
    for (const auto& [tick, stop] : by_tick) {
      least = std::min(least, stop.shift);
      most = std::max(most, stop.shift);
      stage.of_job[stop.microbatch * 2 + (stop.kind == JobKind::kBackward ? 1 : 0)] =
          static_cast<int>(stage.stops.size());
      stage.stops.push_back(stop);
    }
    // Steps of one cycle are at most so far apart.
    stage.reach = (most - least + 2) * static_cast<int64_t>(stage.stops.size());
  }
}

int64_t StateRoute::PlaceOf(const Job& job) const {
  if (job.kind == JobKind::kUpdate) return 2 * tick_(LastBackward(job.step, job.stage)) + 1;
  return 2 * tick_(job);
}

int64_t StateRoute::NumberOf(const Job& job) const {
  Require(job.kind == JobKind::kForward || job.kind == JobKind::kBackward, job, "a compute job is asked for");
  const Stage& stage = stages_.at(job.stage);
  const int place = stage.of_job.at(job.microbatch * 2 + (job.kind == JobKind::kBackward ? 1 : 0));
  return (int64_t{job.step} + stage.stops[place].shift) * static_cast<int64_t>(stage.stops.size()) + place;
}

Job StateRoute::JobOf(int stage, int64_t number) const {
  const std::vector<Stop>& stops = stages_[stage].stops;
  const auto count = static_cast<int64_t>(stops.size());
  const int64_t cycle = FloorDiv(number, count);
  const Stop& stop = stops[number - cycle * count];
  return Job::Compute(static_cast<int32_t>(cycle - stop.shift), stage, stop.microbatch, stop.kind);
}

bool StateRoute::IsLastBackward(const Job& job) const {
  return job.kind == JobKind::kBackward && job.microbatch == stages_[job.stage].last_backward;
}

Job StateRoute::LastBackward(int step, int stage) const {
  return Job::Compute(step, stage, stages_.at(stage).last_backward, JobKind::kBackward);
}

Job StateRoute::Anchor(const Job& stop) const {
  Require(InRun(stop), stop, "the job is in a step of the run");
  if (stop.kind != JobKind::kUpdate) return stop;
  return LastBackward(stop.step, stop.stage);
}

Job StateRoute::First(int stage) const {
  // Only stops that are left out come before the first forward of the first step.
  Job first = Job::Compute(first_step_, stage, 0, JobKind::kForward);
  for (std::optional<Job> before = Before(first); before.has_value(); before = Before(first)) first = *before;
  return first;
}

std::optional<Job> StateRoute::Before(const Job& stop) const {
  const Job anchor = Anchor(stop);
  if (stop.kind == JobKind::kUpdate) return anchor;
  const int64_t here = NumberOf(anchor);
  for (int64_t number = here - 1; number >= here - stages_[stop.stage].reach; --number) {
    const Job before = JobOf(stop.stage, number);
    if (!InRun(before)) continue;
    return IsLastBackward(before) ? Job::Update(before.step, before.stage, 0) : before;
  }
  return std::nullopt;
}

std::optional<Job> StateRoute::After(const Job& stop) const {
  const Job anchor = Anchor(stop);
  if (stop.kind != JobKind::kUpdate && IsLastBackward(stop)) return Job::Update(stop.step, stop.stage, 0);
  const int64_t here = NumberOf(anchor);
  for (int64_t number = here + 1; number <= here + stages_[stop.stage].reach; ++number) {
    const Job after = JobOf(stop.stage, number);
    if (InRun(after)) return after;
  }
  return std::nullopt;
}

bool StateRoute::IsReadAfter(const Job& stop, int version) const {
  const int64_t here = NumberOf(Anchor(stop));
  const Stage& stage = stages_[stop.stage];
  for (int b = 0; b < static_cast<int>(stage.staleness.size()); ++b) {
    // The last step in which the micro-batch reads it; the first steps all read version 0.
    const int64_t step = int64_t{version} + stage.staleness[b];
    if (step < first_step_) continue;
    const Job backward = Job::Compute(static_cast<int32_t>(step), stop.stage, b, JobKind::kBackward);
    if (NumberOf(backward) > here) return true;
  }
  return false;
}

// Returns the number of updates that have ended.
int StateRoute::NewestAfter(const Job& stop) const {
  if (stop.kind == JobKind::kUpdate) return stop.step + 1;
  const int64_t here = NumberOf(Anchor(stop));
  const int64_t first = NumberOf(LastBackward(first_step_, stop.stage));
  const auto count = static_cast<int64_t>(stages_[stop.stage].stops.size());
  if (here <= first) return first_step_;
  // The update that follows this very stop has not run.
  return static_cast<int>(std::min<int64_t>(first_step_ + (here - first + count - 1) / count, steps_));
}

int StateRoute::VersionsAfter(const Job& stop) const {
  const int newest = NewestAfter(stop);
  int held = 1;
  for (int v = std::max(0, newest - stages_[stop.stage].max_staleness - 1); v < newest; ++v) {
    held += IsReadAfter(stop, v);
  }
  return held;
}

int StateRoute::VersionsDuring(const Job& stop) const {
  const std::optional<Job> before = Before(stop);
  return std::max(before.has_value() ? VersionsAfter(*before) : 1, VersionsAfter(stop));
}

namespace {

absl::Status CheckFeatures(const RunSchedule& schedule, const Ticks& ticks) {
  const Schedule& s = schedule.scheme;
  if (!ticks) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: the state of a stage migrates from one micro-batch to the next that comes to "
                        "the stage, so it needs the cyclic order; add rule=cdp_v1 or rule=cdp_v2",
                        s.name));
  }
  const char* other = s.split_backward   ? "a split backward"
                      : s.limit          ? "a limit of activations"
                      : !s.order.empty() ? "a fixed order"
                      : s.period > 1     ? "a placement that changes from step to step"
                      : schedule.terms.takes_norm
                          ? "clipping: a sum would have to stay until the norm of all stages is known"
                          : nullptr;
  if (other == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: the state of a stage migrates; that cannot be combined with %s", s.name, other));
}

// The step that is checked: 2, so that there are steps before it.
constexpr int kStep = 2;

absl::Status CheckTicks(const Schedule& s, const Ticks& at, int64_t cycle) {
  for (int stage = 0; stage < s.stages; ++stage) {
    std::vector<std::pair<int64_t, Job>> ticks;
    for (int b = 0; b < s.microbatches; ++b) {
      for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
        const Job job = Job::Compute(kStep, stage, b, kind);
        Job next = job;
        ++next.step;
        const int64_t tick = at(job);
        if (at(next) - tick != cycle) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "the ticks from %s to that job of the next step differ from those of other jobs",
              Describe(job)));
        }
        ticks.push_back({tick - FloorDiv(tick, cycle) * cycle, job});
      }
    }
    std::sort(ticks.begin(), ticks.end());
    for (size_t i = 1; i < ticks.size(); ++i) {
      if (ticks[i].first != ticks[i - 1].first) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("the state of stage %d would be at %s and, perhaps of another step, at %s at once",
                          stage, Describe(ticks[i - 1].second), Describe(ticks[i].second)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSums(const Schedule& s, const Ticks& tick, int64_t cycle) {
  for (int stage = 0; stage < s.stages; ++stage) {
    const auto at = [&](int step, int b) { return Job::Compute(step, stage, b, JobKind::kBackward); };
    for (int b = 0; b < s.microbatches; ++b) {
      const Job next = b + 1 < s.microbatches ? at(kStep, b + 1) : at(kStep + 1, 0);
      if (tick(at(kStep, b)) < tick(next)) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "the route stops at %s before %s: gradients are summed in the order of micro-batches",
          Describe(next), Describe(at(kStep, b))));
    }
    for (int b = 0; b < s.microbatches; ++b) {
      const Job reader = Job::Compute(kStep, stage, b, JobKind::kForward);
      const Job maker = at(kStep - 1, s.microbatches - 1);
      if (tick(reader) > tick(maker) - s.StalenessOf(stage, b) * cycle) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s would read weights that do not exist yet: the update of their step comes later on the route",
          Describe(reader)));
    }
  }
  return absl::OkStatus();
}

// Checks that the predecessors of a job by backpropagation and by order are at earlier ticks, so that no
// waits close a circle.
absl::Status CheckInputsBefore(const RunSchedule& schedule, const Ticks& tick) {
  const Schedule& s = schedule.scheme;
  const auto check = [&](const Job& job, const Job& before) {
    if (tick(before) < tick(job)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat("%s needs %s, but the order of stops puts it no later",
                                                      Describe(job), Describe(before)));
  };
  const std::vector<std::vector<int>>& given = schedule.terms.inputs;
  for (int stage = 0; stage < s.stages; ++stage) {
    std::vector<int> inputs;
    if (!given.empty()) inputs = given[stage];
    if (given.empty() && stage > 0) inputs = {stage - 1};
    for (int b = 0; b < s.microbatches; ++b) {
      const Job forward = Job::Compute(kStep, stage, b, JobKind::kForward);
      const Job backward = Job::Compute(kStep, stage, b, JobKind::kBackward);
      std::vector<std::pair<Job, Job>> waits = {{backward, forward}};
      for (const int input : inputs) {
        waits.push_back({forward, Job::Compute(kStep, input, b, JobKind::kForward)});
        waits.push_back({Job::Compute(kStep, input, b, JobKind::kBackward), backward});
      }
      for (const Job& job : {forward, backward}) {
        if (!s.precedes) continue;
        for (const Job& before : s.precedes(job)) waits.push_back({job, before});
      }
      for (const auto& [job, before] : waits) {
        if (absl::Status status = check(job, before); !status.ok()) return status;
      }
    }
  }
  return absl::OkStatus();
}

// Ranks claim the jobs of one step after the other, and take in states in the order of claims.
absl::Status CheckRanks(const Schedule& s, const Ticks& tick) {
  std::vector<std::optional<std::pair<int64_t, Job>>> last(s.ranks), first(s.ranks);
  for (int stage = 0; stage < s.stages; ++stage) {
    for (int b = 0; b < s.microbatches; ++b) {
      for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
        const Job job = Job::Compute(kStep, stage, b, kind), next = Job::Compute(kStep + 1, stage, b, kind);
        const Rank rank = s.compute(job);
        const std::pair<int64_t, Job> ends(tick(job), job), begins(tick(next), next);
        if (!last[rank].has_value() || ends > *last[rank]) last[rank] = ends;
        if (!first[rank].has_value() || begins < *first[rank]) first[rank] = begins;
      }
    }
  }
  for (Rank rank = 0; rank < s.ranks; ++rank) {
    if (!last[rank].has_value() || last[rank]->first < first[rank]->first) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "on rank %d, a route would stop at %s before %s; a rank runs the jobs of one step after "
        "those of the step before",
        rank, Describe(first[rank]->second), Describe(last[rank]->second)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRoute(const RunSchedule& schedule, const Ticks& tick) {
  const Schedule& s = schedule.scheme;
  if (absl::Status status = CheckFeatures(schedule, tick); !status.ok()) return status;
  const int64_t cycle = CycleOf(tick);
  if (cycle < 1) {
    return absl::InvalidArgumentError("the stops of a step are not later than those of the step before");
  }
  if (absl::Status status = CheckTicks(s, tick, cycle); !status.ok()) return status;
  if (absl::Status status = CheckSums(s, tick, cycle); !status.ok()) return status;
  if (absl::Status status = CheckRanks(s, tick); !status.ok()) return status;
  return CheckInputsBefore(schedule, tick);
}

}  // namespace weft
