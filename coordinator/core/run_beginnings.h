// Decides where the attempts of a run begin, and says it: at the run's first step, behind a checkpoint, or
// behind a step of which its processes keep copies (docs/design/recovery.md). A checkpoint, or copies, that
// prove to be damaged are left out from then on.
//
// PresentAttempt (present_attempt.h) owns it. Refers to the attempts, the copies and the info of the run. Not
// movable; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_BEGINNINGS_H_
#define WEFT_COORDINATOR_CORE_RUN_BEGINNINGS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "coordinator/core/run_attempts.h"
#include "coordinator/core/run_copies.h"
#include "coordinator/core/run_plan.h"

namespace weft {

class RunBeginnings {
 public:
  struct Beginning {
    int32_t step = 0;
    std::optional<RunCopies::Beginning> copies;  // none: a checkpoint, or the first step
  };

  RunBeginnings(RunAttempts& attempts, RunCopies& copies, RunInfo* info)
      : attempts_(attempts), copies_(copies), info_(info) {}
  RunBeginnings(const RunBeginnings&) = delete;
  RunBeginnings& operator=(const RunBeginnings&) = delete;

  // Notes that the validation of the weights after so many steps has ended.
  void Validated(int32_t step) { validated_step_ = std::max(validated_step_, step); }
  // Returns where the next attempt begins, on these processes and with this reduction; on any for null.
  // `saves`: the run has an output folder, and saves checkpoints there.
  Beginning Next(const RunPlan& plan, bool saves, const std::set<SessionId>* processes,
                 std::optional<ReductionMode> reduction) const;
  // Returns where it begins without copies.
  Beginning WithCheckpoint(const RunPlan& plan) const;

  // Returns true if an attempt may begin with copies of a step that the present one has yet to reach: nothing
  // of the steps before it is left to do then.
  bool MaySkipTo(const RunPlan& plan, bool saves, int32_t step) const {
    return plan.resumed_spec != nullptr && NewestToSkipTo(plan, saves, step) >= step;
  }

  // Writes into the info why the run begins again, and where. Without a cause the one before stays.
  void Tell(const RunPlan& plan, const Beginning& beginning, std::string cause = {});

  // Begins an attempt there.
  void Begin(Beginning beginning) { present_ = std::move(beginning); }
  const Beginning& present() const { return present_; }
  // Forgets the checkpoint or the copies of the step if the present attempt began with them: they are
  // damaged. Returns true if the run can begin with something else, and counts the attempt that is over with
  // that.
  bool ForgetDamaged(int32_t step);

 private:
  int32_t NewestToSkipTo(const RunPlan& plan, bool saves, int32_t steps_done) const;

  RunAttempts& attempts_;
  RunCopies& copies_;
  RunInfo* const info_;
  std::string cause_;            // why it began again the last time
  int32_t validated_step_ = -1;  // newest step whose validation has ended
  Beginning present_;            // of the present attempt
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_BEGINNINGS_H_
