// Looks at checkpoints without the run that they are of: what each one is, whether it is whole, and which one
// a run can go on from.
//
// The headers tell whether every file, parameter, older version and optimizer's buffer is there that the
// index and the metadata name, in its length and of this checkpoint. Only reading the data tells whether
// they are what was written; that takes the disk's time, and memory for a small piece of a file.
//
// A folder that cannot be read at all is damaged, like one whose index is. A checkpoint that is removed
// meanwhile, as the run that owns it does, may look damaged. Threads: none. Needs no LibTorch.
#ifndef WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_AUDIT_H_
#define WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_AUDIT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/shell/checkpoint/checkpoint_folders.h"
#include "worker/shell/checkpoint/checkpoint_index.h"

namespace weft {

struct CheckpointDamage {
  std::string file;         // name within the checkpoint
  std::string message;      // a sentence: the file by its path, what is wrong with it, what to do
  bool unreadable = false;  // true for a file that cannot be opened, which may be whole
};

// Findings in one checkpoint.
struct CheckpointAudit {
  NamedCheckpoint named;
  std::optional<CheckpointIndex> index;  // none where it is partial, or the index is damaged
  uint64_t bytes = 0;                    // of all its files on the disk
  std::vector<CheckpointDamage> damages;

  const std::string& folder() const { return named.folder; }
  bool complete() const { return index.has_value() && damages.empty(); }
  // Returns true if files cannot be opened, and nothing else is known to be wrong.
  bool unreadable() const;
  // Returns true if it has all that a run needs to go on.
  bool resumable() const { return complete() && index->version > 0 && !index->state.empty(); }
  // Returns the step as the index has it, else as the name has it.
  std::optional<int> step() const {
    return index.has_value() ? std::optional<int>(index->version) : named.step;
  }
};

enum class AuditDepth {
  kHeaders,  // index and headers
  kData,     // every byte
};

CheckpointAudit AuditCheckpoint(const NamedCheckpoint& named, AuditDepth depth);

// Audits the checkpoints of a path: `folder` itself if it is one, else those in it. Checkpoints without an
// index come first, then the others in the order in which they were sealed.
std::vector<CheckpointAudit> AuditCheckpoints(const std::string& folder, AuditDepth depth);

// The newest checkpoint that a run can go on from.
struct NewestValid {
  std::string folder;                    // "" if there is none
  std::vector<CheckpointAudit> refused;  // damaged ones that are newer, or may be; newest last
};
// Looks for it in a run's output. Reads every byte of each from the newest on, until one is whole.
NewestValid FindNewestValid(const std::string& output);

// A checkpoint to read, and why newer ones are left out, a sentence each.
struct WholeCheckpoint {
  std::string folder;
  std::vector<std::string> left_out;
};
// Returns the checkpoint for a path: `folder` itself if it is one, which is not looked into, else the newest
// in it that is whole. If none is because none has a state to go on with, the newest complete one of at least
// `least` updates. NotFound if there is none; DataLoss, with all causes, if all are damaged.
absl::StatusOr<WholeCheckpoint> FindWholeCheckpoint(const std::string& folder, int least = 0);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_AUDIT_H_
