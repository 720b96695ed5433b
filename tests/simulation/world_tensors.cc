// The simulated world: values that jobs hand on, and weights where they are held.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simulation/world_run.h"

namespace weft {

void World::Publish(Process& p, const PublishEffect& e, const Outputs* outputs) {
  Value value = 0;
  switch (e.key.kind) {
    case TensorKind::kWeights:
      value = outputs != nullptr && outputs->kept_weights.has_value()
                  ? *outputs->kept_weights
                  : HeldWeights(p, e.key.producer, e.key.stage, e.key.version);
      break;
    case TensorKind::kActivation:
      value = outputs->activation;
      break;
    case TensorKind::kInputGradient:
      value = PartOfInput(outputs->input_gradient, e.key.part);
      break;
    case TensorKind::kGradient:
      value = SliceValue(outputs->gradient, e.key.part, e.parts);
      break;
    case TensorKind::kGradientSum:
      value = outputs->sum;
      break;
    case TensorKind::kNorm:
      value = outputs->norm;
      break;
    case TensorKind::kState:
      value = outputs->state;
      break;
    case TensorKind::kCopy:
      value = CopyToSend(p, e.key);
      break;
    case TensorKind::kOrder:
      break;
  }
  const int64_t there = outputs == nullptr ? 0 : outputs->there;
  std::shared_ptr<void> owner;
  if (e.key.kind == TensorKind::kGradient) owner = outputs->gradient_owner;
  if (e.note.has_value()) owner = Give(p, *e.note);
  if (e.process < 0) {
    p.inbox[e.key] = value;
    if (owner != nullptr) p.untaken[e.key] = owner;
    if (there > now_) p.there[e.key] = there;
    return;
  }
  if (there <= now_) return Offer(p, e.process, e.key, value, owner);
  AtInAttempt(p, there + random_.Below(options_.transfer_delay_ns),
              [this, &p, key = e.key, to = e.process, value, owner] { Offer(p, to, key, value, owner); });
}

// Returns the owner of a tensor that is given to a reader, whose end the process wants to know.
std::shared_ptr<void> World::Give(Process& p, const TakenTensor& note) {
  Tensor tensor;
  p.taken.Follow(note, &tensor);
  for (const Job& job : note.waiting) ++given_[job];
  return tensor.owner;
}

Value World::HeldWeights(Process& p, Rank rank, int stage, int version) {
  const std::map<int, Value>& held = p.weights[{rank, stage}];
  const auto found = held.find(version);
  if (found != held.end()) return found->second;
  Problem(absl::StrCat("rank ", rank, " does not hold version ", version, " of stage ", stage));
  return 0;
}

// Adds the next version, made or installed; the newest stays if it is still to be read.
void World::UpdateWeights(Process& p, const StartEffect& start, std::optional<Value> installed,
                          const std::vector<Value>& sums) {
  std::map<int, Value>& held = p.weights[{start.rank, start.job.stage}];
  const int made = plan_->graph.protocol(start.job.stage).VersionBehind(start.job);
  const int version = std::max(0, made - 1);
  if (start.version != version || held.rbegin()->first != version)
    Problem(absl::StrCat(Describe(start.job), " does not begin with version ", version));
  if (made == version) return;  // the run begins with it
  p.put_aside.erase({start.rank, start.job.stage});
  const bool is_saved = start.leaves.takes_snapshot() || start.leaves.old == OldVersion::kPutAside;
  if (is_saved && !start.leaves.keeps_old() && OldestRead(start.job.stage, made) <= version) {
    p.put_aside[{start.rank, start.job.stage}] = {version, held[version]};
  }
  held[version + 1] = installed.has_value() ? *installed : Updated(held[version], sums);
  if (!start.leaves.keeps_old()) {
    CheckUnread(start.rank, start.job.stage, version);
    held.erase(version);
  }
  // All jobs of the step have ended, so only versions that later steps read are left.
  const int most = plan_->graph.schedule().MaxStaleness(start.job.stage) + 1;
  if (static_cast<int>(held.size()) > most)
    Problem(
        absl::StrCat("rank ", start.rank, " holds ", held.size(), " versions of stage ", start.job.stage));
  int& peak = result_.peak_versions[start.rank];
  peak = std::max(peak, static_cast<int>(held.size()));
}

void World::DropWeights(Process& p, const DropEffect& e) {
  CheckUnread(e.rank, e.stage, e.version);
  std::map<int, Value>& held = p.weights[{e.rank, e.stage}];
  if (held.count(e.version) == 0 || held.rbegin()->first == e.version)
    Problem(absl::StrCat("version ", e.version, " of stage ", e.stage, " is dropped on rank ", e.rank,
                         " and is not there, or the newest"));
  held.erase(e.version);
}

int World::NewestAtBegin(Rank rank, int stage) const {
  if (plan_->graph.route() != nullptr) return first_step_;
  const std::vector<Rank>& members = plan_->graph.members(stage);
  const auto member = std::find(members.begin(), members.end(), rank) - members.begin();
  return std::max(0,
                  first_step_ - plan_->graph.protocol(stage).holder(static_cast<int>(member)).installs_late);
}

// Every version that the first steps may read.
void World::BeginWeights(Process& p, Rank rank, int stage, int part) {
  for (int v = OldestRead(stage, first_step_); v <= NewestAtBegin(rank, stage); ++v)
    p.weights[{rank, stage}][v] = plain_[v][stage][part];
}

}  // namespace weft
