#include "coordinator/record/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/durable_file.h"
#include "base/host_name.h"
#include "base/run_files.h"
#include "coordinator/record/passing_failure.h"
#include "coordinator/record/run_entries.h"
#include "coordinator/record/run_placing.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kLock[] = ".weft.lock";
constexpr off_t kReserve = 256 << 10;
constexpr size_t kMaxReasonLength = 300;
constexpr std::streamoff kTail = 64 << 10;

std::string Text(const fs::path& path) { return path.string(); }

// Makes the files of a run durable that were appended to. The others are, since they were written whole.
absl::Status SyncLogs(const fs::path& folder) {
  for (const char* name : {"steps.jsonl", "hashes.jsonl", "replans.jsonl"}) {
    if (!EntryExists(folder / name)) continue;
    if (absl::Status synced = SyncToDisk(Text(folder / name)); !synced.ok()) return synced;
  }
  return absl::OkStatus();
}

// Returns the content of a small file; "" for one that cannot be read.
std::string ReadText(const fs::path& path) {
  std::stringstream text;
  text << RunFileToRead(Text(path)).rdbuf();
  return text.str();
}

Json ReadJson(const fs::path& path) {
  std::ifstream file = RunFileToRead(Text(path));
  Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

template <typename Value>
Value At(const Json& json, const char* key, Value otherwise) {
  const auto found = json.find(key);
  if (found == json.end()) return otherwise;
  if constexpr (std::is_same_v<Value, std::string>) {
    return found->is_string() ? found->template get<std::string>() : otherwise;
  } else {
    return found->is_number_integer() ? found->template get<Value>() : otherwise;
  }
}

// Returns the number of steps up to the last line of steps.jsonl; 0 if there is none.
int64_t StepsInLog(const fs::path& path) {
  std::ifstream file = RunFileToRead(Text(path));
  if (!file.seekg(0, std::ios::end)) return 0;
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTail));
  int64_t steps = 0;
  for (std::string line; std::getline(file, line);) {
    const Json step = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (step.is_object() && !step.contains("validation_loss"))
      steps = std::max(steps, At<int64_t>(step, "step", -1) + 1);
  }
  return steps;
}

// Returns the number of updates that made a checkpoint's weights; -1 for one that is not whole.
int64_t CheckpointStep(const fs::path& folder) {
  const Json index = ReadJson(folder / kIndexOfCheckpoint);
  const auto metadata = index.find("metadata");
  if (metadata == index.end() || !metadata->is_object()) return -1;
  int64_t step = -1;
  const std::string text = At<std::string>(*metadata, "version", "");
  if (!absl::SimpleAtoi(text, &step)) step = At<int64_t>(*metadata, "version", -1);
  return step;
}

// Returns true if the folder has a whole checkpoint beyond the initial weights.
bool HasCheckpoint(const fs::path& folder) {
  const std::vector<std::string> names = EntriesIn(folder);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    const int64_t step = StepOfName(name, /*partial=*/false);
    return step != -2 && step != 0 && CheckpointStep(folder / name) > 0;
  });
}

// Returns true if the folder holds anything that took work to make.
bool HasWork(const fs::path& folder) {
  const std::vector<std::string> names = ResultsIn(folder);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    std::error_code error;
    if (name == "steps.jsonl") return fs::file_size(folder / name, error) > 0 && !error;
    const bool notes = name == "run.json" || name == "inputs.jsonl" || absl::StartsWith(name, "log.");
    if (notes || absl::EndsWith(name, kPartial)) return false;
    const int64_t step = StepOfName(name, /*partial=*/false);
    // A folder without an index counts too: its owner may still want the files.
    return step == -2 || (step != 0 && !fs::is_empty(folder / name, error));
  });
}

// Returns true if the run of the folder made all steps of its run file, so that none is left to go on with.
bool MadeAllSteps(const fs::path& folder) {
  const Json run = ReadJson(folder / "run.json"), summary = ReadJson(folder / "summary.json");
  if (At<std::string>(run, "state", "") != "finished") return false;
  const Json::json_pointer all("/run/train/steps");
  return summary.is_object() && summary.contains(all) && summary[all].is_number_integer() &&
         At<int64_t>(run, "end_step", -1) >= summary[all].get<int64_t>();
}

std::string Now() { return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::Now(), absl::LocalTimeZone()); }

std::string TimeOfFile(const fs::path& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return "";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::TimeFromTimespec(info.st_mtim), absl::LocalTimeZone());
}

std::string CheckpointsText(const fs::path& folder) {
  if (!HasCheckpoint(folder)) return "without a checkpoint";
  std::vector<std::string> found;
  for (const std::string& name : EntriesIn(folder)) {
    const int64_t of_name = StepOfName(name, /*partial=*/false);
    if (of_name == -2) continue;
    const int64_t step = CheckpointStep(folder / name);
    if (step < 0) continue;
    found.push_back(step == of_name ? name : absl::StrCat(name, " (step ", step, ")"));
  }
  return absl::StrCat("with ", absl::StrJoin(found, ", "));
}

// Returns true if a folder with this run.json holds the run.
bool IsOfRun(const Json& run_json, const RunRecord& record) {
  return At<std::string>(run_json, "run_id", "") == record.run_id;
}

// Refuses a folder that another process owns; `lock` is its lock file.
absl::Status OwnedByAnother(int lock, const std::string& shown) {
  char holder[200] = "";
  const ssize_t n = pread(lock, holder, sizeof holder - 1, 0);
  // The file has one line; behind it lies the room for the summary.
  absl::string_view text(holder, n > 0 ? static_cast<size_t>(n) : 0);
  text = text.substr(0, text.find_first_of(absl::string_view("\n\0", 2)));
  return absl::ResourceExhaustedError(absl::StrCat(
      "another run is writing in ", shown, text.empty() ? "" : " (", text, text.empty() ? "" : ")",
      "; wait for its end or stop it, or give another folder with --out"));
}

absl::Status CheckNotOwned(const std::string& path, const std::string& shown) {
  const int file = OpenRunFile(path + "/" + kLock, O_RDONLY | O_NOFOLLOW);
  if (file < 0) return absl::OkStatus();
  const bool owned = flock(file, LOCK_SH | LOCK_NB) != 0;
  absl::Status status = owned ? OwnedByAnother(file, shown) : absl::OkStatus();
  close(file);
  return status;
}

// Refuses a folder within one that a run makes and removes, such as a checkpoint of that run.
absl::Status CheckOutsideOfRuns(const std::string& path, const std::string& shown) {
  std::error_code error;
  fs::path at = fs::weakly_canonical(fs::absolute(path, error), error);
  if (!at.has_filename()) at = at.parent_path();
  for (; at.has_relative_path(); at = at.parent_path()) {
    if (!IsFolderOfRun(Text(at.filename()))) continue;
    const std::string name = ReadRecord(Text(at.parent_path())).name;
    if (name.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(shown, " is within ", Text(at), ", which the run ", name,
                     " makes and removes; give a folder outside of it with --out"));
  }
  return absl::OkStatus();
}

// Refuses a folder that holds the work of a former run if `former` is kRefuse, and one that holds that of two
// if the run goes on from a checkpoint of the one that was to be replaced. The folder's lock is ours or free.
absl::Status CheckWork(const std::string& path, const std::string& shown, FormerWork former) {
  if (absl::Status outside = CheckOutsideOfRuns(path, shown); !outside.ok()) return outside;
  const std::string replacement = path + "/" + kReplacement;
  if (former == FormerWork::kContinueNamed && HasWork(path) && HasCheckpoint(replacement)) {
    return absl::InvalidArgumentError(absl::StrCat(
        shown, " holds ", DescribeWork(path), ", and in ", kReplacement, " ", DescribeWork(replacement),
        ", which was to replace that and was killed; `weft train --resume ", shown,
        "` goes on from the replacement, and the other is removed; to go on from the other, move ", shown,
        "/", kReplacement, " to another place first"));
  }
  const std::string work = former == FormerWork::kRefuse ? DescribeWork(path) : "";
  if (work.empty()) return absl::OkStatus();
  const std::string other = HasCheckpoint(replacement)
                                ? absl::StrCat(", and in ", kReplacement, " ", DescribeWork(replacement))
                                : "";
  const bool whole = HasCheckpoint(path) || !other.empty();
  const char* const more = other.empty() && MadeAllSteps(path) ? " if its file has more steps" : "";
  return absl::InvalidArgumentError(
      absl::StrCat(shown, " holds ", work, other, "; ",
                   whole ? absl::StrCat("--resume ", shown, " goes on from it", more, ", ") : "",
                   "--overwrite replaces it, --out DIR takes another folder"));
}

}  // namespace

FormerWork FormerWorkFor(const std::string& resume, const std::string& folder, bool overwrite) {
  if (!resume.empty()) {
    std::error_code error;
    const std::string out = fs::weakly_canonical(folder, error).string() + "/";
    const std::string from = (fs::weakly_canonical(fs::absolute(resume, error), error) / "").string();
    if (from == out || absl::StartsWith(from, absl::StrCat(out, kReplacement, "/")))
      return FormerWork::kContinue;
    if (absl::StartsWith(from, out)) return FormerWork::kContinueNamed;
  }
  return overwrite ? FormerWork::kReplace : FormerWork::kRefuse;
}

RunRecord ReadRecord(const std::string& folder) {
  const Json json = ReadJson(fs::path(folder) / "run.json");
  RunRecord record;
  record.name = At<std::string>(json, "name", "");
  record.file = At<std::string>(json, "file", "");
  record.run_id = At<std::string>(json, "run_id", "");
  record.state = At<std::string>(json, "state", record.state);
  record.reason = At<std::string>(json, "reason", "");
  record.first_step = At<int>(json, "first_step", 0);
  record.end_step = At<int>(json, "end_step", 0);
  record.steps_done = At<int>(json, "steps_done", 0);
  if (json.contains("run")) record.spec = json["run"].dump();
  return record;
}

std::string PlaceOfResults(const std::string& path, const std::string& live) {
  return EntryExists(live) ? live : path;
}

std::string DescribeWork(const std::string& folder) {
  if (!HasWork(folder)) return "";
  const fs::path path(folder);
  const Json run = ReadJson(path / "run.json"), summary = ReadJson(path / "summary.json");
  const std::string name = At<std::string>(run, "name", At<std::string>(summary, "name", ""));
  std::string state = At<std::string>(run, "state", summary.empty() ? "" : "finished");
  std::string when = At<std::string>(run, "ended", "");
  if (when.empty()) when = TimeOfFile(path / (summary.empty() ? "steps.jsonl" : "summary.json"));
  // The run's lock is free, so it has ended.
  if (state == "running" || state.empty()) state = "ended without a word (killed?), last heard of";
  const int64_t steps = std::max(StepsInLog(path / "steps.jsonl"), At<int64_t>(run, "steps_done", 0));
  const int64_t all = At<int64_t>(run, "end_step", 0);
  std::string out = name.empty() ? "a run" : absl::StrCat("the run ", name);
  absl::StrAppend(&out, ", ", state, when.empty() ? "" : " ", when, " after ", steps,
                  all > 0 ? absl::StrCat(" of ", all) : "", " steps, ", CheckpointsText(path));
  return out;
}

bool OutputInUse(const std::string& folder) { return !CheckNotOwned(folder, folder).ok(); }

absl::Status OutputFolder::Lock() {
  const std::string file = path_ + "/" + kLock;
  while (true) {
    lock_ = OpenRunFile(file, O_RDWR | O_CREAT | O_NOFOLLOW, 0644);
    if (lock_ < 0) {
      const int error = errno;
      const std::string what = absl::StrCat("cannot write in the folder ", shown_, ": ", RunFileError(error));
      return MayPass(error) ? absl::UnavailableError(what) : absl::InvalidArgumentError(what);
    }
    if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      absl::Status owned = OwnedByAnother(lock_, shown_);
      close(lock_);
      lock_ = -1;
      return owned;
    }
    // The owner before may have removed the file between our opening and locking it.
    if (StillThere().ok()) break;
    close(lock_);
  }
  const std::string holder = absl::StrCat("pid ", getpid(), " on ", HostName(), ", since ", Now(), "\n");
  if (ftruncate(lock_, 0) != 0 || pwrite(lock_, holder.data(), holder.size(), 0) < 0) {
    // The lock holds all the same; only its holder's name is lost.
  }
  return absl::OkStatus();
}

absl::Status OutputFolder::CheckFree(const std::string& path, const std::string& shown, FormerWork former) {
  // This check comes first: the results so far of a living run would look like a killed one's.
  if (absl::Status owned = CheckNotOwned(path, shown); !owned.ok()) return owned;
  return CheckWork(path, shown, former);
}

absl::StatusOr<std::unique_ptr<OutputFolder>> OutputFolder::Open(const std::string& path,
                                                                 const std::string& shown,
                                                                 FormerWork former) {
  std::unique_ptr<OutputFolder> folder(new OutputFolder(path, shown));
  auto made = MakeFolders(path);
  if (!made.ok())
    return absl::InvalidArgumentError(absl::StrCat(made.status().message(), "; give another with --out"));
  folder->made_ = *std::move(made);
  if (absl::Status locked = folder->Lock(); !locked.ok()) {
    if (absl::IsResourceExhausted(locked)) return locked;
    return absl::InvalidArgumentError(absl::StrCat(locked.message(), "; give another with --out"));
  }
  if (absl::Status placed = CompletePlacing(path); !placed.ok())
    return absl::InvalidArgumentError(absl::StrCat(placed.message(), "; give another folder with --out"));
  folder->live_ = path;
  folder->has_work_ = HasWork(path);
  if (absl::Status free = CheckWork(path, shown, former); !free.ok()) return free;
  if (folder->has_work_ && former == FormerWork::kReplace) folder->live_ = path + "/" + kReplacement;
  folder->former_ = former;
  return folder;
}

absl::StatusOr<std::unique_ptr<OutputFolder>> OutputFolder::Reopen(const std::string& path,
                                                                   const std::string& live,
                                                                   const RunRecord& record, bool takes_over) {
  if (!EntryExists(path))
    return absl::NotFoundError(absl::StrCat("its output folder ", path, " was removed meanwhile"));
  std::unique_ptr<OutputFolder> folder(new OutputFolder(path, path));
  const auto file = [&] { return fs::path(PlaceOfResults(path, live)) / "run.json"; };
  const auto run_json = [&] { return ReadJson(file()); };
  if (takes_over && IsOfRun(run_json(), record)) unlink((path + "/" + kLock).c_str());
  if (absl::Status locked = folder->Lock(); !locked.ok()) return locked;
  folder->begun_ = true;
  if (absl::Status placed = CompletePlacing(path); !placed.ok()) return placed;
  folder->live_ = PlaceOfResults(path, live);
  if (absl::Status readable = CheckNoPassingFailure(file().string()); !readable.ok()) return readable;
  const Json before = run_json();
  if (!IsOfRun(before, record)) {
    return absl::FailedPreconditionError(
        absl::StrCat("its output folder ", path, " does not hold it any more"));
  }
  if (At<std::string>(before, "state", "") != "running")
    return absl::AlreadyExistsError(absl::StrCat("its results are in ", path));
  folder->has_work_ = HasWork(path);
  folder->former_ = FormerWork::kContinueNamed;
  folder->run_id_ = record.run_id;
  folder->started_ = At<std::string>(before, "started", Now());
  // The runs of a long queue are as they were, and a write to the disk for each would take minutes.
  if (At<int64_t>(before, "steps_done", -1) == record.steps_done) return folder;
  folder->WriteRecord(record).IgnoreError();  // a note, which the run's end writes again
  return folder;
}

OutputFolder::~OutputFolder() {
  if (lock_ < 0) return;
  if (StillThere().ok()) unlink((path_ + "/" + kLock).c_str());
  if (!begun_) {
    for (auto made = made_.rbegin(); made != made_.rend(); ++made) rmdir(made->c_str());
  }
  close(lock_);
}

std::string OutputFolder::KilledReplacement() const {
  const std::string replacement = path_ + "/" + kReplacement;
  return former_ == FormerWork::kContinue && HasCheckpoint(replacement) ? replacement : "";
}

absl::Status OutputFolder::PlaceReplacement(std::string* checkpoint) {
  const fs::path path(path_);
  std::error_code error;
  const fs::path within = fs::relative(*checkpoint, path / kReplacement, error);
  if (error)
    return absl::InvalidArgumentError(absl::StrCat("cannot find ", *checkpoint, ": ", error.message()));
  absl::Status placed = MoveEntry(path / kReplacement, path / kWhole);
  if (placed.ok()) placed = CompletePlacing(path);
  if (!placed.ok()) return absl::InvalidArgumentError(placed.message());
  *checkpoint = Text(path / within);
  has_work_ = HasWork(path_);
  return absl::OkStatus();
}

absl::Status OutputFolder::Begin(const RunRecord& record) {
  if (has_work_ && replaces()) {
    RemoveRun(live_, path_);
    if (const auto made = MakeFolders(live_); !made.ok())
      return absl::InvalidArgumentError(absl::StrCat(made.status().message(), "; give another with --out"));
  } else if (!has_work_ && !continues()) {
    RemoveRun(path_ + "/" + kReplacement, path_);
    RemoveResults(path_);
  } else if (!HasCheckpoint(path_ + "/" + kReplacement)) {
    RemoveRun(path_ + "/" + kReplacement, path_);
  }
  if (continues()) former_json_ = ReadText(fs::path(live_) / "run.json");
  started_ = Now();
  run_id_ = record.run_id;
  begun_record_ = record;
  if (absl::Status written = WriteRecord(record); !written.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(written.message(), "; give another folder with --out"));
  }
  begun_ = true;
  return absl::OkStatus();
}

absl::Status OutputFolder::TakeBack(RunRecord record) {
  if (!continues()) {
    record.state = "failed";
    return End(record).status();
  }
  if (absl::Status there = StillThere(); !there.ok()) return there;
  const std::string path = live_ + "/run.json";
  if (!former_json_.empty()) return WriteWholeFile(path, former_json_);
  std::error_code ignored;
  fs::remove(path, ignored);
  return absl::OkStatus();
}

absl::Status OutputFolder::TellCoordinator(const std::string& address) {
  coordinator_ = address;
  return WriteRecord(begun_record_);
}

absl::Status OutputFolder::WriteRecord(const RunRecord& record) const {
  Json json = {{"name", record.name}, {"state", record.state}};
  if (!record.reason.empty()) json["reason"] = record.reason.substr(0, kMaxReasonLength);
  if (!record.file.empty()) json["file"] = record.file;
  json["first_step"] = record.first_step;
  json["end_step"] = record.end_step;
  json["steps_done"] = record.steps_done;
  json["started"] = started_;
  if (record.state != "running") {
    json["ended"] = Now();
  } else if (!coordinator_.empty()) {
    json["coordinator"] = coordinator_;
  }
  if (!run_id_.empty()) json["run_id"] = run_id_;
  json["pid"] = getpid();
  json["host"] = HostName();
  if (!record.spec.empty()) json["run"] = Json::parse(record.spec);
  return WriteWholeFile(live_ + "/run.json", json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void OutputFolder::KeepReserve() { posix_fallocate(lock_, 4096, kReserve); }

void OutputFolder::ReleaseReserve() {
  if (lock_ >= 0 && ftruncate(lock_, 4096) != 0) return;  // then it is not there to be used
}

absl::Status OutputFolder::StillThere() const {
  struct stat ours {
  }, named{};
  const std::string file = path_ + "/" + kLock;
  if (fstat(lock_, &ours) == 0 && stat(file.c_str(), &named) == 0 && ours.st_dev == named.st_dev &&
      ours.st_ino == named.st_ino) {
    return absl::OkStatus();
  }
  if (!EntryExists(file)) {
    return absl::UnavailableError(absl::StrCat("the folder ", shown_, " was removed while the run went on"));
  }
  return absl::AbortedError(
      absl::StrCat("the folder ", shown_, " was removed while the run went on, and another run owns it now"));
}

absl::StatusOr<std::string> OutputFolder::End(const RunRecord& record) {
  if (absl::Status there = StillThere(); !there.ok()) return there;
  const bool finished = record.state == "finished";
  const bool keeps = finished || HasCheckpoint(live_);
  if (replaces() && !keeps) {
    RemoveRun(live_, path_);
    return absl::StrCat(shown_, " still holds ", DescribeWork(path_));
  }
  if (!replaces() && !keeps && !has_work_ && !continues() && !HasWork(live_)) {
    RemoveResults(live_);
    begun_ = false;  // a folder that it made goes too
    return "";
  }
  if (absl::Status synced = SyncLogs(live_); !synced.ok()) return synced;
  // If this fails, the folder's state is what the files show.
  WriteRecord(record).IgnoreError();
  if (!replaces()) return "";
  absl::Status placed = MoveEntry(live_, path_ + "/" + kWhole);
  if (placed.ok()) placed = CompletePlacing(path_);
  if (!placed.ok()) return placed;
  live_ = path_;
  return "";
}

}  // namespace weft
