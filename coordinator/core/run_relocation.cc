#include "coordinator/core/run_relocation.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace weft {

absl::Status CheckMove(const RunInfo& info, const RunAttempt* attempt, bool blaming,
                       const std::vector<Rank>& ranks) {
  const std::string name = absl::StrCat("run ", info.id);
  if (IsFinal(info.state))
    return absl::FailedPreconditionError(absl::StrCat(name, " has ended: it is ", RunStateName(info.state)));
  if (ranks.empty()) return absl::InvalidArgumentError("no rank is named");
  for (const Rank rank : ranks) {
    if (rank < 0 || rank >= info.ranks)
      return absl::InvalidArgumentError(
          absl::StrCat(name, " has no rank ", rank, ": its ranks are 0 to ", info.ranks - 1));
  }
  if (info.state == RunState::kFinishing || (attempt != nullptr && attempt->ends()))
    return absl::FailedPreconditionError(absl::StrCat(name, " is about to end"));
  if (attempt == nullptr || attempt->stops() || blaming)
    return absl::AbortedError(absl::StrCat(name, " is on its way to other processes; try again",
                                           info.reason.empty() ? "" : ": ", info.reason));
  return absl::OkStatus();
}

std::optional<int32_t> StepToStopBehindCopies(const RunAttempt& attempt, const RunCopies& copies,
                                              const RunBeginnings& beginnings,
                                              const RunSubmission& submission) {
  const bool makes_copies = attempt.HasSteps() && copies.under_way();
  if (!makes_copies || attempt.reduction() != ReductionMode::kOrdered) return std::nullopt;
  const int32_t step = copies.NextStop(attempt.queue().granted_end());
  if (!beginnings.MaySkipTo(submission.plan(), !submission.output().empty(), step)) return std::nullopt;
  return step;
}

bool CanBeginThere(const RunBeginnings::Beginning& present, const RunCopies& copies,
                   const std::set<SessionId>& processes) {
  if (!present.copies.has_value()) return true;
  const std::optional<RunCopies::Beginning> newest = copies.Newest(present.step, &processes);
  return newest.has_value() && newest->step == present.step;
}

absl::Status WouldLoseWork(const RunInfo& info) {
  return absl::FailedPreconditionError(absl::StrCat("run ", info.id,
                                                    " has neither an output folder for a checkpoint nor "
                                                    "copies in memory that are of use: it would make its "
                                                    "steps again"));
}

}  // namespace weft
