#include "worker/shell/checkpoint/checkpoint_folders.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/durable_file.h"
#include "base/run_files.h"
#include "worker/shell/checkpoint/checkpoint.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kEnd = "checkpoint", kBefore = "checkpoint-";
constexpr absl::string_view kPartial = ".partial";
// The suffix of a folder that had its name and is to be removed.
constexpr absl::string_view kRemoved = ".removed";
// Suffix of the folder of weights that are kept aside until they have been validated.
constexpr absl::string_view kValidation = ".validation";

absl::Status Refused(absl::string_view what, const std::string& path, int error) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", std::string(what), " ", path, ": ", std::strerror(error)));
}

// Returns the step of "checkpoint-40"; nothing for other names.
std::optional<int> StepOf(absl::string_view name) {
  int step = 0;
  if (!absl::ConsumePrefix(&name, kBefore) || name.empty() || name.size() > 10 ||
      name.find_first_not_of("0123456789") != absl::string_view::npos || !absl::SimpleAtoi(name, &step)) {
    return std::nullopt;
  }
  return step;
}

bool IsCheckpointName(absl::string_view name) { return name == kEnd || StepOf(name).has_value(); }

// Returns true for a folder that is no symbolic link.
bool IsFolder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(fs::symlink_status(path, error));
}

// Returns the names in a folder.
std::vector<std::string> NamesIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  return names;
}

bool IsCheckpointFile(const std::string& name) {
  if (absl::StartsWith(name, std::string(kCheckpointIndex))) return true;  // the index, or a partial one
  return absl::StartsWith(name, "stage") &&
         (absl::EndsWith(name, ".safetensors") || absl::EndsWith(name, ".slice") ||
          absl::EndsWith(name, std::string(kPartial)));
}

// Copies the content of a file. Returns 0, or the errno of what failed.
int CopyFile(const std::string& from, const std::string& to) {
  const int in = OpenRunFile(from, O_RDONLY | O_NONBLOCK);
  if (in < 0) return errno;
  const absl::Cleanup close_in = [in] { close(in); };
  unlink(to.c_str());  // it may be a link to the same file
  const int out = OpenRunFile(to, O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (out < 0) return errno;
  constexpr size_t kMost = 1 << 30;  // bytes of one call
  ssize_t copied = 0;
  do {
    copied = sendfile(out, in, nullptr, kMost);
  } while (copied > 0);
  const int error = copied < 0 ? errno : 0;
  return close(out) != 0 && error == 0 ? errno : error;
}

void RemoveFiles(const fs::path& folder) {
  std::error_code ignored;
  for (const std::string& name : NamesIn(folder)) {
    if (IsCheckpointFile(name)) fs::remove(folder / name, ignored);
  }
  fs::remove(folder, ignored);
}

// Removes the files of a checkpoint, and the folder if that leaves nothing in it.
void RemoveCheckpoint(const fs::path& folder) {
  if (!IsFolder(folder)) return;
  // Without the index the rest is no checkpoint any more.
  std::error_code ignored;
  fs::remove(folder / std::string(kCheckpointIndex), ignored);
  if (IsFolder(folder / "state")) RemoveFiles(folder / "state");
  RemoveFiles(folder);
}

absl::Status CheckName(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::exists(status) || fs::is_directory(status)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, fs::is_symlink(status) ? " is a symbolic link" : " is not a folder",
                   ", and a checkpoint is to get that name; remove it, or give another folder with --out"));
}

absl::Status Rename(const std::string& from, const std::string& to) {
  return rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus() : Refused("rename to", to, errno);
}

// Returns the name under which a checkpoint, or a partial one, is removed. Nobody completes such a folder.
std::string RemovedName(const std::string& path) {
  return absl::StrCat(std::string(absl::StripSuffix(path, kPartial)), std::string(kRemoved),
                      std::string(kPartial));
}

// Gives the complete folder `made` its name. A folder that had the name is removed then. If that fails, both
// stay, under whichever names: the next sweep completes or removes what has none.
absl::Status Install(const std::string& output, const std::string& made, const std::string& name) {
  if (!IsFolder(name)) {
    if (absl::Status s = Rename(made, name); !s.ok()) return s;
    return SyncToDisk(output);
  }
  if (renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, name.c_str(), RENAME_EXCHANGE) == 0) {
    if (absl::Status s = SyncToDisk(output); !s.ok()) return s;
    RemoveCheckpoint(made);
    return absl::OkStatus();
  }
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
    return Refused("change names with", name, errno);
  // The file system cannot: the old one steps aside, whole. Should the process end in between, the next run's
  // sweep completes the new one.
  const std::string aside = RemovedName(made);
  if (absl::Status s = Rename(name, aside); !s.ok()) return s;
  if (absl::Status s = Rename(made, name); !s.ok()) {
    Rename(aside, name).IgnoreError();  // where this fails too, the sweep finds the new one
    return s;
  }
  if (absl::Status s = SyncToDisk(output); !s.ok()) return s;
  RemoveCheckpoint(aside);
  return absl::OkStatus();
}

// Returns the time of the next checkpoint of the output: it is later than that of all that are there, even if
// the clock was put back meanwhile.
int64_t NextSealedMs(const std::string& output) {
  int64_t next = 0;
  for (const std::string& name : NamesIn(output)) {
    if (!IsCheckpointName(name)) continue;
    const auto index = CheckpointIndex::Read(absl::StrCat(output, "/", name));
    if (!index.ok() || index->sealed_ms == std::numeric_limits<int64_t>::max()) continue;
    next = std::max(next, index->sealed_ms + 1);
  }
  return next;
}

// Removes periodic checkpoints older than the newest `keep`, except `sealed`, which has just come, and the
// one from which the run resumed: if the run goes wrong, that one is where to begin again.
void Prune(const std::string& output, int keep, const std::string& sealed, const std::string& resumed,
           const std::string& tag) {
  std::vector<std::tuple<int64_t, int, std::string>> periodic;
  for (const std::string& name : NamesIn(output)) {
    if (StepOf(name).value_or(0) < 1 || !IsFolder(fs::path(output) / name)) continue;
    if (absl::StrCat(output, "/", name) == sealed) continue;
    std::error_code error;
    if (!resumed.empty() && fs::equivalent(resumed, fs::path(output) / name, error)) continue;
    const auto index = CheckpointIndex::Read(absl::StrCat(output, "/", name));
    if (index.ok() && index->identity.periodic) periodic.push_back({index->sealed_ms, index->version, name});
  }
  std::sort(periodic.rbegin(), periodic.rend());
  for (size_t i = static_cast<size_t>(std::max(keep, 1) - 1); i < periodic.size(); ++i) {
    const std::string& name = std::get<2>(periodic[i]);
    const std::string gone = RemovedName(absl::StrCat(output, "/", name, ".", tag));
    if (Rename(absl::StrCat(output, "/", name), gone).ok()) RemoveCheckpoint(gone);
  }
}

}  // namespace

CheckpointFolders::CheckpointFolders(std::string output, const ScheduledRun& run, std::string run_id,
                                     uint64_t attempt)
    : output_(std::move(output)),
      run_(run),
      identity_{std::move(run_id), attempt},
      tag_(absl::StrCat(identity_.run_id.empty() ? "run" : identity_.run_id.substr(0, 8), "-", attempt)) {}

std::string CheckpointFolders::Final(int64_t step) const {
  if (step == run_.spec.end_step()) return absl::StrCat(output_, "/", std::string(kEnd));
  return absl::StrCat(output_, "/", std::string(kBefore), step);
}

std::string CheckpointFolders::Partial(int64_t step) const {
  return absl::StrCat(Final(step), ".", tag_, std::string(kPartial));
}

absl::Status CheckpointFolders::Prepare() const {
  SweepPartialCheckpoints(output_, tag_);
  return CheckCheckpointNames(output_);
}

absl::Status CheckpointFolders::Seal(int64_t step, int keep, bool validate) const {
  const std::string partial = Partial(step);
  CheckpointIdentity identity = identity_;
  identity.periodic = step > 0 && step < run_.spec.end_step();
  absl::Status status = step == 0 ? absl::OkStatus() : JoinAllSlices(partial, run_, step);
  if (status.ok()) status = WriteCheckpointIndex(partial, run_.spec, identity, NextSealedMs(output_));
  if (status.ok() && validate) KeepAside(step, partial).IgnoreError();
  if (status.ok()) status = SyncToDisk(partial);
  if (status.ok()) status = CheckName(Final(step));
  if (status.ok()) {
    status = Install(output_, partial, Final(step));
  } else {
    Drop(step);
  }
  if (!status.ok()) {
    if (validate) DropKeptAside(step);
    return status;
  }
  if (identity.periodic) Prune(output_, keep, Final(step), run_.spec.resume.checkpoint, tag_);
  return absl::OkStatus();
}

void CheckpointFolders::Drop(int64_t step) const { RemoveCheckpoint(Partial(step)); }

std::string CheckpointFolders::KeptAside(int64_t step) const {
  return absl::StrCat(Final(step), ".", tag_, std::string(kValidation), std::string(kPartial));
}

absl::Status CheckpointFolders::KeepAside(int64_t step) const {
  const std::string partial = Partial(step);
  absl::Status status = JoinAllSlices(partial, run_, step);
  if (IsFolder(partial + "/state")) RemoveFiles(partial + "/state");
  if (status.ok()) status = WriteCheckpointIndex(partial, run_.spec, identity_);
  if (status.ok()) status = Rename(partial, KeptAside(step));
  if (!status.ok()) Drop(step);
  return status;
}

absl::Status CheckpointFolders::KeepAside(int64_t step, const std::string& checkpoint) const {
  const std::string aside = KeptAside(step);
  if (absl::Status s = MakeCheckpointFolder(aside); !s.ok()) return s;
  for (const std::string& name : NamesIn(checkpoint)) {
    if (!absl::StartsWith(name, "stage") || !absl::EndsWith(name, ".safetensors")) continue;
    const fs::path from = fs::path(checkpoint) / name, to = fs::path(aside) / name;
    std::error_code error;
    fs::create_hard_link(from, to, error);  // no other writes into the file
    const int failed = error ? CopyFile(from.string(), to.string()) : 0;
    if (failed != 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot keep ", from.string(), " as ", to.string(), ": ", RunFileError(failed)));
    }
  }
  return WriteCheckpointIndex(aside, run_.spec, identity_);
}

void CheckpointFolders::DropKeptAside(int64_t step) const { RemoveCheckpoint(KeptAside(step)); }

void CheckpointFolders::DropKeptAside() const {
  const std::string end = absl::StrCat(".", tag_, std::string(kValidation), std::string(kPartial));
  for (const std::string& name : NamesIn(output_)) {
    if (absl::EndsWith(name, end)) RemoveCheckpoint(fs::path(output_) / name);
  }
}

void SweepPartialCheckpoints(const std::string& output, const std::string& tag) {
  std::vector<std::string> remains;
  for (const std::string& entry : NamesIn(output)) {
    absl::string_view name = entry;
    const std::string path = absl::StrCat(output, "/", entry);
    if (!absl::ConsumeSuffix(&name, kPartial) || !IsFolder(path)) continue;
    const bool removed = absl::ConsumeSuffix(&name, kValidation) || absl::ConsumeSuffix(&name, kRemoved);
    if (!tag.empty() && absl::EndsWith(name, absl::StrCat(".", tag))) continue;
    const size_t dot = name.rfind('.');
    if (dot == absl::string_view::npos || !IsCheckpointName(name.substr(0, dot))) continue;
    const std::string whole = absl::StrCat(output, "/", std::string(name.substr(0, dot)));
    std::error_code error;
    const bool free = !fs::exists(fs::symlink_status(whole, error));
    if (removed) {
      remains.push_back(path);
    } else if (free && CheckpointIndex::Read(path).ok()) {
      // Where that fails, the folder is as good as before.
      Rename(path, whole).IgnoreError();
    } else if (const std::string gone = RemovedName(path); Rename(path, gone).ok()) {
      // Its process may live and be about to seal it: under this name it seals nothing.
      remains.push_back(gone);
    }
  }
  // What has another's former name is removed only when the names are on the disk.
  if (remains.empty() || !SyncToDisk(output).ok()) return;
  for (const std::string& path : remains) RemoveCheckpoint(path);
}

absl::Status CheckCheckpointNames(const std::string& output) {
  for (const std::string& name : NamesIn(output)) {
    if (!IsCheckpointName(name)) continue;
    if (absl::Status s = CheckName(absl::StrCat(output, "/", name)); !s.ok()) return s;
  }
  return absl::OkStatus();
}

std::optional<NamedCheckpoint> ReadCheckpointName(const std::string& folder) {
  const std::string last = (fs::path(folder) / "").lexically_normal().parent_path().filename().string();
  absl::string_view name = last;
  NamedCheckpoint named{folder, std::nullopt, absl::ConsumeSuffix(&name, kPartial)};
  // A removed checkpoint has no name any more, and weights to be validated never had one.
  if (named.partial && (absl::EndsWith(name, kRemoved) || absl::EndsWith(name, kValidation)))
    return std::nullopt;
  if (named.partial) name = name.substr(0, name.find('.'));
  if (!IsCheckpointName(name)) return std::nullopt;
  named.step = StepOf(name);
  return named;
}

std::vector<NamedCheckpoint> CheckpointsIn(const std::string& output) {
  std::vector<std::string> names = NamesIn(output);
  std::sort(names.begin(), names.end());
  std::vector<NamedCheckpoint> checkpoints;
  for (const std::string& name : names) {
    const fs::path path = fs::path(output) / name;
    std::optional<NamedCheckpoint> named = ReadCheckpointName(path.string());
    if (named.has_value() && IsFolder(path)) checkpoints.push_back(*std::move(named));
  }
  return checkpoints;
}

absl::StatusOr<std::string> FindCheckpoint(const std::string& folder, int least) {
  std::error_code error;
  if (fs::exists(fs::path(folder) / std::string(kCheckpointIndex), error)) return folder;
  std::optional<std::tuple<int64_t, int, std::string>> newest;
  for (const std::string& name : NamesIn(folder)) {
    if (!IsCheckpointName(name)) continue;
    const std::string path = absl::StrCat(folder, "/", name);
    const auto index = CheckpointIndex::Read(path);
    if (!index.ok() || index->version < least) continue;
    newest = std::max(newest, std::optional(std::tuple(index->sealed_ms, index->version, path)));
  }
  if (newest.has_value()) return std::get<2>(*newest);
  if (absl::Status readable = CheckReadable(folder); !readable.ok()) return readable;
  return absl::NotFoundError(absl::StrFormat(
      "%s is no whole checkpoint and holds none: there is no %s/%s, which a training writes last, and no "
      "complete folder checkpoint or checkpoint-N",
      folder, folder, std::string(kCheckpointIndex)));
}

}  // namespace weft
