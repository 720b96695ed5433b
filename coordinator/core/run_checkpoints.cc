#include "coordinator/core/run_checkpoints.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {

RunCheckpoints::RunCheckpoints(const RunPlan& plan, const RunMembers& members, RunInfo* info)
    : plan_(plan), members_(members), info_(*info), checkpoints_(plan, members.size()) {}

void RunCheckpoints::Begin(StepEffects& out) {
  newest_ns_ = out.now;
  checkpoints_.Begin(out.now);
  if (plan_.first_step == 0) {
    checkpoints_.Announce(0, out.now);
    Seal(out, 0, /*failure=*/"");
  }
  // A run that resumes keeps its first weights aside too: the earlier run may not have validated them.
  if (checkpoints_.ResumesWithValidation()) checkpoints_.AddValidation(plan_.first_step);
  BeginValidation(out);
}

void RunCheckpoints::GoOn(StepEffects& out, const AskedBefore& asked) {
  newest_ns_ = out.now;
  checkpoints_.Begin(out.now);
  sealed_ = asked.sealed;
  validated_ = asked.validated;
  checkpoints_.TakeUpSealed(sealed_);
  if (plan_.first_step == 0 && sealed_ < 0) {
    checkpoints_.TakeUp(0, out.now, nullptr);
    Seal(out, 0, /*failure=*/"");
  }
  for (const auto& [step, members] : asked.snapshots) {
    if (step <= std::max(sealed_, plan_.first_step) || step > plan_.steps) continue;
    const auto seal = asked.seals.find(step);
    checkpoints_.TakeUp(step, out.now, seal == asked.seals.end() ? nullptr : &seal->second);
    if (seal != asked.seals.end()) sealing_ = step;
    for (int m = 0; m < members_.size(); ++m) {
      if (members.count(m) == 0) out.Send(members_.at(m).session, TakeSnapshot{info_.id, step});
    }
  }
  std::set<int32_t> validations = asked.validations;
  if (checkpoints_.ResumesWithValidation()) validations.insert(plan_.first_step);
  for (const int32_t step : validations) {
    // The end of a sealing that is under way adds its own.
    if (step > validated_ && step <= std::max(sealed_, plan_.first_step)) checkpoints_.AddValidation(step);
  }
  BeginValidation(out);
}

int32_t RunCheckpoints::Stop(int32_t granted_end, int32_t least) {
  const int32_t step = checkpoints_.Stop(granted_end, least);
  stop_sealed_ = sealed_ >= step;
  return step;
}

void RunCheckpoints::TakeUpStop(int32_t step) {
  checkpoints_.TakeUpStop(step);
  stop_sealed_ = sealed_ >= step;
}

void RunCheckpoints::AnnounceEnd(StepEffects& out) {
  if (!checkpoints_.IsUnderWay(plan_.steps) && sealed_ < plan_.steps) Announce(out, plan_.steps);
}

bool RunCheckpoints::AnnounceDue(StepEffects& out, WorkQueue* queue, int32_t hold) {
  const int32_t held = queue->hold();
  while (const std::optional<int32_t> step =
             checkpoints_.Due(out.now, queue->granted_end(), queue->reach())) {
    Announce(out, *step);
  }
  queue->SetHold(std::min(checkpoints_.hold(), hold));
  return queue->hold() != held;
}

void RunCheckpoints::Announce(StepEffects& out, int32_t step) {
  checkpoints_.Announce(step, out.now);
  for (const RunMember& m : members_.all()) out.Send(m.session, TakeSnapshot{info_.id, step});
}

void RunCheckpoints::Seal(StepEffects& out, int32_t step, const std::string& failure) {
  sealing_ = step;
  const bool drop = !failure.empty(), validates = !drop && checkpoints_.Validates(step);
  out.Send(members_.first().session,
           SealCheckpoint{info_.id, step, plan_.checkpoint.keep, drop, validates, checkpoints_.Passes(step)});
}

// The process that seals has the weights, and validates them one after the other.
void RunCheckpoints::BeginValidation(StepEffects& out) {
  if (const std::optional<int32_t> step = checkpoints_.BeginValidation())
    out.Send(members_.first().session, Validate{info_.id, *step});
}

void RunCheckpoints::RecordNotValidated(int32_t step, const std::string& cause) {
  info_.validation_failure = absl::StrCat("the weights after step ", step, " were not validated: ", cause);
  ++info_.failed_validations;
}

void RunCheckpoints::GiveUpValidations(const std::string& cause) {
  for (; checkpoints_.validating(); checkpoints_.Validated())
    RecordNotValidated(checkpoints_.oldest_validation(), cause);
  given_up_ = cause;
}

void RunCheckpoints::AddValidation(int32_t step) {
  given_up_.empty() ? checkpoints_.AddValidation(step) : RecordNotValidated(step, given_up_);
}

void RunCheckpoints::Take(StepEffects& out, SessionId from, const SnapshotSaved& m) {
  const int member = members_.NumberOf(from);
  const std::string failure =
      m.failure.empty() ? "" : absl::StrCat(members_.at(member).label, " could not save it: ", m.failure);
  const auto outcome = checkpoints_.Saved(member, m.step, failure);
  if (!outcome.has_value()) return;
  saved_[m.step] = *outcome;
  SealSaved(out);
}

void RunCheckpoints::SealSaved(StepEffects& out) {
  if (sealing_.has_value() || saved_.empty()) return;
  const auto& [step, failure] = *saved_.begin();
  if (step != checkpoints_.oldest()) return;
  const int32_t reported = std::max(info_.steps_done, plan_.first_step);
  if (!failure.empty() || step <= reported) Seal(out, step, failure);
}

void RunCheckpoints::NoteComplete(StepEffects& out, int32_t step, int64_t announced_ns) {
  info_.checkpoint_step = std::max(info_.checkpoint_step, step);
  newest_ns_ = out.now;
  out.counts.checkpoints.Add(out.now - announced_ns);
}

bool RunCheckpoints::IsLate(int64_t now, int32_t granted_end) const {
  const CheckpointRule& rule = plan_.checkpoint;
  if (rule.every_steps == 0 && rule.every_ns == 0) return false;
  // An interval has at least the steps that a checkpoint waits for, however long they take. A run that goes
  // on leaves out those within its lead; one by time is of a step behind those that are granted.
  const int32_t lead = checkpoints_.lead();
  const int64_t interval = rule.every_steps > 0 ? std::max(rule.every_steps, lead)
                                                : std::max(granted_end - info_.steps_done, 1) + lead;
  const int32_t behind = info_.steps_done - std::max(info_.checkpoint_step, plan_.first_step);
  return behind > 2 * interval && now - newest_ns_ - rule.every_ns > rule.every_ns;
}

void RunCheckpoints::Count(int64_t now, int32_t granted_end, Probe* probe) const {
  if (!IsLate(now, granted_end)) return;
  probe->checkpoint_overdue_ns = std::max(probe->checkpoint_overdue_ns, now - newest_ns_);
}

void RunCheckpoints::RecordSealed(StepEffects& out, const CheckpointSealed& m, bool passes, bool validates,
                                  int64_t announced_ns, const std::string& save_failure) {
  if (m.failure.empty()) {
    if (!passes) NoteComplete(out, m.step, announced_ns);
    if (validates) AddValidation(m.step);
    BeginValidation(out);
    return;
  }
  std::string cause = save_failure;
  if (cause.empty()) cause = absl::StrCat(members_.first().label, " could not complete it: ", m.failure);
  if (validates) RecordNotValidated(m.step, cause);
  if (passes) return;
  info_.checkpoint_failure = absl::StrCat("the checkpoint of step ", m.step, " was not saved: ", cause);
  ++info_.failed_checkpoints;
  ++out.counts.failed_checkpoints;
}

RunCheckpoints::Sealing RunCheckpoints::Take(StepEffects& out, SessionId from, const CheckpointSealed& m) {
  const bool passes = checkpoints_.Passes(m.step), validates = checkpoints_.Validates(m.step);
  const int64_t announced_ns = checkpoints_.IsUnderWay(m.step) ? checkpoints_.AnnouncedAt(m.step) : 0;
  if (members_.first().session != from || !checkpoints_.Sealed(m.step)) {
    ++out.counts.fenced;
    return Sealing::kFenced;
  }
  sealing_.reset();
  sealed_ = m.step;
  const auto saved = saved_.find(m.step);
  RecordSealed(out, m, passes, validates, announced_ns, saved == saved_.end() ? "" : saved->second);
  if (saved != saved_.end()) saved_.erase(saved);
  SealSaved(out);
  const bool failed = !m.failure.empty();
  if (checkpoints_.stop_step() == m.step && info_.state == RunState::kRunning) {
    stop_sealed_ = true;
    return Sealing::kStop;
  }
  return failed && (m.step == 0 || m.step == plan_.steps) ? Sealing::kFatal : Sealing::kPassed;
}

// A report before the end only shows progress.
RunCheckpoints::Validating RunCheckpoints::Take(StepEffects& out, SessionId from, Validation& m) {
  if (members_.first().session != from || !checkpoints_.IsValidating(m.step)) {
    ++out.counts.fenced;
    return Validating::kFenced;
  }
  if (!m.done()) return Validating::kUnderWay;
  checkpoints_.Validated();
  validated_ = m.step;
  if (m.failure.empty()) {
    const bool repeats = info_.validation.has_value() && info_.validation->step >= m.step;
    if (!repeats) {
      info_.validation = m;
      out.effects.validations.push_back(std::move(m));
    }
  } else {
    RecordNotValidated(m.step, absl::StrCat(members_.first().label, ": ", m.failure));
  }
  BeginValidation(out);
  return Validating::kDone;
}

std::string RunCheckpoints::DescribeSaving() const {
  std::vector<std::string> labels;
  for (const int m : checkpoints_.Awaited()) labels.push_back(members_.at(m).label);
  if (labels.empty()) labels.push_back(members_.first().label);  // that process completes it
  return absl::StrCat("the checkpoint of step ", checkpoints_.oldest(), " from ",
                      absl::StrJoin(labels, " and "));
}

std::string RunCheckpoints::DescribeValidation() const {
  return absl::StrCat("the validation of step ", checkpoints_.oldest_validation(), " from ",
                      members_.first().label);
}

std::string RunCheckpoints::DescribeLate(const std::string& time) const {
  if (saving()) return absl::StrCat("not saved after ", time, ": ", DescribeSaving());
  return validating() ? absl::StrCat("not validated after ", time, ": ", DescribeValidation()) : "";
}

}  // namespace weft
