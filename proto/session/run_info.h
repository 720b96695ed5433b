// Holds what the run API says: the state of a run, and its progress step by step.
//
// The life of a run:
//
// submitted -> waiting -> preparing -> running -> finishing -> finished
// (from any state before finished) -> failed(reason) | cancelled
// (from preparing, running or finishing, when a process is lost) -> waiting
//
// A run that is `waiting` waits for as many free worker processes as it asks for. Runs are served in the
// order of submission. Pure.
#ifndef WEFT_PROTO_SESSION_RUN_INFO_H_
#define WEFT_PROTO_SESSION_RUN_INFO_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/session/messages.h"
#include "proto/session/queue_terms.h"

namespace weft {

enum class RunState : uint8_t {
  kSubmitted,
  kWaiting,
  kPreparing,
  kRunning,
  kFinishing,
  kFinished,
  kFailed,
  kCancelled
};
inline constexpr int kRunStates = 8;

// Returns "submitted", "waiting", ..: as on the wire, in metrics and in output.
absl::string_view RunStateName(RunState state);
constexpr bool IsFinal(RunState state) { return state >= RunState::kFinished; }

// A part of the time from a loss to the next step that had not ended before: until the processes have ended
// the attempt and ranks have new leases, until all are prepared, until a job is done, until that step ends.
enum class RecoveryPhase : uint8_t { kFence, kState, kFirstJob, kStep };
inline constexpr int kRecoveryPhases = 4;
// Returns "fence", "state", "first_job", "step".
absl::string_view RecoveryPhaseName(RecoveryPhase phase);
// Times by phase, in nanoseconds.
using RecoveryTimes = std::array<int64_t, kRecoveryPhases>;

struct RunInfo {
  uint64_t id = 0;
  // Identity of the run on any coordinator, as run.json has it (messages.h, Assign); "" unknown.
  std::string run_id;
  std::string name;      // name in the run file
  std::string schedule;  // as the user wrote it
  RunState state = RunState::kSubmitted;
  std::string reason;  // sentence that says why it waits, failed or was cancelled
  // A sentence that says how gradients are summed, where the run file leaves it to the devices; known from
  // the assignment on.
  std::string reduction;
  std::string output;  // folder of the results; "" for none
  // True once a run that has ended writes nothing more there; nothing where that is not known. And a sentence
  // that says why results of a run that finished are missing there.
  std::optional<bool> output_closed;
  std::string output_failure;
  std::string file;  // the run file's name, as the client gave it
  // Labels of its processes, once it has them, and the number of each rank's process among these; empty in
  // lists.
  std::vector<std::string> members;
  std::vector<int32_t> member_of_rank;
  QueueTerms terms;
  int32_t ranks = 0, processes = 0;
  int32_t steps = 0, steps_done = 0;
  double loss = 0;  // loss of the last step done
  bool has_loss = false;
  // Number of updates in the newest complete checkpoint that this run has made; -1 for none.
  int32_t checkpoint_step = -1;
  // Sentence about the last checkpoint that could not be saved; "" if none failed.
  std::string checkpoint_failure;
  int32_t failed_checkpoints = 0;
  // The last figures on the held-out data, and the reason why the last failed validation was not made.
  std::optional<Validation> validation;
  std::string validation_failure;
  int32_t failed_validations = 0;
  // Number of times that the run has begun again, for a lost process or data link or for other processes, the
  // first step that it then made, and why it did so the last time.
  int32_t restarts = 0, restart_step = 0;
  std::string restart_reason;
  // Number of times that a step was given up on all stages for a number that is infinite or not a number, and
  // the last such step.
  int32_t non_finite_steps = 0, non_finite_step = -1;
  std::optional<RecoveryTimes> recovery_ns;  // times of the last restart that has led to a new step
  // The step whose complete checkpoint ends the run, if it was asked to stop; -1 otherwise.
  int32_t stop_step = -1;
  int64_t submitted_ns = 0, started_ns = 0, ended_ns = 0;  // coordinator's monotonic clock; 0: not yet
  std::vector<RankReport> reports;                         // by rank, the latest of each; empty in lists
};

struct StepDone {
  uint64_t run = 0;
  int32_t step = 0;
  double loss = 0;  // mean over the micro-batches, in their order
  bool has_loss = false;
  int64_t end_ns = 0;  // end of its last update, on the coordinator's monotonic clock
  // Global norm of the step's gradients before clipping, in runs that clip.
  std::optional<double> gradient_norm = {};
};

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_RUN_INFO_H_
