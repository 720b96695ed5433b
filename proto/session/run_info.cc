#include "proto/session/run_info.h"

namespace weft {

absl::string_view RunStateName(RunState state) {
  constexpr absl::string_view kNames[kRunStates] = {"submitted", "waiting",  "preparing", "running",
                                                    "finishing", "finished", "failed",    "cancelled"};
  return kNames[static_cast<int>(state)];
}

absl::string_view RecoveryPhaseName(RecoveryPhase phase) {
  constexpr absl::string_view kNames[kRecoveryPhases] = {"fence", "state", "first_job", "step"};
  return kNames[static_cast<int>(phase)];
}

}  // namespace weft
