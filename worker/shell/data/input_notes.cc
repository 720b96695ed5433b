#include "worker/shell/data/input_notes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/durable_file.h"
#include "base/fnv1a.h"
#include "base/run_files.h"
#include "nlohmann/json.hpp"
#include "worker/shell/data/data_check.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kNotes[] = "/inputs.jsonl";
// The sample of a file: up to so many blocks, all of it where it is no longer.
constexpr int64_t kSampleBlocks = 16, kBlockBytes = 64 << 10;

struct InputNote {
  int64_t bytes = 0;
  std::string hash;
  friend bool operator==(const InputNote&, const InputNote&) = default;
};
using NotesByPath = std::map<std::string, InputNote>;

// Adds the path, or, of a folder, its files that hold samples or tensors.
void AddInputFiles(const std::string& path, std::vector<std::string>* files) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return files->push_back(path);
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    const std::string name = entry.path().string();
    if (absl::EndsWith(name, ".bin") || absl::EndsWith(name, ".safetensors")) files->push_back(name);
  }
}

bool ReadBlock(int fd, int64_t offset, std::string* block) {
  size_t done = 0;
  while (done < block->size()) {
    const ssize_t got =
        pread(fd, block->data() + done, block->size() - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

// Returns nothing for what is no regular file that can be read.
std::optional<InputNote> NoteOpenFile(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  const int64_t bytes = info.st_size;
  const int64_t blocks = std::min(kSampleBlocks, (bytes + kBlockBytes - 1) / kBlockBytes);
  const int64_t stride =
      bytes > kSampleBlocks * kBlockBytes ? (bytes - kBlockBytes) / (kSampleBlocks - 1) : kBlockBytes;
  Fnv1a hash;
  for (int64_t i = 0; i < blocks; ++i) {
    // The last block ends with the file.
    const int64_t offset =
        i + 1 < blocks ? i * stride : std::max<int64_t>(i * kBlockBytes, bytes - kBlockBytes);
    std::string block(static_cast<size_t>(std::min(kBlockBytes, bytes - offset)), '\0');
    if (!ReadBlock(fd, offset, &block)) return std::nullopt;
    hash.Add(block);
  }
  return InputNote{bytes, absl::StrCat(absl::Hex(hash.hash(), absl::kZeroPad16))};
}

std::optional<InputNote> NoteOf(const std::string& path) {
  // O_NONBLOCK: opening a pipe would wait for its other end.
  const int fd = OpenRunFile(path, O_RDONLY | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  std::optional<InputNote> note = NoteOpenFile(fd);
  close(fd);
  return note;
}

// Returns the first note of the run about each file. A line that is not whole is none.
NotesByPath ReadInputNotes(const std::string& path, const std::string& run_id) {
  NotesByPath notes;
  std::ifstream file = RunFileToRead(path);
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || json.value("run_id", Json()) != run_id) continue;
    const Json bytes = json.value("bytes", Json()), name = json.value("path", Json()),
               hash = json.value("hash", Json());
    if (name.is_string() && bytes.is_number_integer() && hash.is_string())
      notes.try_emplace(name.get<std::string>(), InputNote{bytes.get<int64_t>(), hash.get<std::string>()});
  }
  return notes;
}

absl::Status AddInputNotes(const std::string& path, const std::string& lines) {
  const int fd = OpenRunFile(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
  const bool written = fd >= 0 && WriteAll(fd, lines.data(), lines.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  if (written) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot note in ", path, " which files the run reads: ", RunFileError(error)));
}

absl::Status CompareInput(const std::string& path, const InputNote& noted, const InputNote& found) {
  if (noted == found) return absl::OkStatus();
  const std::string differs =
      noted.bytes == found.bytes ? absl::StrCat("its ", found.bytes, " bytes are others")
                                 : absl::StrCat("it has ", found.bytes, " bytes, and that had ", noted.bytes);
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is not the file with which the run began: ", differs,
                   "; put that file back and resume the run from a checkpoint, or begin again. Give new "
                   "data a new name"));
}

}  // namespace

std::vector<std::string> InputFiles(const RunSpec& run) {
  std::vector<std::string> paths = DataPaths(run);
  if (run.validate.any()) {
    const std::vector<std::string> held_out = DataPaths(ValidationRun(run));
    paths.insert(paths.end(), held_out.begin(), held_out.end());
  }
  if (!run.weights.empty() && run.first_step() == 0) paths.push_back(run.weights);
  std::vector<std::string> files;
  for (const std::string& path : paths) AddInputFiles(path, &files);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

absl::Status CheckInputs(const std::string& output, const std::string& run_id,
                         const std::vector<std::string>& files) {
  const std::string path = output + kNotes;
  NotesByPath found;
  for (const std::string& file : files) {
    if (std::optional<InputNote> note = NoteOf(file); note.has_value()) found[file] = *std::move(note);
  }
  NotesByPath noted = ReadInputNotes(path, run_id);
  std::string lines;
  for (const auto& [file, note] : found) {
    if (noted.count(file) > 0) continue;
    const Json line = {{"run_id", run_id}, {"path", file}, {"bytes", note.bytes}, {"hash", note.hash}};
    absl::StrAppend(&lines, line.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
  }
  if (!lines.empty()) {
    if (absl::Status added = AddInputNotes(path, lines); !added.ok()) return added;
    noted = ReadInputNotes(path, run_id);  // another process may have been first
  }
  for (const auto& [file, note] : found) {
    const auto before = noted.find(file);
    if (before == noted.end()) continue;
    if (absl::Status same = CompareInput(file, before->second, note); !same.ok()) return same;
  }
  return absl::OkStatus();
}

}  // namespace weft
