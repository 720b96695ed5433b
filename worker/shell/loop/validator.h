// Validates weights that were kept aside, one step's after the other, on one thread of low priority beside
// the process's work.
//
// The coordinator gives one at a time (coordinator/core/checkpoints.h). The validator reports about once a
// second how far it has come, so that a long one can be distinguished from one that hangs; then its end,
// once.
//
// Threads: any may call; `report` is called on the validator's thread without a lock, and may call back. The
// thread starts with the first work. Failure: is reported; nothing else stops.
#ifndef WEFT_WORKER_SHELL_LOOP_VALIDATOR_H_
#define WEFT_WORKER_SHELL_LOOP_VALIDATOR_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/session/messages.h"
#include "worker/shell/compute/evaluation.h"

namespace weft {

class Validator {
 public:
  using Work = std::function<absl::StatusOr<Evaluation>(const EvaluationProgress&)>;

  explicit Validator(std::function<void(const Validation&)> report);
  // Waits for the batch that is being computed, ten seconds at most; a thread that a file system holds for
  // longer is left to itself.
  ~Validator();

  void Begin(uint64_t run, int step, Work work);
  // Ends what is being validated and forgets what waits, without a report; then does `after` on the thread.
  void Cancel(std::function<void()> after);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_VALIDATOR_H_
