#include "coordinator/core/run_deadlines.h"

#include "absl/strings/str_cat.h"
#include "coordinator/core/seconds.h"

namespace weft {

std::string RunDeadlines::Describe(int64_t now, const RunInfo& info, const RunMembers& members,
                                   const RunAttempt* attempt) const {
  if (info.state <= RunState::kWaiting)
    return absl::StrCat("waited ", Seconds(options_.waiting_ns), " for worker processes: ", info.reason);
  if (info.state == RunState::kPreparing) {
    return absl::StrCat("not prepared after ", Seconds(options_.preparing_ns), ": ",
                        members.Missing(&RunMember::prepared));
  }
  if (info.state == RunState::kRunning) {
    return absl::StrCat("no job ran or ended for ", Seconds(options_.progress_ns),
                        "; awaited: ", attempt->DescribeAwaited(now));
  }
  const std::string time = Seconds(options_.finishing_ns);
  const RunCheckpoints* checkpoints = attempt->checkpoints();
  std::string awaited = checkpoints == nullptr ? "" : checkpoints->DescribeLate(time);
  if (!awaited.empty()) return awaited;
  return absl::StrCat("not finished ", time, " after the last job: ", members.Missing(&RunMember::finished));
}

}  // namespace weft
