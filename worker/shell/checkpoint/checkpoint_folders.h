// Manages the checkpoint folders of a run's output: complete or invisible.
//
//   out/checkpoint-0/      the initial weights
//   out/checkpoint-40/     saved on the way, after 40 steps; the newest few stay
//   out/checkpoint/        of the run's end
//   out/checkpoint-80.1a2b3c4d-7.partial/    being written, by one attempt of one run
//   out/checkpoint-80.1a2b3c4d-7.validation.partial/    its weights, until they have been validated
//
// All files of a checkpoint are written aside, by all processes of the run, which may be on several machines
// that share the file system, into a folder whose name has the attempt in it. When every process has told the
// coordinator that its files are on the disk, one process alone seals it: it joins slices, writes the index,
// syncs the folder and renames it. If a folder of that name exists, the two change names in one step
// (renameat2), and the old one is removed then. So nobody has to find out whether others are ready, a folder
// with the final name is whole, and the old one is never gone before the new one is there.
//
// The next run that begins in the folder removes partial folders of killed attempts; a partial folder that is
// whole but for its name gets that name. A folder that is a symbolic link is not followed. Only files that a
// checkpoint is made of are ever removed.
//
// Failure: Unavailable for errors of the disk, FailedPrecondition for obstacles in the folder; each names the
// folder. Needs no LibTorch.
#ifndef WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_FOLDERS_H_
#define WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_FOLDERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_schedule.h"
#include "worker/shell/checkpoint/checkpoint_index.h"

namespace weft {

class CheckpointFolders {
 public:
  // Manages the folders of the run that writes into `output`.
  CheckpointFolders(std::string output, const ScheduledRun& run, std::string run_id, uint64_t attempt);

  const std::string& output() const { return output_; }
  const std::string& run_id() const { return identity_.run_id; }  // "" if none was given
  // Return the folder in which the checkpoint of the step is written, and its final folder.
  std::string Partial(int64_t step) const;
  std::string Final(int64_t step) const;

  // Prepares the output before anything is written: removes the remains of other attempts, and checks that
  // nothing stands in the way.
  absl::Status Prepare() const;
  // Seals the step's checkpoint, whose files have all been written. The newest `keep` of the periodic ones
  // stay. With `validate` its weights are kept aside too; what goes wrong with that, their reader says.
  absl::Status Seal(int64_t step, int keep, bool validate = false) const;
  // Removes what was written of it.
  void Drop(int64_t step) const;

  // Returns the folder of the weights of the step that are kept aside, a checkpoint without training state.
  std::string KeptAside(int64_t step) const;
  // Moves the weights of the step's snapshot there, whose files have all been written; there is no
  // checkpoint.
  absl::Status KeepAside(int64_t step) const;
  // Keeps the weights of a checkpoint aside, which may be removed meanwhile.
  absl::Status KeepAside(int64_t step, const std::string& checkpoint) const;
  void DropKeptAside(int64_t step) const;
  // Drops the weights kept aside of all steps.
  void DropKeptAside() const;

 private:
  const std::string output_;
  const ScheduledRun run_;
  const CheckpointIdentity identity_;
  const std::string tag_;
};

// Removes the partial folders in a run's output folder that do not end in `.<tag>.partial`, or all; and
// completes those that lack only their name.
void SweepPartialCheckpoints(const std::string& output, const std::string& tag = "");

// Checks the names: FailedPrecondition if one under which a run puts a checkpoint is taken by something else:
// a file or a symbolic link.
absl::Status CheckCheckpointNames(const std::string& output);

// A folder that is a checkpoint by its name.
struct NamedCheckpoint {
  std::string folder;
  std::optional<int> step;  // none where the name does not say it
  bool partial = false;     // it is being written, or was when its run ended
};
// Returns what the name of the folder says; nothing for one that is no name of a checkpoint.
std::optional<NamedCheckpoint> ReadCheckpointName(const std::string& folder);
// Returns the checkpoints in a run's output, by their names, in the order of their names.
std::vector<NamedCheckpoint> CheckpointsIn(const std::string& output);

// Returns the checkpoint folder for a path: `folder` itself, or the newest complete one in it where it is a
// run's output. The checkpoint has at least `least` updates. NotFound if there is none;
// InvalidArgument if this user may not read the folder.
absl::StatusOr<std::string> FindCheckpoint(const std::string& folder, int least = 0);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_FOLDERS_H_
