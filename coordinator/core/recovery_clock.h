// Measures how long a run takes from the loss of a process to its next new step, by phase.
//
// loss --fence--> assigned --state--> running --first_job--> job done --step--> a step that had not ended
// before. A loss in between adds the time since the last event to `fence`, and the run begins again.
//
// A value; pure. Times are of the coordinator's monotonic clock, in nanoseconds.
#ifndef WEFT_COORDINATOR_CORE_RECOVERY_CLOCK_H_
#define WEFT_COORDINATOR_CORE_RECOVERY_CLOCK_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "proto/session/run_info.h"

namespace weft {

class RecoveryClock {
 public:
  void Lost(int64_t now) {
    if (under_way_) Add(RecoveryPhase::kFence, now);
    if (!under_way_) times_ = {};
    under_way_ = true;
    first_job_ = false;
    last_ns_ = now;
  }
  void Assigned(int64_t now) { Add(RecoveryPhase::kFence, now); }
  void Running(int64_t now) { Add(RecoveryPhase::kState, now); }
  void JobDone(int64_t now) {
    if (!std::exchange(first_job_, true)) Add(RecoveryPhase::kFirstJob, now);
  }
  // Takes a step that had not ended before. Returns the times of the recovery that is over with it, if one
  // was under way.
  std::optional<RecoveryTimes> NewStep(int64_t now) {
    if (!under_way_) return std::nullopt;
    Add(RecoveryPhase::kStep, now);
    under_way_ = false;
    return times_;
  }

 private:
  void Add(RecoveryPhase phase, int64_t now) {
    if (!under_way_) return;
    times_[static_cast<int>(phase)] += now - last_ns_;
    last_ns_ = now;
  }

  bool under_way_ = false, first_job_ = false;
  int64_t last_ns_ = 0;
  RecoveryTimes times_ = {};
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RECOVERY_CLOCK_H_
