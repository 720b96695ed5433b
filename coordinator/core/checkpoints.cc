#include "coordinator/core/checkpoints.h"

#include <algorithm>

namespace weft {
namespace {

// The most validations under way with which another may be announced.
constexpr size_t kMaxValidations = 1;

// The first multiple of `every` from `least` on; `end` for none before it.
int32_t MultipleFrom(int64_t least, int32_t every, int32_t end) {
  if (every == 0) return end;
  return static_cast<int32_t>(std::min<int64_t>((least + every - 1) / every * every, end));
}

}  // namespace

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
  // Older versions that the first steps of a run that goes on do not read are not there.
  const int64_t least = std::max(announced_ + 1, first_step_ > 0 ? first_step_ + lead_ : 1);
  return std::min(MultipleFrom(least, rule_.every_steps, end_step_),
                  MultipleFrom(least, rule_.validate_every, end_step_));
}

bool Checkpoints::IsValidated(int32_t step) const {
  return rule_.validate_every > 0 && step > 0 && (step % rule_.validate_every == 0 || step == end_step_);
}

// Returns true if the snapshot that is announced now becomes a checkpoint.
bool Checkpoints::IsCheckpoint(int32_t step, int64_t now) const {
  if (!IsValidated(step) || step == end_step_ || step == stop_step_) return true;
  return rule_.every_steps > 0 ? step % rule_.every_steps == 0 : now >= next_ns_;
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
  const bool may_validate = !IsValidated(next) || validations_.size() <= kMaxValidations;
  if (next < end_step_ && may_validate && reach > next - lead_ &&
      (under_way_.empty() || next < under_way_.front().step + lead_ + overlap_)) {
    return next;
  }
  if (now < next_due()) return std::nullopt;
  if (granted_end + lead_ < end_step_) return granted_end + lead_;
  next_ns_ = INT64_MAX;  // the run's end comes first
  return std::nullopt;
}

void Checkpoints::Announce(int32_t step, int64_t now) {
  if (step < end_step_) announced_ = std::max(announced_, step);
  const bool checkpoint = IsCheckpoint(step, now);
  if (rule_.every_ns > 0 && checkpoint) next_ns_ = now + rule_.every_ns;
  // To be prepared they have saved their initial weights.
  under_way_.push_back({step, now, std::vector<bool>(members_, step == 0), "", checkpoint});
}

int32_t Checkpoints::Stop(int32_t granted_end, int32_t least) {
  if (stop_step_.has_value() && *stop_step_ >= least) return *stop_step_;
  const int32_t from = std::max(granted_end, least);
  // The first that is announced and has no granted step behind it: steps behind a stop would be lost.
  std::optional<int32_t> announced;
  for (const Snapshot& s : under_way_) {
    const bool gone = s.sealing && !s.checkpoint;
    if (s.step > 0 && s.step >= from && !gone) announced = std::min(announced.value_or(s.step), s.step);
  }
  const int32_t step = announced.value_or(std::min(from + lead_, end_step_));
  stop_step_ = step;
  if (Snapshot* snapshot = Find(step)) snapshot->checkpoint = true;
  return step;
}

void Checkpoints::TakeUp(int32_t step, int64_t now, const SealCheckpoint* asked) {
  if (!IsUnderWay(step)) Announce(step, now);
  if (asked == nullptr) return;
  Snapshot& snapshot = *Find(step);
  snapshot.checkpoint = !asked->passing;
  snapshot.validates = asked->validate;
}

void Checkpoints::TakeUpStop(int32_t step) {
  stop_step_ = step;
  if (Snapshot* snapshot = Find(step)) snapshot->checkpoint = true;
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
  snapshot->sealing = all;
  return all ? std::optional<std::string>(snapshot->failure) : std::nullopt;
}

bool Checkpoints::Passes(int32_t step) const {
  const Snapshot* snapshot = Find(step);
  return snapshot != nullptr && !snapshot->checkpoint;
}

bool Checkpoints::Validates(int32_t step) const {
  const Snapshot* snapshot = Find(step);
  const bool stops = step == stop_step_ && step != end_step_;
  return snapshot != nullptr && snapshot->validates.value_or(IsValidated(step) && !stops);
}

std::optional<int32_t> Checkpoints::BeginValidation() {
  if (validations_.empty() || validations_.front().begun) return std::nullopt;
  validations_.front().begun = true;
  return validations_.front().step;
}

bool Checkpoints::IsValidating(int32_t step) const {
  return !validations_.empty() && validations_.front().begun && validations_.front().step == step;
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
