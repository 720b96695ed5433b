// The coordinator of the simulated world, its store, and its sudden end.
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/store/store.h"
#include "tests/simulation/world_run.h"

namespace weft {

void World::StartCore(uint64_t epoch) {
  CoreOptions core;
  core.epoch = epoch;
  core.expand_ns = options_.expand_ns;
  core.gathering_ns = 500'000'000;
  // So often a process that is killed at random may have the same job in hand.
  if (options_.bad_job.kind != BadJob::Kind::kDeadly) core.poison_losses = options_.kills + 1;
  coordinator_ = std::make_unique<CoordinatorCore>(core);
}

// Submits the run, or repeats the submission as a client does that has heard no answer.
void World::Submit() {
  StepCoordinator({SubmitRun{1, "request", submitted_, "", options_.processes, "out"}});
}

void World::StepCoordinator(std::vector<Event> events) {
  if (coordinator_ == nullptr) return;  // it was killed
  Effects effects = coordinator_->Step(now_, std::move(events));
  options_.coordinator_kills > 0 ? Hold(std::move(effects)) : CarryOut(std::move(effects));
  WakeCoordinator();
}

// Steps a coordinator that goes on though another one leads: what it would store is refused, so it says no
// more than what goes ahead of the store, to processes that have not gone over.
void World::StepFormer(std::vector<Event> events) {
  Effects effects = former_->Step(now_, std::move(events));
  for (OutgoingMessage& m : effects.messages) {
    if (std::holds_alternative<Grant>(m.message) || std::holds_alternative<weft::TakeSnapshot>(m.message))
      SendTo(std::move(m));
  }
}

// Holds the effects until their records are on the disk, as the shell does, but for grants and announcements
// of snapshots.
void World::Hold(Effects effects) {
  std::vector<OutgoingMessage> behind;
  for (OutgoingMessage& m : effects.messages) {
    const bool ahead =
        std::holds_alternative<Grant>(m.message) || std::holds_alternative<weft::TakeSnapshot>(m.message);
    ahead ? SendTo(std::move(m)) : behind.push_back(std::move(m));
  }
  effects.messages = std::move(behind);
  for (auto& [number, p] : process_at_) {
    if (!p->dead) Pump(*p);
  }
  const auto shared = std::make_shared<Effects>(std::move(effects));
  const auto in_this_life = [this, life = coordinator_life_](std::function<void()> work) {
    return [this, life, work = std::move(work)] {
      if (life == coordinator_life_) work();
    };
  };
  durable_at_ = std::max(durable_at_, now_) + (shared->records.empty() ? 0 : 1 + random_.Below(1'000'000));
  carried_out_at_ = std::max(carried_out_at_, durable_at_ + random_.Below(200'000));
  At(durable_at_, in_this_life([this, shared] { Apply(std::exchange(shared->records, {}), &stored_); }));
  At(carried_out_at_, in_this_life([this, shared] { CarryOut(std::move(*shared)); }));
}

// Ends the coordinator at once, or only stops it: what it holds back, and what is on the way to the disk, is
// lost. Another one begins with what is stored. Processes live on, and come back to it, but for those that
// die too.
void World::KillCoordinator() {
  if (finished_ || coordinator_ == nullptr) return;
  ++coordinator_life_;
  ++result_.coordinator_kills;
  former_ = std::move(coordinator_);
  if (random_.Chance(0.5)) former_.reset();
  former_sessions_ = sessions_.size();
  coordinator_timer_ = -1;
  counted_now_.clear();
  Note(Mix(18, coordinator_life_));
  for (auto& [number, p] : process_at_) p->dead |= random_.Chance(options_.dies_with_coordinator);
  At(now_ + 1 + random_.Below(20'000'000), [this] { RestartCoordinator(); });
}

void World::RestartCoordinator() {
  if (absl::Status s = CheckStored(stored_); !s.ok()) return Problem(std::string(s.message()));
  StartCore(++stored_.epoch);
  std::vector<Event> events;
  for (const auto& [id, run] : stored_.runs) {
    // A reader of the store sees these steps, even if no watcher was told.
    steps_done_ = static_cast<int>(run.steps.size());
    const int end = options_.first_step + steps_done_;
    for (const Job& job : ended_) {
      if (job.step < end) counted_.insert(job);
    }
    const bool ended = IsFinal(run.figures.info.state);
    events.push_back(RestoreRun{run, ended ? nullptr : submitted_});
  }
  StepCoordinator(std::move(events));
  Submit();
  for (int number = 0; number < options_.processes + options_.spares; ++number) {
    if (process_at_[number]->dead) StartProcess(number);
    Process& p = *process_at_[number];
    AtOf(p, now_ + 1 + random_.Below(10'000'000), [this, &p, life = coordinator_life_] {
      if (life != coordinator_life_) return;
      p.joined ? ReturnTo(p) : Join(p);
    });
  }
}

void World::SendTo(OutgoingMessage m) {
  Process& p = *sessions_.at(m.session);
  if (p.dead || p.session->session() != m.session) return;
  if (absl::Status s = p.session->coordinator_end.Send(std::move(m.message)); !s.ok())
    Problem(std::string(s.message()));
}

// Carries out what the coordinator has decided.
void World::CarryOut(Effects effects) {
  for (OutgoingMessage& m : effects.messages) SendTo(std::move(m));
  for (const Reply& r : effects.replies) {
    if (r.reply == kMoveReply) {
      TakeMoveReply(r);
    } else if (!r.status.ok() && (r.reply != kDrainReply || !absl::IsNotFound(r.status))) {
      Problem(absl::StrCat("it was refused: ", r.status.ToString()));
    }
  }
  for (const JobsEnded& j : effects.jobs) {
    for (const Completion& c : j.jobs) {
      Note(Mix(13, c.job.stage * 100 + c.job.microbatch));
      counted_.insert(c.job);
      if (!counted_now_.insert(c.job).second) Problem(absl::StrCat(Describe(c.job), " was counted twice"));
      if (!ended_.count(c.job)) Problem(absl::StrCat(Describe(c.job), " was counted before it ended"));
    }
  }
  steps_done_ += static_cast<int>(effects.steps.size());
  for (const CloseSession& c : effects.closed) {
    const Process& p = *sessions_.at(c.session);
    if (!p.dead && p.session->session() == c.session)
      Problem(absl::StrCat("session closed: ", c.status.ToString()));
  }
  for (const RunInfo& run : effects.runs) {
    if (run.stop_step >= 0) stops_.insert(stop_step_ = run.stop_step);
    failed_validations_ = run.failed_validations;
    if (run.state == RunState::kFinished) finished_ = true;
    if (run.state == RunState::kCancelled && options_.stop_at_ns > 0) finished_ = result_.stopped = true;
    if (run.state == RunState::kFailed && options_.bad_job.kind != BadJob::Kind::kNone) {
      result_.failure = run.reason;
      finished_ = true;
    }
    if (IsFinal(run.state) && !finished_) Problem(absl::StrCat("the run ended: ", run.reason));
    if (run.restarts == result_.restarts) continue;
    result_.restarts = run.restarts;
    result_.restart_reason = run.restart_reason;
    stops_.insert(run.restart_step);
    CheckRestart(run);
    counted_now_.clear();
  }
  for (auto& [number, p] : process_at_) {
    if (!p->dead) Pump(*p);
  }
}

void World::WakeCoordinator() {
  if (coordinator_ == nullptr) return;
  const int64_t deadline = coordinator_->next_deadline();
  if (deadline == INT64_MAX || (coordinator_timer_ > now_ && coordinator_timer_ <= deadline)) return;
  coordinator_timer_ = std::max(deadline, now_ + 1);
  At(coordinator_timer_, [this] { StepCoordinator({Tick{}}); });
}

}  // namespace weft
