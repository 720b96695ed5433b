#include "coordinator/core/run_relocation.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// Returns true if an attempt on these processes can begin where the present one did: with its checkpoint, or
// with copies of which they keep every part.
bool CanBeginThere(const RunBeginnings::Beginning& present, const RunCopies& copies,
                   const std::set<SessionId>& processes) {
  if (!present.copies.has_value()) return true;
  const std::optional<RunCopies::Beginning> newest = copies.Newest(present.step, &processes);
  return newest.has_value() && newest->step == present.step;
}

}  // namespace

absl::Status RunRelocation::Check(const std::vector<Rank>& ranks, bool blaming) const {
  const std::string name = absl::StrCat("run ", info_.id);
  if (IsFinal(info_.state)) {
    return absl::FailedPreconditionError(absl::StrCat(name, " has ended: it is ", RunStateName(info_.state)));
  }
  if (ranks.empty()) return absl::InvalidArgumentError("no rank is named");
  for (const Rank rank : ranks) {
    if (rank < 0 || rank >= info_.ranks)
      return absl::InvalidArgumentError(
          absl::StrCat(name, " has no rank ", rank, ": its ranks are 0 to ", info_.ranks - 1));
  }
  const RunAttempt* attempt = present_.attempt();
  if (info_.state == RunState::kFinishing || (attempt != nullptr && attempt->ends()))
    return absl::FailedPreconditionError(absl::StrCat(name, " is about to end"));
  if (attempt == nullptr || attempt->stops() || blaming)
    return absl::AbortedError(absl::StrCat(name, " is on its way to other processes; try again",
                                           info_.reason.empty() ? "" : ": ", info_.reason));
  return absl::OkStatus();
}

// Returns the next step behind which copies will be complete and of use to the next attempt; none where there
// is no such step.
std::optional<int32_t> RunRelocation::StepOfCopies() const {
  const RunAttempt& attempt = *present_.attempt();
  const bool makes_copies = attempt.HasSteps() && present_.copies().under_way();
  if (!makes_copies || attempt.reduction() != ReductionMode::kOrdered) return std::nullopt;
  const int32_t step = present_.copies().NextStop(attempt.queue().granted_end());
  if (!present_.beginnings().MaySkipTo(submission_.plan(), !submission_.output().empty(), step))
    return std::nullopt;
  return step;
}

std::optional<RunEnding> RunRelocation::Relocate(StepEffects& out, const std::string& reason) {
  const bool has_work = info_.state == RunState::kPreparing || info_.state == RunState::kRunning;
  if (!has_work || present_.attempt()->ends()) return std::nullopt;
  // Copies leave with the processes that keep them: a checkpoint is safer.
  const RunAttempt& attempt = *present_.attempt();
  const bool saves = attempt.CanStop();
  if (attempt.stops() && !(saves && attempt.stops_behind_copies())) return std::nullopt;
  return Stop(out, saves ? std::nullopt : StepOfCopies(), reason);
}

absl::StatusOr<std::optional<RunEnding>> RunRelocation::Move(StepEffects& out, const std::vector<Rank>& ranks,
                                                             SessionId to, const std::string& reason) {
  const RunAttempt& attempt = *present_.attempt();
  RunPlacement ordered;
  if (!ordered.Order(present_.members(), ranks, to)) return std::nullopt;
  if (!attempt.HasSteps() &&
      !CanBeginThere(present_.beginnings().present(), present_.copies(), ordered.processes()))
    return absl::AbortedError("the processes there keep no copies of the run's state yet; try again");
  // Copies that two leaving processes keep for each other would leave with them.
  const std::optional<int32_t> step = ordered.Leaving(present_.members()) > 1 ? std::nullopt : StepOfCopies();
  if (attempt.HasSteps() && !attempt.CanStop() && !step.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("run ", info_.id,
                     " has neither an output folder for a checkpoint nor copies in memory that are of use: "
                     "it would make its steps again"));
  }
  placement_ = std::move(ordered);
  return Stop(out, step, reason);
}

// Stops the attempt behind copies of the step, else behind a checkpoint.
std::optional<RunEnding> RunRelocation::Stop(StepEffects& out, std::optional<int32_t> step,
                                             const std::string& reason) {
  RunAttempt& attempt = *present_.attempt();
  if (step.has_value() && *step >= submission_.plan().steps) return std::nullopt;  // it ends by itself
  if (!step.has_value() && !attempt.CanStop()) return End(reason);
  step.has_value() ? attempt.StopBehindCopies(reason, *step) : attempt.Stop(reason, /*relocates=*/true);
  progress_.Announce(out);
  return std::nullopt;
}

void RunRelocation::Replan(StepEffects& out, ReplanRun& replan, bool blaming) {
  const RunAttempt* const attempt = present_.attempt();
  const bool runs = info_.state == RunState::kRunning && attempt != nullptr && !attempt->stops() && !blaming;
  if (!runs || replan.restarts != info_.restarts || replan.plan->ranks() != info_.ranks) return;
  const bool whole = present_.members().size() == info_.processes;
  if (!whole || !attempt->CanStop() || submission_.plan().resumed_spec == nullptr) return;
  placement_.Keep(present_.members());
  std::string reason = std::move(replan.reason);
  replan_ = std::move(replan);
  Stop(out, std::nullopt, reason);
}

std::optional<ReplanRun> RunRelocation::TakeReplan() {
  std::optional<ReplanRun> replan = std::exchange(replan_, std::nullopt);
  if (!std::exchange(stopped_, false)) return std::nullopt;
  return replan;
}

bool RunRelocation::MayExpand(int64_t now, int64_t interval_ns) const {
  const RunAttempt* const attempt = present_.attempt();
  const bool smaller = present_.members().size() < info_.processes && !placement_.ordered();
  if (!smaller || info_.state != RunState::kRunning || attempt->stops()) return false;
  if (now - attempt->running_since_ns() < info_.restarts * interval_ns) return false;
  return attempt->CanStop() || StepOfCopies().value_or(submission_.plan().steps) < submission_.plan().steps;
}

std::optional<RunEnding> RunRelocation::Stopped() {
  const RunAttempt& attempt = *present_.attempt();
  if (!attempt.HasStopped(present_.copies())) return std::nullopt;
  if (!attempt.relocates()) return RunEnding{RunState::kCancelled, attempt.stop_reason()};
  // The next attempt would not make the validations.
  const RunCheckpoints* checkpoints = attempt.checkpoints();
  if (checkpoints != nullptr && checkpoints->validating()) return std::nullopt;
  stopped_ = true;
  return End(attempt.stop_reason());
}

RunEnding RunRelocation::End(const std::string& reason) {
  attempts_.Relocated();
  return {RunState::kWaiting, reason, RestartCause::kRelocated};
}

}  // namespace weft
