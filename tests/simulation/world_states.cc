// The simulated world: states of stages that migrate.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "schedules/sync/state_route.h"
#include "tests/simulation/world_run.h"

namespace weft {

// Receives a state: it is with the rank from here on, and with no other.
void World::ReceiveState(Process& p, const StartEffect& start) {
  const int stage = start.job.stage;
  const std::pair<Rank, int> here(start.rank, stage);
  if (start.Does(Operation::kBeginState) || start.Does(Operation::kReceiveState)) {
    if (!holder_.emplace(stage, start.rank).second) {
      Problem(absl::StrCat(Describe(start.job), " on rank ", start.rank, " gets a state that rank ",
                           holder_[stage], " has"));
    }
  } else if (holder_.count(stage) == 0 || holder_[stage] != start.rank) {
    Problem(
        absl::StrCat(Describe(start.job), " on rank ", start.rank, " is to find a state that is elsewhere"));
  }
  if (start.Does(Operation::kBeginState) && p.copies_epoch == 0) {
    BeginWeights(p, start.rank, stage, 0);
  } else if (start.Does(Operation::kBeginState)) {
    p.weights[here] = p.copies[CopyKey(p.copies_epoch, first_step_, StatePart{stage, 0})];
    if (p.weights[here].empty()) Problem(absl::StrCat("no copy of stage ", stage, " is there to begin with"));
  }
  for (const TensorKey& key : start.inputs) {
    if (key.kind != TensorKind::kState) continue;
    const auto came = p.inbox.find(key);
    const auto state = came == p.inbox.end() ? moving_.end() : moving_.find(came->second);
    if (state == moving_.end())
      return Problem(absl::StrCat(Describe(start.job), " lacks the ", Describe(key)));
    p.weights[here] = std::move(state->second.weights);
    p.state_sums[here] = state->second.sum;
    moving_.erase(state);
    p.inbox.erase(came);
  }
}

void World::PassStateOn(Process& p, const StartEffect& start, Outputs* outputs) {
  const int stage = start.job.stage;
  const std::pair<Rank, int> here(start.rank, stage);
  if (start.Does(Operation::kDropVersion)) DropWeights(p, {start.rank, stage, start.version});
  const int held = static_cast<int>(p.weights[here].size());
  if (held != plan_->graph.route()->VersionsAfter(start.job)) {
    Problem(absl::StrCat(held, " versions leave ", Describe(start.job), ", not ",
                         plan_->graph.route()->VersionsAfter(start.job)));
  }
  if (!start.Does(Operation::kSendState)) return;
  outputs->state = random_.Next();
  moving_[outputs->state] = {std::move(p.weights[here]), p.state_sums[here]};
  p.weights.erase(here);
  p.state_sums.erase(here);
  holder_.erase(stage);
}

void World::AddToState(Process& p, const StartEffect& start, Value gradient) {
  Sum& sum = p.state_sums[{start.rank, start.job.stage}];
  if (sum.next == 0) sum.step = start.job.step;
  if (sum.step != start.job.step || sum.next != start.job.microbatch)
    Problem(absl::StrCat(Describe(start.job), " adds to the sum of step ", sum.step, " out of turn"));
  sum.value = Mix(sum.value, gradient);
  ++sum.next;
}

Value World::TakeStateSum(Process& p, const StartEffect& start) {
  const Sum sum = std::exchange(p.state_sums[{start.rank, start.job.stage}], {});
  if (sum.step != start.job.step || sum.next != plan_->graph.schedule().microbatches)
    Problem(absl::StrCat(Describe(start.job), " finds ", sum.next, " micro-batches in the sum"));
  return sum.value;
}

}  // namespace weft
