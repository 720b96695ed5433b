// Names the causes for which a run begins again.
#ifndef WEFT_COORDINATOR_CORE_RESTART_CAUSE_H_
#define WEFT_COORDINATOR_CORE_RESTART_CAUSE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace weft {

enum class RestartCause : uint8_t {
  kProcessLost,        // a process of it was lost
  kLinkLost,           // a data link between two of its processes was
  kNoProgress,         // no job ran or ended, or a collective hung
  kNonFinite,          // a number of a step was infinite or not a number
  kDamagedCheckpoint,  // the checkpoint with which it was to begin
  kRelocated,          // it goes on with other processes, or under another schedule
  kCoordinator,        // its coordinator was started again, and not all of its processes came back
};
inline constexpr int kRestartCauses = 7;

// Returns "process_lost", "link_lost", ..: as in metrics.
constexpr absl::string_view RestartCauseName(RestartCause cause) {
  constexpr absl::string_view kNames[kRestartCauses] = {"process_lost", "link_lost",          "no_progress",
                                                        "non_finite",   "damaged_checkpoint", "relocated",
                                                        "coordinator"};
  return kNames[static_cast<int>(cause)];
}

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RESTART_CAUSE_H_
