// Reads and writes the index of a checkpoint folder: its files, its step, and the run that made it.
//
// It is written last, so that a folder without one is no checkpoint. It names the checksum of every file: a
// folder in which one has been replaced by that of another run, attempt or step is refused, whatever names
// and versions say. It has its own checksum too, so that no changed byte of it is believed; indexes of
// version 0.1 have none, nor those of the files' headers, and are read as they are. It also has the random id
// of the run and its attempt, which tell where a checkpoint comes from, and a `training`, the same for all
// trainings that end with the same bits whatever their schedule, placement and processes (TrainingId), which
// the files carry too. So files of the same training are equal byte for byte, and their indexes are not
// (docs/decisions/0010-checkpoints-without-a-pause.md).
//
// Failure: NotFound where there is no index, DataLoss for one that is damaged or names other files,
// FailedPrecondition for one of a later format; each says which file. Needs no LibTorch.
#ifndef WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_INDEX_H_
#define WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_INDEX_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/shell/checkpoint/safetensors.h"

namespace weft {

inline constexpr absl::string_view kCheckpointIndex = "model.safetensors.index.json";

// The identity of the run that made a checkpoint.
struct CheckpointIdentity {
  std::string run_id;     // 32 hexadecimal digits; "" if none was given
  uint64_t attempt = 0;   // attempt of that run
  bool periodic = false;  // saved on the way, and removed when enough newer ones are there
};

struct CheckpointIndex {
  struct File {
    std::string crc32;   // checksum of its data, as in its own metadata
    uint64_t bytes = 0;  // length of the file
    std::string header;  // checksum of its header; "" if it is not known
  };

  std::string run;  // name of the run
  int version = 0;  // number of updates that made the weights
  std::string training;
  CheckpointIdentity identity;
  // Time when it was completed, in milliseconds since 1970; later than that of any checkpoint that was in the
  // same output then, whatever the clock said.
  int64_t sealed_ms = 0;
  uint64_t total_size = 0;
  std::map<std::string, File> files;
  std::map<std::string, std::string> weight_map;  // file of each parameter
  std::vector<std::string> state;                 // files of the rest of the training state, if it has any

  static absl::StatusOr<CheckpointIndex> Read(const std::string& folder);
  absl::Status Write(const std::string& folder) const;

  // Returns OK if `file` in `folder`, whose header this is, is the one that was there when the index was
  // written.
  absl::Status Check(const std::string& folder, const std::string& file,
                     const SafetensorsHeader& header) const;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CHECKPOINT_CHECKPOINT_INDEX_H_
