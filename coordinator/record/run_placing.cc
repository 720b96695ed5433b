#include "coordinator/record/run_placing.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/durable_file.h"
#include "coordinator/record/run_entries.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Removes only the files that a checkpoint is made of, and the folder if that leaves nothing in it. If the
// folder is a link, removes the link.
void RemoveCheckpoint(const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_symlink(folder, ignored)) {
    fs::remove(folder, ignored);
    return;
  }
  for (const std::string& name : EntriesIn(folder)) {
    if (name == "state") RemoveCheckpoint(folder / name);
    const bool tensors =
        absl::StartsWith(name, "stage") && (absl::EndsWith(name, ".safetensors") ||
                                            absl::EndsWith(name, ".slice") || absl::EndsWith(name, kPartial));
    if (tensors || IsFileOrPartial(name, kIndexOfCheckpoint)) fs::remove(folder / name, ignored);
  }
  fs::remove(folder, ignored);
}

// Moves the remaining entries of `from`, files that are not of a run, to the same places in `to`.
void MoveOthers(const fs::path& from, const fs::path& to) {
  std::error_code ignored;
  for (const std::string& name : EntriesIn(from)) {
    if (fs::is_directory(fs::symlink_status(from / name, ignored))) {
      fs::create_directory(to / name, ignored);
      MoveOthers(from / name, to / name);
    } else if (!EntryExists(to / name)) {
      fs::rename(from / name, to / name, ignored);
    }
  }
  fs::remove(from, ignored);
}

}  // namespace

bool EntryExists(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() > fs::file_type::not_found;
}

std::vector<std::string> EntriesIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> ResultsIn(const fs::path& folder) {
  std::vector<std::string> names = EntriesIn(folder);
  names.erase(std::remove_if(names.begin(), names.end(), [](const auto& name) { return !IsResult(name); }),
              names.end());
  return names;
}

void RemoveResults(const fs::path& folder) {
  std::error_code ignored;
  for (const std::string& name : ResultsIn(folder)) {
    if (StepOfName(name, /*partial=*/true) != -2)
      RemoveCheckpoint(folder / name);
    else
      fs::remove(folder / name, ignored);
  }
}

void RemoveRun(const fs::path& folder, const fs::path& parent) {
  if (!EntryExists(folder)) return;
  RemoveResults(folder);
  MoveOthers(folder, parent);
}

absl::Status MoveEntry(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot move ", from.string(), " to ", to.string(), ": ", error.message()));
}

absl::Status CompletePlacing(const fs::path& folder) {
  std::error_code error;
  if (EntryExists(folder / kWhole)) {
    fs::create_directory(folder / kFormer, error);
    for (const std::string& name : ResultsIn(folder)) {
      if (absl::Status moved = MoveEntry(folder / name, folder / kFormer / name); !moved.ok()) return moved;
    }
    if (absl::Status moved = MoveEntry(folder / kWhole, folder / kPlacing); !moved.ok()) return moved;
  }
  if (EntryExists(folder / kPlacing)) {
    for (const std::string& name : EntriesIn(folder / kPlacing)) {
      if (absl::Status moved = MoveEntry(folder / kPlacing / name, folder / name); !moved.ok()) return moved;
    }
    fs::remove(folder / kPlacing, error);
    // The former run is removed only when the names of the new one are on the disk.
    if (absl::Status synced = SyncToDisk(folder.string()); !synced.ok()) return synced;
  }
  RemoveRun(folder / kFormer, folder);
  return absl::OkStatus();
}

}  // namespace weft
