// Moves and removes the results of runs in an output folder, and puts a run that replaced another into its
// place. Only files that a run makes are removed, and no symbolic link is followed.
//
// Threads: one at a time for a folder. Failure: Unavailable with the paths.
#ifndef WEFT_COORDINATOR_RECORD_RUN_PLACING_H_
#define WEFT_COORDINATOR_RECORD_RUN_PLACING_H_

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace weft {

// Returns true if there is an entry of that path, be it a link to nothing.
bool EntryExists(const std::filesystem::path& path);

// Return the names in a folder, sorted: all, and those of a run's results. Those behind an error are missing.
std::vector<std::string> EntriesIn(const std::filesystem::path& folder);
std::vector<std::string> ResultsIn(const std::filesystem::path& folder);

absl::Status MoveEntry(const std::filesystem::path& from, const std::filesystem::path& to);

// Removes the results of the run in a folder.
void RemoveResults(const std::filesystem::path& folder);
// Removes a run from a sub-folder, and the sub-folder. Files that are not of a run move to `parent`.
void RemoveRun(const std::filesystem::path& folder, const std::filesystem::path& parent);

// Puts a replacement that was decided on into its place, from wherever a crash has left it.
absl::Status CompletePlacing(const std::filesystem::path& folder);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_RUN_PLACING_H_
