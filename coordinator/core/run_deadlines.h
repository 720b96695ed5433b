// Keeps the time by which the present state of a run must have got on, and says what was awaited in vain.
//
// Every state before the end has a deadline, but a run that waits for its turn has none: others have theirs.
// A run that is taken up by a coordinator that was started again also has a time in which the workers come
// back (`gathering`).
//
// Run (run.h) owns it, and tells it of each new state and of each progress. A value; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_DEADLINES_H_
#define WEFT_COORDINATOR_CORE_RUN_DEADLINES_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "coordinator/core/core_options.h"
#include "coordinator/core/run_attempt.h"
#include "coordinator/core/run_members.h"
#include "proto/session/link_clock.h"

namespace weft {

class RunDeadlines {
 public:
  explicit RunDeadlines(const CoreOptions& options) : options_(options) {}

  // Begin the time of a state, or, where the run has got on in it, begin it anew.
  void Prepare(int64_t now) { due_ = now + options_.preparing_ns; }
  void Run(int64_t now) { due_ = now + options_.progress_ns; }
  void Finish(int64_t now) { due_ = now + options_.finishing_ns; }
  // Begins the time in which workers must connect, unless it has begun.
  void AwaitWorkers(int64_t now) {
    if (due_ == kNever) due_ = now + options_.waiting_ns;
  }
  // Ends the time: the run waits for its turn, or an attempt is over.
  void Clear() { due_ = kNever; }

  void BeginGathering(int64_t now) { gather_until_ = now + options_.gathering_ns; }
  void EndGathering() { gather_until_ = kNever; }
  bool gathering() const { return gather_until_ != kNever; }

  // Returns when Pass has something to say; kNever for never.
  int64_t next_due() const { return std::min(due_, gather_until_); }
  // Ends the gathering if its time is over. Returns true if the time of the state is.
  bool Pass(int64_t now) {
    if (now >= gather_until_) gather_until_ = kNever;
    return now >= due_;
  }
  // Returns "not prepared after 300 s: process 1 (..)", and so on, of a run whose time is over. `attempt`:
  // the present one; null while the run waits.
  std::string Describe(int64_t now, const RunInfo& info, const RunMembers& members,
                       const RunAttempt* attempt) const;

 private:
  const CoreOptions& options_;
  int64_t due_ = kNever;
  int64_t gather_until_ = kNever;  // kNever: it does not gather
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_DEADLINES_H_
