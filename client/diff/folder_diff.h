// Compares two runs that have recorded no hashes, by what they left in their folders: the losses of
// steps.jsonl, and the checksums of checkpoints.
//
// This tells between which steps a difference began and which stages show it, but not which job made it.
#ifndef WEFT_CLIENT_DIFF_FOLDER_DIFF_H_
#define WEFT_CLIENT_DIFF_FOLDER_DIFF_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/diff/diff_report.h"
#include "nlohmann/json_fwd.hpp"

namespace weft {

// Describes what a run left in its folder.
struct RunTraces {
  std::map<int, std::optional<double>> losses;  // by step; nothing for one that is no number
  // Checksums of the files of each checkpoint, by step and name; with its index's training.
  std::map<int, std::map<std::string, std::string>> checkpoints;
  std::string training;  // "" if there is no checkpoint
};
// Returns NotFound if the folder holds neither steps nor a checkpoint.
absl::StatusOr<RunTraces> ReadTraces(const std::string& folder);

struct FolderDiff {
  int losses = 0, checkpoints = 0;                            // that both have
  std::optional<int> differing_loss;                          // first step whose losses differ
  std::optional<int> equal_checkpoint, differing_checkpoint;  // last equal one before the first that differs
  std::vector<std::string> differing_files;                   // of that

  bool equal() const { return !differing_loss.has_value() && !differing_checkpoint.has_value(); }
};
FolderDiff DiffTraces(const RunTraces& a, const RunTraces& b);

std::string FolderDiffText(const FolderDiff& diff, const DiffNames& names);
nlohmann::ordered_json FolderDiffJson(const FolderDiff& diff, const DiffNames& names);

}  // namespace weft

#endif  // WEFT_CLIENT_DIFF_FOLDER_DIFF_H_
