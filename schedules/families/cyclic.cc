#include "schedules/families/cyclic.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/sync/catalogue.h"

namespace weft {

bool IsCyclicRule(absl::string_view rule) { return rule == "cdp_v1" || rule == "cdp_v2"; }

int CyclicStaleness(absl::string_view rule, int n, int stage, int microbatch) {
  return rule == "cdp_v2" && stage + 1 >= n - microbatch ? 0 : 1;
}

std::vector<Job> CyclicPredecessors(const Job& job, int n, JobKind backward) {
  const int t = job.step, s = job.stage, b = job.microbatch;
  std::vector<Job> before;
  if (job.kind == JobKind::kForward) {
    // The tick before, another micro-batch left the stage with its backward.
    const bool same_step = b + s >= n;
    before.push_back(Job::Compute(same_step ? t : t - 1, s, same_step ? b + s - n : b + s, backward));
    // In the first cycle nobody has: micro-batches enter two ticks apart, one when the one before it has left
    // the second stage's forward.
    if (s == 0 && b > 0 && n > 1) before.push_back(Job::Compute(t, 1, b - 1, JobKind::kForward));
  } else if (b <= s && s < n - 1) {
    // The tick before, another micro-batch came to the stage with its forward (on the last stage its own).
    // If that is a micro-batch of the next step (b > s), the edge is left out: a job waits for none of a
    // later step, and a backward that goes early only frees memory.
    before.push_back(Job::Compute(t, s, b + n - 1 - s, JobKind::kForward));
  }
  return before;
}

int64_t CyclicTick(const Job& job, int n) {
  const int t = job.step, s = job.stage, b = job.microbatch;
  return int64_t{2} * n * t + 2 * b + (job.kind == JobKind::kForward ? s : 2 * n - 1 - s);
}

namespace {

// The state's way is the order, also where a job of the next step comes before one of this. It does not keep
// micro-batches from entering right behind one another in the first cycle.
void FollowTheOrder(int n, Schedule* schedule) {
  schedule->sync = Migrating([n](const Job& job) { return CyclicTick(job, n); });
  schedule->precedes = [n](const Job& job) {
    const int b = job.microbatch;
    if (job.kind != JobKind::kForward || job.stage > 0 || b == 0 || n == 1) return std::vector<Job>();
    return std::vector<Job>{Job::Compute(job.step, 1, b - 1, JobKind::kForward)};
  };
}

}  // namespace

void GiveCyclicOrder(Schedule* schedule) {
  const int n = schedule->stages;
  const JobKind backward = schedule->split_backward ? JobKind::kBackwardInput : JobKind::kBackward;
  schedule->precedes = [n, backward](const Job& job) {
    return job.kind == JobKind::kBackwardWeight ? std::vector<Job>() : CyclicPredecessors(job, n, backward);
  };
  if (IsMigrating(*schedule->sync)) {
    FollowTheOrder(n, schedule);
  } else {
    schedule->sync = Relayed();
  }
  // The order bounds the activations by itself: N - s of stage s.
  schedule->limit = nullptr;
}

namespace {

absl::Status CheckCyclicSizes(absl::string_view rule, const Schedule& schedule) {
  const int n = schedule.stages;
  if (schedule.microbatches != n || schedule.ranks != n) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s with rule=%s: in the cyclic order one micro-batch at a time visits each stage, and every rank is "
        "busy; so the numbers of stages, micro-batches and ranks must be equal; they are %d, %d and %d",
        schedule.name, rule, schedule.stages, schedule.microbatches, schedule.ranks));
  }
  if (schedule.sync->CountHolders(0).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s with rule=%s: at any time micro-batches are on different stages, so one rank "
                        "alone would gather weights that are cut by width; use shard=stage",
                        schedule.name, rule));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplyCyclicRule(absl::string_view rule, Schedule* schedule) {
  if (!schedule->precedes) {
    if (absl::Status s = CheckCyclicSizes(rule, *schedule); !s.ok()) return s;
    GiveCyclicOrder(schedule);
  }
  absl::StrAppend(&schedule->name, ",rule=", rule);
  const std::string name(rule);
  const int n = schedule->stages;
  schedule->staleness = [name, n](int stage, int b) { return CyclicStaleness(name, n, stage, b); };
  return absl::OkStatus();
}

}  // namespace weft
