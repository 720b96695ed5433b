// Declares how a rank writes its stages into checkpoints: the part of RankCompute (compute.h) about files.
//
// Threads: one call at a time, on any thread, and no job beside it but the one that Snapshot belongs to.
#ifndef WEFT_WORKER_SHELL_COMPUTE_RANK_FILES_H_
#define WEFT_WORKER_SHELL_COMPUTE_RANK_FILES_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft {

struct StageSnapshot;  // checkpoint.h
class KeptStage;       // training_state.h
class SnapshotMemory;  // snapshot_memory.h

class RankFiles {
 public:
  virtual ~RankFiles() = default;

  // Writes the held stage into `folder`: `stage<ss>.safetensors`, and, unless it is of version 0, first
  // `state/stage<ss>.safetensors` (training_state.h), each complete or not at all. Requires the versions that
  // later steps read. If a stage is sliced, each holder writes its slice there, and a holder that finds all
  // of them joins them into those files. Every holder knows version 0, and the holder of part 0 writes it.
  virtual absl::Status Save(int stage, const std::string& folder) = 0;

  // Take what the update that follows in the job writes over and later steps read, for the Snapshot behind
  // it, or for the Save at the end of the run; there it waits in a file without a name in `folder`. Do
  // nothing where later steps read the newest version alone.
  virtual absl::Status BeginSnapshot(int /*stage*/, SnapshotMemory& /*memory*/) { return absl::OkStatus(); }
  virtual absl::Status BeginSave(int /*stage*/, const std::string& /*folder*/) { return absl::OkStatus(); }

  // Returns what Save would write, of a version but 0, as copies in host memory: within the update that makes
  // the version, behind it. The host's copies lie in `memory`. A device with memory of its own copies after
  // the job has been launched; the rank's thread does not wait, and its later work on the device does.
  virtual absl::StatusOr<std::shared_ptr<const StageSnapshot>> Snapshot(int /*stage*/,
                                                                        SnapshotMemory& /*memory*/) {
    return absl::UnimplementedError("this device takes no snapshots");
  }

  // Returns the bytes that Snapshot takes from its memory for the stage in the long run; 0 where the rank
  // does not hold its state yet, or the copies lie elsewhere.
  virtual size_t SnapshotBytes(int /*stage*/) const { return 0; }

  // Begins with the state that processes kept in memory, in a run that goes on from there: what the rank
  // holds of the stage now, or, of one whose state migrates, when its state begins here.
  virtual absl::Status BeginFrom(int /*stage*/, const std::shared_ptr<const KeptStage>& /*kept*/) {
    return absl::UnimplementedError("this device goes on from checkpoints alone");
  }

  // Writes version 0 of any stage that was added, whether its weights are here or not.
  virtual absl::Status SaveInitial(int stage, const std::string& folder) = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_RANK_FILES_H_
