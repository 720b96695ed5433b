// Reads and writes the training state of a stage in a checkpoint: all that a later run needs to go on to the
// same bits.
//
// The stage's own file holds the newest weights. `state/stage<ss>.safetensors` beside it holds the rest, its
// buffers by name: older weights that later steps still read ("stage00.linear0.weight.version9"), oldest
// first, and the optimizer's ("stage00.linear0.weight.exp_avg"). Its metadata have the version of the newest
// weights, the staleness of each micro-batch's reads, the optimizer and the number of its steps (fewer where
// steps were skipped).
//
// The rule and the version alone decide which buffers there are, and their bytes: not ranks, holders or
// processes. So any placement of a rule, and the reference, goes on from another's checkpoint. The state is
// written before the stage's file, and the index after all (checkpoint.h).
//
// Failure of the readers: NotFound or DataLoss for files that are missing or damaged, InvalidArgument for a
// checkpoint that does not fit the run; each says which file, and what is wrong with it. Needs no LibTorch.
#ifndef WEFT_WORKER_SHELL_COMPUTE_TRAINING_STATE_H_
#define WEFT_WORKER_SHELL_COMPUTE_TRAINING_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_schedule.h"
#include "run/run_spec.h"
#include "worker/shell/checkpoint/safetensors.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/parameters.h"

namespace weft {

// The rule by which jobs read the weights of a stage and updates make them. Two runs must have it in common
// for one to go on where the other stopped.
struct StateRule {
  std::vector<int> staleness;  // staleness by micro-batch; empty for a synchronous rule
  OptimizerSpec optimizer;
  std::string training;  // TrainingId of the run

  // Returns the oldest version that a step may read when `version` is the newest.
  int64_t OldestRead(int64_t version) const;
};
// Returns an id that is the same for all runs whose files of a step are equal byte for byte. It is made of
// what decides the numbers (model, data without the folders that they lie in, training, cut, precision and
// rule), and not of schedule, ranks or processes. 16 hexadecimal digits.
std::string TrainingId(const RunSpec& run, const std::vector<StateRule>& rules);

// Returns the rules of the run's schedule, by stage; synchronous ones for a run that names no schedule.
std::vector<StateRule> StateRulesOf(const ScheduledRun& run);

// Returns the names of the buffers beside the newest weights, in the order of their file.
std::vector<std::string> StateBuffers(const StateRule& rule, int64_t version);

// Returns the names of the buffers that a state's file of the version must hold, as its own metadata tell.
// DataLoss where they do not.
absl::StatusOr<std::vector<std::string>> BuffersNamedBy(const SafetensorsHeader& state);

// A buffer by slots: the start of each parameter's elements.
using SlotPointers = std::vector<const float*>;
// Returns the slots of a flat buffer of the stage.
SlotPointers SlotsOf(const StageLayout& layout, const float* flat);

// Writes the state's file and the stage's at the same time: the disk has one while the other is copied.
// `buffers`: as StateBuffers names them. Each complete or not at all.
absl::Status WriteTrainingState(const std::string& folder, const StageLayout& layout, const StateRule& rule,
                                int64_t version, int64_t optimizer_steps, const SlotPointers& newest,
                                const std::vector<SlotPointers>& buffers);

// The state of one stage from which a run goes on, wherever it is kept.
class KeptStage {
 public:
  virtual ~KeptStage() = default;
  virtual int64_t optimizer_steps() const = 0;

  // Copy elements [begin, end) of the newest weights' flat buffer, or of another by its name (StateBuffers);
  // zeros where no parameter lies.
  virtual void CopyNewest(SliceBounds range, float* out) const = 0;
  virtual void CopyBuffer(const std::string& name, SliceBounds range, float* out) const = 0;
};

// One stage of the checkpoint that a run goes on from.
class SavedStage final : public KeptStage {
 public:
  // Reads the stage's files and checks that they are of run.resume and fit the run.
  static absl::StatusOr<SavedStage> Read(const RunSpec& run, const StateRule& rule, int stage);

  // KeptStage.
  int64_t optimizer_steps() const override;
  void CopyNewest(SliceBounds range, float* out) const override;
  void CopyBuffer(const std::string& name, SliceBounds range, float* out) const override;

 private:
  StageLayout layout_;
  SafetensorsFile weights_, state_;
};

// The key of the optimizer's steps in a state's file, or a slice's: as many as updates, less those that were
// skipped (train.non_finite).
inline constexpr char kOptimizerSteps[] = "optimizer_steps";
int64_t OptimizerStepsOf(const SafetensorsHeader& state);

// Returns the step at which a run goes on from the checkpoint in `folder`: that many updates made its
// weights.
absl::StatusOr<int> ResumeStep(const std::string& folder);

// Returns OK if the run can go on from its `resume`, as far as the headers of all files tell.
absl::Status CheckResume(const ScheduledRun& run);

// Marks the failure to read a run's `resume` where the files are damaged or gone, so that the coordinator can
// let the run go on from another checkpoint. Returns any other status as it is.
absl::Status AsDamagedCheckpoint(absl::Status status);
bool IsDamagedCheckpoint(const absl::Status& status);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_TRAINING_STATE_H_
