#include "coordinator/core/present_attempt.h"

#include <algorithm>
#include <optional>
#include <set>

#include "coordinator/core/reduction.h"

namespace weft {

void PresentAttempt::Make(StepEffects& out, const std::vector<Worker*>& workers,
                          const std::vector<Peer>& peers, const RunPlacement& placement,
                          FencingNumbers* numbers) {
  std::vector<SessionId> sessions;
  for (const Worker* w : workers) {
    members_.Add({w->session, w->process, w->Label()});
    info_->members.push_back(w->Label());
    sessions.push_back(w->session);
  }
  Reduction choice = ChooseReduction(submission_.plan(), workers);
  info_->reduction = std::move(choice.sentence);
  const std::set<SessionId> keepers(sessions.begin(), sessions.end());
  beginnings_.Begin(beginnings_.Next(submission_.plan(), Saves(), &keepers, choice.mode));
  const int32_t step = beginnings_.present().step;
  if (has_begun_ && step != info_->restart_step) beginnings_.Tell(submission_.plan(), beginnings_.present());
  std::shared_ptr<const RunPlan> plan = submission_.PlanFrom(step, choice.mode);
  attempts_.Assigned(out.now, plan->ranks());
  members_.Lease(placement.MemberOfRank(plan->ranks(), sessions), numbers);
  info_->member_of_rank = members_.MemberOfRank();
  attempt_ = std::make_unique<RunAttempt>(std::move(plan), choice.mode, members_, info_, Saves());
  out.effects.records.epoch = std::max(out.effects.records.epoch, members_.epoch());
  out.effects.records.attempts.push_back(Record(workers, placement.ordered()));
  BeginCopies();
  attempt_->AssignTo(out, peers, submission_, beginnings_.present(), copies_.under_way(),
                     attempts_.watched_before());
}

AttemptRecord PresentAttempt::Record(const std::vector<Worker*>& workers, bool ordered) const {
  AttemptRecord record;
  record.run = info_->id;
  record.epoch = members_.epoch();
  record.first_token = members_.first_token();
  record.first_step = beginnings_.present().step;
  record.reduction = attempt_->reduction();
  record.from_copies = beginnings_.present().copies.has_value();
  record.schedule = submission_.schedule();
  for (const Worker* w : workers) record.members.push_back({w->process, w->hello.worker, w->Label()});
  record.former = attempts_.Former();
  record.left_links = submission_.left_links();
  record.ordered = ordered;
  return record;
}

// Begins to follow the copies of the attempt, if it makes any.
void PresentAttempt::BeginCopies() {
  if (attempt_->plan().redundancy > 0 && members_.size() > 1)
    copies_.Begin(attempt_->plan().graph, attempt_->reduction(), members_.epoch(),
                  beginnings_.present().step);
}

void PresentAttempt::AwaitReturn(std::unique_ptr<RunReturn> awaited, const std::vector<int>& member_of_rank) {
  members_.Restore(awaited->record(), member_of_rank);
  attempts_.TakeUp(awaited->record());
  return_ = std::move(awaited);
}

bool PresentAttempt::GoOn(StepEffects& out, const RunReturn& back) {
  const AttemptRecord& record = back.record();
  RunBeginnings::Beginning beginning{record.first_step, std::nullopt};
  if (record.from_copies) beginning.copies = RunCopies::Beginning{record.first_step, 0, record.reduction, {}};
  beginnings_.Begin(std::move(beginning));
  attempt_ = std::make_unique<RunAttempt>(submission_.PlanFrom(record.first_step, record.reduction),
                                          record.reduction, members_, info_, Saves(), &back);
  for (const Reattach::HeldRank& held : back.ranks()) members_.SetCredit(held.rank, held.credit);
  if (!attempt_->GoOn(out, back)) return false;
  BeginCopies();
  for (const RunMember& m : members_.all()) info_->members.push_back(m.label);
  info_->member_of_rank = members_.MemberOfRank();
  return true;
}

void PresentAttempt::Drop() {
  has_begun_ = true;
  copies_.End();
  attempt_.reset();
  return_.reset();
  info_->members.clear();
  info_->member_of_rank.clear();
  members_.Clear();
}

void PresentAttempt::WriteTo(RunFigures* figures) const {
  if (attempt_ == nullptr && return_ == nullptr) return;
  figures->epoch = members_.epoch();
  if (return_ != nullptr) {
    figures->sealed = return_->asked().sealed;
    figures->validated = return_->asked().validated;
  } else if (const RunCheckpoints* checkpoints = attempt_->checkpoints()) {
    figures->sealed = checkpoints->sealed();
    figures->validated = checkpoints->validated();
  }
}

bool PresentAttempt::Take(StepEffects& out, SessionId from, const CopiesHeld& m) {
  if (attempt_ == nullptr || !copies_.Take(from, m)) {
    ++out.counts.fenced;
    return false;
  }
  const std::optional<int32_t> complete = copies_.TakeComplete();
  if (!complete.has_value()) return false;
  for (const SessionId keeper : copies_.keepers_then())
    out.Send(keeper, DropCopies{info_->id, members_.epoch(), *complete});
  attempt_->MayGrantAll();
  return true;
}

bool PresentAttempt::TakeAgain(SessionId from, const CopiesHeld& m) {
  if (!submission_.has_plan() || submission_.plan().redundancy == 0 || m.run_id != submission_.run_id())
    return false;
  const RunPlan& plan = submission_.plan();
  const auto its_plan = submission_.PlanFrom(plan.first_step, m.reduction);
  const bool may_be =
      m.step > plan.first_step && m.step < plan.steps && m.step <= info_->steps_done + kMaxUnsettledSteps;
  if (its_plan == nullptr || !may_be) return false;
  copies_.TakeAgain(its_plan->graph, from, m);
  return true;
}

}  // namespace weft
