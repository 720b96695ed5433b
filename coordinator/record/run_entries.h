// Names what a run makes in its output folder: results, checkpoints, and the folders in which a run that
// replaces another lies until it takes its place. Pure.
#ifndef WEFT_COORDINATOR_RECORD_RUN_ENTRIES_H_
#define WEFT_COORDINATOR_RECORD_RUN_ENTRIES_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

inline constexpr char kReplacement[] = "replacement";      // a run that is to replace the former one
inline constexpr char kWhole[] = "replacement.whole";      // it is to take the former one's place
inline constexpr char kPlacing[] = "replacement.placing";  // the former one has left its place
inline constexpr char kFormer[] = "former";                // what has left its place
inline constexpr char kIndexOfCheckpoint[] = "model.safetensors.index.json";  // it is written last
inline constexpr char kPartial[] = ".partial";  // end of the name of what is being written

// Returns the step of a checkpoint's folder by its name: -1 for `checkpoint`, -2 for a name that is no
// checkpoint of a run. A checkpoint that is being written, `checkpoint-7.TAG.partial`, counts with `partial`.
int64_t StepOfName(const std::string& name, bool partial);

// Returns true for the file's name, and for one under which it is or was being written.
bool IsFileOrPartial(absl::string_view name, absl::string_view file);

// Returns true for a checkpoint or another result of a run, whole or being written.
bool IsResult(const std::string& name);

// Returns true for a folder that a run makes and removes with all that is in it.
bool IsFolderOfRun(const std::string& name);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_RUN_ENTRIES_H_
