#include "coordinator/core/run_progress.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace weft {

RunFigures RunProgress::Figures() const {
  RunFigures figures{InfoWithReports(), attempts_.losses().losses(), attempts_.losses().furthest(),
                     first_start_ns_};
  present_.WriteTo(&figures);
  figures.checkpoints = attempts_.Checkpoints();
  return figures;
}

void RunProgress::Announce(StepEffects& out) const {
  out.Changed(*info_);
  Keep(out);
}

RunInfo RunProgress::InfoWithReports() const {
  RunInfo info = *info_;
  if (info.reports.empty()) info.reports = attempts_.Reports();
  return info;
}

void RunProgress::Running(StepEffects& out) {
  recovery_.Running(out.now);
  if (info_->started_ns != 0) return;
  info_->started_ns = out.now;
  out.counts.queue_wait.Add(out.now - info_->submitted_ns);
}

void RunProgress::JobsDone(int64_t now, const std::vector<Completion>& jobs) {
  for (const Completion& done : jobs) first_start_ns_ = std::min(first_start_ns_, done.start_ns);
  recovery_.JobDone(now);
}

void RunProgress::StepsDone(StepEffects& out, int32_t steps_done) {
  if (steps_done <= info_->steps_done) return;
  info_->steps_done = steps_done;
  const std::optional<RecoveryTimes> recovery = recovery_.NewStep(out.now);
  if (!recovery.has_value()) return;
  info_->recovery_ns = recovery;
  for (int phase = 0; phase < kRecoveryPhases; ++phase) out.counts.recovery_ns[phase] += (*recovery)[phase];
  Announce(out);
}

void RunProgress::Take(StepEffects& out, SessionId from, std::vector<RankReport>& reports) {
  for (RankReport& r : reports) attempts_.AddFormer(&r);
  out.effects.reports.push_back({info_->id, reports});
  for (RankReport& r : reports) {
    if (present_.members().Has(from, r.rank)) attempts_.Keep(std::move(r));
  }
}

}  // namespace weft
