#include "coordinator/core/checkpoints.h"

#include <algorithm>

namespace weft {

int32_t SnapshotLead(const Graph& graph) {
  const Schedule& schedule = graph.schedule();
  const int most = schedule.MostStaleness();
  if (most <= 1) return 1;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    for (int b = 1; b < schedule.microbatches; ++b) {
      if (schedule.StalenessOf(stage, b) != schedule.StalenessOf(stage, 0)) return most;
    }
  }
  return schedule.period == 1 ? 1 : most;
}

Checkpoints::Checkpoints(const RunPlan& plan, int members)
    : rule_(plan.checkpoint),
      lead_(SnapshotLead(plan.graph)),
      overlap_(plan.graph.route() != nullptr ? 1 : 0),
      first_step_(plan.first_step),
      end_step_(plan.steps),
      members_(members),
      announced_(first_step_) {}

void Checkpoints::Begin(int64_t now) {
  if (rule_.every_ns > 0) next_ns_ = now + rule_.every_ns;
}

int32_t Checkpoints::NextMultiple() const {
  if (rule_.every_steps == 0) return end_step_;
  // Older versions that the first steps of a run that goes on do not read are not there.
  const int64_t least = std::max(announced_ + 1, first_step_ > 0 ? first_step_ + lead_ : 1);
  const int64_t next = (least + rule_.every_steps - 1) / rule_.every_steps * rule_.every_steps;
  return static_cast<int32_t>(std::min<int64_t>(next, end_step_));
}

int32_t Checkpoints::hold() const {
  if (stop_step_.has_value()) return *stop_step_ + overlap_;
  const int32_t next = NextMultiple();
  return next < end_step_ ? next - lead_ : INT32_MAX;
}

int64_t Checkpoints::next_due() const {
  return stop_step_.has_value() || !under_way_.empty() ? INT64_MAX : next_ns_;
}

std::optional<int32_t> Checkpoints::Due(int64_t now, int32_t granted_end, int32_t reach) {
  if (stop_step_.has_value()) {
    if (*stop_step_ < end_step_ && announced_ < *stop_step_) return stop_step_;
    return std::nullopt;
  }
  const int32_t next = NextMultiple();
  if (next < end_step_ && reach > next - lead_ &&
      (under_way_.empty() || next < under_way_.front().step + lead_ + overlap_)) {
    return next;
  }
  if (now < next_due()) return std::nullopt;
  if (granted_end + lead_ < end_step_) return granted_end + lead_;
  next_ns_ = INT64_MAX;  // the run's end comes first
  return std::nullopt;
}

void Checkpoints::Announce(int32_t step, int64_t now) {
  if (step < end_step_) announced_ = step;
  if (rule_.every_ns > 0) next_ns_ = now + rule_.every_ns;
  // To be prepared they have saved their initial weights.
  under_way_.push_back({step, std::vector<bool>(members_, step == 0), ""});
}

int32_t Checkpoints::Stop(int32_t granted_end) {
  if (stop_step_.has_value()) return *stop_step_;
  // The first that is announced and has no granted step behind it: steps behind a stop would be lost.
  std::optional<int32_t> announced;
  for (const Snapshot& s : under_way_) {
    if (s.step > 0 && s.step >= granted_end) announced = std::min(announced.value_or(s.step), s.step);
  }
  const int32_t step = announced.value_or(std::min(granted_end + lead_, end_step_));
  stop_step_ = step;
  return step;
}

Checkpoints::Snapshot* Checkpoints::Find(int32_t step) {
  const auto found = std::find_if(under_way_.begin(), under_way_.end(),
                                  [step](const Snapshot& s) { return s.step == step; });
  return found == under_way_.end() ? nullptr : &*found;
}

std::optional<std::string> Checkpoints::Saved(int member, int32_t step, const std::string& failure) {
  Snapshot* snapshot = Find(step);
  if (snapshot == nullptr || snapshot->saved[member]) return std::nullopt;
  snapshot->saved[member] = true;
  if (snapshot->failure.empty()) snapshot->failure = failure;
  const bool all =
      std::all_of(snapshot->saved.begin(), snapshot->saved.end(), [](bool saved) { return saved; });
  return all ? std::optional<std::string>(snapshot->failure) : std::nullopt;
}

bool Checkpoints::Sealed(int32_t step) {
  Snapshot* snapshot = Find(step);
  if (snapshot == nullptr) return false;
  under_way_.erase(under_way_.begin() + (snapshot - under_way_.data()));
  return true;
}

std::vector<int> Checkpoints::Awaited() const {
  std::vector<int> members;
  for (int m = 0; m < members_; ++m) {
    if (!under_way_.front().saved[m]) members.push_back(m);
  }
  return members;
}

}  // namespace weft
