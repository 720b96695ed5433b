#include "worker/shell/checkpoint/checkpoint_index.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "run/json_text.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxBytes = 1 << 30;
// An index of this format does not name it: releases before did not read it.
constexpr int64_t kCheckpointFormat = 1;
constexpr const char* kOwnChecksum = "crc32";  // of the index without this key

std::string PathOf(const std::string& folder) {
  return absl::StrCat(folder, "/", std::string(kCheckpointIndex));
}

absl::Status DamagedIndex(const std::string& folder, absl::string_view what) {
  return absl::DataLossError(absl::StrFormat("%s is damaged: %s; copy the checkpoint again, or use another",
                                             PathOf(folder), std::string(what)));
}

// Refuses an index of a later format: it may lack what this release needs, and is whole nevertheless.
absl::Status CheckIndexFormat(const std::string& folder, const Json& metadata) {
  const int64_t format = metadata.contains("format") && metadata["format"].is_number_integer()
                             ? metadata["format"].get<int64_t>()
                             : kCheckpointFormat;
  if (format <= kCheckpointFormat) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%s has the format %d, and this release reads format %d; a newer release has written "
                      "it: go on with that one",
                      PathOf(folder), format, kCheckpointFormat));
}

// Returns the text of a key, or "".
std::string TextOf(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : std::string();
}

// Returns true if the file is in the folder itself: an index must not lead elsewhere.
bool IsNeighbour(const std::string& file) { return !file.empty() && file.find('/') == std::string::npos; }
bool IsWithin(const std::string& file) {
  return IsNeighbour(file) || (file.rfind("state/", 0) == 0 && IsNeighbour(file.substr(6)));
}

// Returns the checksum of all that the index says, however it is spaced.
std::string ChecksumOfIndex(const Json& index) { return ChecksumOf(index.dump()); }

// Returns false if the index does not have the checksum that it names; takes that out of it.
bool TakeOwnChecksum(Json* index) {
  Json& metadata = (*index)["metadata"];
  if (!metadata.contains(kOwnChecksum)) return true;
  const std::string own = TextOf(metadata, kOwnChecksum);
  metadata.erase(kOwnChecksum);
  return own == ChecksumOfIndex(*index);
}

bool ReadFiles(const Json& metadata, CheckpointIndex* index) {
  if (!metadata.contains("files") || !metadata["files"].is_object()) return false;
  for (const auto& [name, file] : metadata["files"].items()) {
    if (!IsWithin(name) || !file.is_object() || !file.contains("bytes") ||
        !file["bytes"].is_number_unsigned())
      return false;
    index->files[name] = {TextOf(file, "crc32"), file["bytes"].get<uint64_t>(), TextOf(file, "header_crc32")};
  }
  return !index->files.empty();
}

bool ReadState(const Json& metadata, CheckpointIndex* index) {
  if (!metadata.contains("state")) return true;
  if (!metadata["state"].is_array()) return false;
  for (const Json& file : metadata["state"]) {
    if (!file.is_string()) return false;
    index->state.push_back(file.get<std::string>());
    if (index->files.count(index->state.back()) == 0) return false;
  }
  return true;
}

bool ReadWeightMap(const Json& json, CheckpointIndex* index) {
  if (!json.contains("weight_map") || !json["weight_map"].is_object()) return false;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string() || !IsNeighbour(file.get<std::string>())) return false;
    index->weight_map[name] = file.get<std::string>();
    if (index->files.count(index->weight_map[name]) == 0) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<CheckpointIndex> CheckpointIndex::Read(const std::string& folder) {
  const absl::StatusOr<std::string> text = ReadWholeFile(PathOf(folder), kMaxBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrFormat(
        "%s is no whole checkpoint: there is no %s, which a training writes last", folder, PathOf(folder)));
  }
  if (!text.ok()) return text.status();
  absl::StatusOr<Json> parsed = ParseJson(*text);
  if (!parsed.ok()) return DamagedIndex(folder, absl::StrCat("it ", parsed.status().message()));
  Json& json = *parsed;
  if (!json.is_object() || !json.contains("metadata") || !json["metadata"].is_object())
    return DamagedIndex(folder, "it is not the index of a checkpoint");
  if (!TakeOwnChecksum(&json))
    return DamagedIndex(folder, "it is not what was written: its checksum differs");
  const Json& metadata = json["metadata"];
  if (absl::Status known = CheckIndexFormat(folder, metadata); !known.ok()) return known;
  CheckpointIndex index;
  index.run = TextOf(metadata, "run");
  index.training = TextOf(metadata, "training");
  index.identity.run_id = TextOf(metadata, "run_id");
  if (metadata.contains("attempt") && metadata["attempt"].is_number_unsigned())
    index.identity.attempt = metadata["attempt"].get<uint64_t>();
  index.identity.periodic = metadata.contains("periodic") && metadata["periodic"] == true;
  if (metadata.contains("sealed_ms") && metadata["sealed_ms"].is_number_integer())
    index.sealed_ms = metadata["sealed_ms"].get<int64_t>();
  if (!absl::SimpleAtoi(TextOf(metadata, "version"), &index.version) || index.version < 0)
    return DamagedIndex(folder, "it does not say the checkpoint's version");
  if (!ReadFiles(metadata, &index))
    return DamagedIndex(folder, "it does not say the files and their checksums");
  if (!ReadState(metadata, &index) || !ReadWeightMap(json, &index))
    return DamagedIndex(folder, "it names files that are not the checkpoint's");
  return index;
}

absl::Status CheckpointIndex::Write(const std::string& folder) const {
  Json metadata = {{"total_size", total_size},         {"run", run},
                   {"version", absl::StrCat(version)}, {"training", training},
                   {"run_id", identity.run_id},        {"attempt", identity.attempt},
                   {"periodic", identity.periodic},    {"sealed_ms", sealed_ms}};
  for (const auto& [name, file] : files)
    metadata["files"][name] = {{"crc32", file.crc32}, {"bytes", file.bytes}, {"header_crc32", file.header}};
  // A reader that finds the state files named can go on from here.
  if (!state.empty()) metadata["state"] = state;
  Json index = {{"metadata", metadata}, {"weight_map", weight_map}};
  index["metadata"][kOwnChecksum] = ChecksumOfIndex(index);
  return WriteFileAtomically(PathOf(folder), index.dump(1) + "\n");
}

absl::Status CheckpointIndex::Check(const std::string& folder, const std::string& file,
                                    const SafetensorsHeader& header) const {
  const auto named = files.find(file);
  if (named == files.end())
    return DamagedIndex(folder, absl::StrCat("it does not name ", file, ", which belongs to it"));
  const auto own = header.metadata.find("crc32");
  const std::string checksum = own == header.metadata.end() ? "none" : own->second;
  const uint64_t bytes = header.data_begin + header.data_bytes;
  const auto of = header.metadata.find("training");
  const bool same_training = (of == header.metadata.end() ? std::string() : of->second) == training;
  if (same_training && checksum == named->second.crc32 && bytes == named->second.bytes) {
    if (named->second.header.empty() || named->second.header == header.checksum) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrFormat("%s/%s is damaged: its header is not what was written: the checksum differs; use "
                        "another checkpoint",
                        folder, file));
  }
  return absl::DataLossError(absl::StrFormat(
      "the checkpoint %s is a mix: %s/%s has checksum %s and %d bytes, the index names one of %s and %d; the "
      "file is of another run, attempt or step, or damaged; use another checkpoint",
      folder, folder, file, checksum, bytes, named->second.crc32, named->second.bytes));
}

}  // namespace weft
