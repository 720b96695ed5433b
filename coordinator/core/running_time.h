// Measures for how long runs have been running, and for how long none of them has ended a step: time in which
// nothing runs says nothing about how fast steps are made.
//
// Two runs that run at the same time count once. When no run is running, the wait for a step begins anew.
//
// A value; pure. Times are of the coordinator's monotonic clock, in nanoseconds; the caller says at each of
// its steps what has been so since the one before.
#ifndef WEFT_COORDINATOR_CORE_RUNNING_TIME_H_
#define WEFT_COORDINATOR_CORE_RUNNING_TIME_H_

#include <cstdint>

namespace weft {

class RunningTime {
 public:
  // Lets the time pass since the last call. `steps`: how many steps of runs have ended in all.
  void Pass(int64_t now, uint64_t steps) {
    if (steps != steps_) waited_from_ = total_;
    steps_ = steps;
    if (running_) total_ += now - last_;
    last_ = now;
  }
  // Notes whether a run is running from now on.
  void Set(bool running) {
    running_ = running;
    if (!running) waited_from_ = total_;
  }

  // Returns the time in which a run was running, up to the last Pass.
  int64_t total() const { return total_; }
  // Returns the part of it since the last step ended. `steps` as in Pass.
  int64_t step_wait(uint64_t steps) const { return steps == steps_ ? total_ - waited_from_ : 0; }
  // Returns when the last Pass was if a run is running: both times grow since then. 0 if none is.
  int64_t grows_since() const { return running_ ? last_ : 0; }

 private:
  bool running_ = false;
  uint64_t steps_ = 0;
  int64_t last_ = 0, total_ = 0;
  int64_t waited_from_ = 0;  // total when the last step ended
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUNNING_TIME_H_
