#include "coordinator/core/run_attempt.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/seconds.h"

namespace weft {

RunAttempt::RunAttempt(std::shared_ptr<const RunPlan> plan, ReductionMode reduction,
                       const RunMembers& members, RunInfo* info, bool saves, const RunReturn* back)
    : plan_(std::move(plan)),
      reduction_(reduction),
      members_(members),
      info_(info),
      queue_(plan_, back == nullptr ? plan_->first_step : back->ended()),
      times_(plan_->graph, queue_.steps_done()),
      seen_(plan_->ranks()),
      joint_operations_(plan_->graph.joint_order()),
      told_{info->id, members.epoch(), queue_.steps_done()} {
  if (saves) checkpoints_ = std::make_unique<RunCheckpoints>(*plan_, members_, info);
}

void RunAttempt::AssignTo(StepEffects& out, const std::vector<Peer>& peers, const RunSubmission& submission,
                          const RunBeginnings::Beginning& beginning, bool makes_copies,
                          int32_t watched_before) const {
  Assign assign;
  assign.run = info_->id;
  assign.epoch = members_.epoch();
  assign.spec = submission.SpecFrom(beginning.step, beginning.copies.has_value());
  assign.output = submission.output();
  assign.process_of_rank = members_.ProcessOfRank();
  assign.peers = peers;
  assign.reduction_mode = reduction_;
  assign.reduction = info_->reduction;
  assign.run_id = submission.run_id();
  assign.copies = makes_copies;
  assign.examined_step = info_->non_finite_step;
  assign.watched_before = watched_before;
  if (beginning.copies.has_value()) {
    assign.copies_epoch = beginning.copies->epoch;
    for (const auto& [part, session] : beginning.copies->keepers)
      assign.kept.push_back({part, members_.at(members_.NumberOf(session)).process});
  }
  for (int m = 0; m < members_.size(); ++m) {
    assign.leases = members_.LeasesOf(m);
    out.Send(members_.at(m).session, assign);
  }
}

void RunAttempt::Stop(const std::string& reason, bool relocates) {
  const int32_t step = checkpoints_->Stop(queue_.granted_end(), relocates ? 0 : info_->steps_done);
  copies_stop_.reset();
  relocates_ = relocates;
  if (!relocates) info_->stop_step = step;
  info_->reason = stop_reason_ = reason;
}

void RunAttempt::StopBehindCopies(const std::string& reason, int32_t step) {
  copies_stop_ = step;
  relocates_ = true;
  info_->reason = stop_reason_ = reason;
}

bool RunAttempt::HasStopped(const RunCopies& copies) const {
  if (!stops()) return false;
  if (!stops_behind_copies())
    return checkpoints_->stop_sealed() && queue_.steps_done() >= *checkpoints_->stop_step();
  const bool saves = checkpoints_ != nullptr && checkpoints_->SavesUpTo(*copies_stop_);
  return queue_.steps_done() >= *copies_stop_ && copies.HasComplete(*copies_stop_) && !saves;
}

void RunAttempt::Count(int64_t now, Probe* probe) const {
  const JobCounts& jobs = queue_.counts();
  probe->jobs.blocked += jobs.blocked;
  probe->jobs.ready += jobs.ready;
  probe->jobs.claimed += jobs.claimed;
  probe->jobs.done += jobs.done;
  if (checkpoints_ != nullptr && info_->state == RunState::kRunning)
    checkpoints_->Count(now, queue_.granted_end(), probe);
}

void RunAttempt::Begin(StepEffects& out) {
  running_since_ns_ = out.now;
  all_may_grant_ = true;
  if (checkpoints_ != nullptr) checkpoints_->Begin(out);
}

bool RunAttempt::GoOn(StepEffects& out, const RunReturn& back) {
  for (const Reattach::HeldRank& held : back.ranks()) {
    if (!queue_.TakeGranted(held.rank, held.granted, held.credit)) return false;
  }
  running_since_ns_ = out.now;
  all_may_grant_ = true;
  if (checkpoints_ == nullptr) return true;
  checkpoints_->GoOn(out, back.asked());
  if (info_->stop_step < 0) return true;
  checkpoints_->TakeUpStop(info_->stop_step);
  stop_reason_ = info_->reason;
  return true;
}

void RunAttempt::TellSettled(StepEffects& out) {
  Settled now = told_;
  now.ended = queue_.steps_done();
  if (checkpoints_ != nullptr) {
    now.sealed = checkpoints_->sealed();
    now.validated = checkpoints_->validated();
  }
  if (now == told_) return;
  told_ = now;
  for (const RunMember& m : members_.all()) {
    if (m.alive && !m.finished) out.Send(m.session, now);
  }
}

void RunAttempt::Take(StepEffects& out, SessionId from, const GroupId& m) const {
  const auto& groups = plan_->graph.joint_order().groups();
  const auto session_of = [&](Rank rank) { return members_.MemberOf(rank).session; };
  const bool its_own = reduction_ == ReductionMode::kFast && m.epoch == members_.epoch() &&
                       m.group < static_cast<int32_t>(groups.size()) &&
                       session_of(groups[m.group].front()) == from;
  if (!its_own) {
    ++out.counts.fenced;
    return;
  }
  for (const Rank rank : groups[m.group]) {
    if (session_of(rank) != from) out.Send(session_of(rank), m);
  }
}

std::string RunAttempt::Complete(StepEffects& out, Completions* m) {
  size_t kept = 0;
  for (size_t i = 0; i < m->jobs.size(); ++i) {
    const WorkQueue::Outcome outcome = queue_.Complete(m->rank, m->jobs[i]);
    if (outcome == WorkQueue::Outcome::kViolation) {
      ++out.counts.violations;
      return absl::StrCat(Describe(m->jobs[i].job), " done on rank ", m->rank,
                          ", which was not granted there");
    }
    if (outcome == WorkQueue::Outcome::kDuplicate) {
      ++out.counts.duplicate_completions;
      continue;
    }
    ++out.counts.completions[static_cast<int>(m->jobs[i].job.kind)];
    times_.Ended(out.now, m->jobs[i].job);
    if (kept != i) m->jobs[kept] = m->jobs[i];
    ++kept;
  }
  m->jobs.resize(kept);
  if (kept > 0) seen_.Ended(out.now, m->rank);
  return "";
}

bool RunAttempt::EndSteps(StepEffects& out) {
  std::vector<WorkQueue::EndedStep> ended;
  queue_.TakeEndedSteps(&ended);
  if (ended.empty()) return false;
  for (const auto& s : ended) {
    if (s.step < info_->steps_done) continue;  // an attempt before has made it too
    out.effects.steps.push_back({info_->id, s.step, s.loss, s.has_loss, s.end_ns, s.gradient_norm});
    info_->loss = s.loss;
    info_->has_loss = s.has_loss;
    ++out.counts.steps;
  }
  times_.LeaveBefore(queue_.steps_done());
  all_may_grant_ = true;  // the window moved
  out.counts.loss = info_->loss;
  out.counts.has_loss = info_->has_loss;
  if (ended.back().gradient_norm.has_value()) out.counts.gradient_norm = ended.back().gradient_norm;
  out.counts.last_step_ns = out.now;
  return true;
}

std::vector<Job> RunAttempt::JobsInHand(const RunMember& member) const {
  std::vector<Job> jobs;
  for (const Rank rank : members_.RanksOf(member)) {
    const std::vector<Job> of_rank = queue_.InHand(rank);
    jobs.insert(jobs.end(), of_rank.begin(), of_rank.end());
  }
  return jobs;
}

void RunAttempt::Grant(StepEffects& out, int32_t hold) {
  // If states migrate, the last jobs of a step wait for the first of the next one.
  const int32_t overlap = plan_->graph.route() != nullptr ? 1 : 0;
  if (copies_stop_.has_value()) hold = std::min(hold, *copies_stop_ + overlap);
  AnnounceSnapshots(out, hold);
  // Grants may have reached the next snapshot.
  do {
    GrantReady(out);
  } while (AnnounceSnapshots(out, hold));
}

bool RunAttempt::AnnounceSnapshots(StepEffects& out, int32_t hold) {
  bool moved = queue_.hold() != hold;
  if (checkpoints_ != nullptr) {
    moved = checkpoints_->AnnounceDue(out, &queue_, hold);
  } else {
    queue_.SetHold(hold);
  }
  all_may_grant_ |= moved;
  return moved;
}

void RunAttempt::GrantReady(StepEffects& out) {
  const auto grant = [&](Rank rank) {
    const int32_t credit = members_.CreditOf(rank);
    if (!queue_.CanGrant(rank, credit)) return;
    weft::Grant m{info_->id, rank, members_.TokenOf(rank), {}};
    queue_.Grant(rank, credit, &m.jobs);
    if (m.jobs.empty()) return;
    times_.Claimed(out.now, m.jobs);
    out.counts.grants += m.jobs.size();
    out.Send(members_.MemberOf(rank).session, std::move(m));
  };
  if (all_may_grant_) {
    for (Rank rank = 0; rank < members_.ranks(); ++rank) grant(rank);
  } else {
    for (const Rank rank : may_grant_) grant(rank);
  }
  all_may_grant_ = false;
  may_grant_.clear();
}

// The jobs of a report come from outside: those that are not in hand may be none of the schedule.
std::vector<RunningJob> RunAttempt::InHand(const RunMember& member,
                                           const std::vector<RunningJob>& running) const {
  std::vector<RunningJob> known;
  for (const RunningJob& r : running) {
    if (r.rank >= members_.ranks() || &members_.MemberOf(r.rank) != &member) continue;
    const std::vector<Job> jobs = queue_.InHand(r.rank);
    if (std::find(jobs.begin(), jobs.end(), r.job) != jobs.end()) known.push_back(r);
  }
  return known;
}

std::string RunAttempt::DescribeUnderWay() const {
  std::vector<std::string> parts;
  if (checkpoints_ != nullptr && checkpoints_->saving()) parts.push_back(checkpoints_->DescribeSaving());
  if (checkpoints_ != nullptr && checkpoints_->validating())
    parts.push_back(checkpoints_->DescribeValidation());
  return absl::StrJoin(parts, "; ");
}

std::string RunAttempt::DescribeAwaited(int64_t now) const {
  std::vector<std::string> parts;
  for (const auto& a : queue_.AwaitedJobs(4)) {
    std::string part =
        absl::StrCat(Describe(a.job), a.granted ? " on rank " : " that was not claimed by rank ", a.rank,
                     " of ", members_.MemberOf(a.rank).label);
    const JobTimes::Times at = times_.Of(a.job);
    if (at.claimed_ns > 0) absl::StrAppend(&part, ", claimed ", Seconds(now - at.claimed_ns), " ago");
    if (at.ready_ns > 0) absl::StrAppend(&part, ", ready for ", Seconds(now - at.ready_ns));
    parts.push_back(std::move(part));
  }
  if (std::string under_way = DescribeUnderWay(); !under_way.empty()) parts.push_back(std::move(under_way));
  return absl::StrJoin(parts, "; ");
}

}  // namespace weft
