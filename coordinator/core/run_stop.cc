#include "coordinator/core/run_stop.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "schedules/sync/saving.h"

namespace weft {

bool RunStop::Order(const std::string& reason) {
  const bool saves = submission_.has_plan() && !submission_.output().empty();
  if (!saves || info_->steps_done <= submission_.plan().first_step) return false;
  reason_ = reason.empty() ? "it was told to end" : reason;
  if (info_->state == RunState::kRunning) {
    present_.attempt()->Stop(reason_, /*relocates=*/false);
  } else if (present_.awaited() == nullptr) {
    const RunPlan& plan = submission_.plan();
    info_->stop_step = std::min(info_->steps_done + SnapshotLead(plan.graph), plan.steps);
    info_->reason = Explain(info_->reason);
  }
  return true;
}

void RunStop::Begin() {
  if (ordered() && !present_.attempt()->ends()) present_.attempt()->Stop(reason_, /*relocates=*/false);
}

std::string RunStop::Explain(const std::string& why) const {
  return absl::StrCat(reason_, ordered() && !why.empty() ? "; " : "", why);
}

std::string RunStop::Conclude(RunState state, std::string reason) const {
  const bool saved = info_->stop_step >= 0 && info_->checkpoint_step >= info_->stop_step;
  if (!ordered() || state == RunState::kFinished || saved) return reason;
  if (!absl::StrContains(reason, " was not saved"))
    absl::StrAppend(&reason, "; the checkpoint with which it was to end was not saved");
  const int32_t newest = info_->checkpoint_step;
  return newest < 0 ? absl::StrCat(reason, "; it has made none before")
                    : absl::StrCat(reason, "; the newest is of step ", newest);
}

}  // namespace weft
