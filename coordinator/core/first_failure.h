// Keeps the first failure that a process of a run has reported, for the time in which its cause is sought.
//
// A process that dies makes its peers fail, and their reports may come first. So the report waits, and counts
// only when nothing has explained it by then (run.h, invariant 3).
//
// A value; pure.
#ifndef WEFT_COORDINATOR_CORE_FIRST_FAILURE_H_
#define WEFT_COORDINATOR_CORE_FIRST_FAILURE_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/events.h"
#include "coordinator/core/run_members.h"
#include "proto/session/link_clock.h"

namespace weft {

struct FirstFailure {
  std::string what;       // "process 1 (..) failed: .."
  SessionId session = 0;  // session of the process that reported it
  bool is_link = false;   // true if it was a data link
  int64_t due = kNever;   // time when its cause is no longer sought; kNever where nothing has failed

  bool any() const { return due != kNever; }

  // Returns a sentence about the loss of a process that explains the failure, if there is one. A failure that
  // the process itself reported before it ended is a better cause than its end.
  std::string ExplainedBy(const RunMember& member, const std::string& reason) const {
    if (any() && session == member.session) return absl::StrCat(what, " (then it was lost: ", reason, ")");
    const std::string lost = absl::StrCat(member.label, " was lost: ", reason);
    return any() ? absl::StrCat(lost, " (then ", what, ")") : lost;
  }
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_FIRST_FAILURE_H_
