#include "client/diff/folder_diff.h"

#include <bit>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/run_files.h"
#include "nlohmann/json.hpp"
#include "worker/shell/checkpoint/checkpoint_index.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

void ReadLosses(const std::string& path, RunTraces* traces) {
  std::ifstream lines(path);
  for (std::string text; std::getline(lines, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object() || !line.contains("loss") || !line.contains("step")) continue;
    if (!line["step"].is_number_integer()) continue;
    const auto loss = line["loss"].is_number() ? std::optional(line["loss"].get<double>()) : std::nullopt;
    traces->losses[line["step"].get<int>()] = loss;
  }
}

void ReadCheckpoints(const std::string& folder, RunTraces* traces) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!absl::StartsWith(name, "checkpoint") || absl::EndsWith(name, ".partial")) continue;
    const auto index = CheckpointIndex::Read(entry.path().string());
    if (!index.ok()) continue;
    traces->training = index->training;
    for (const auto& [file, sums] : index->files)
      traces->checkpoints[index->version][file] = absl::StrCat(sums.crc32, " ", sums.bytes);
  }
}

bool SameLoss(std::optional<double> a, std::optional<double> b) {
  return a.has_value() == b.has_value() &&
         (!a.has_value() || std::bit_cast<uint64_t>(*a) == std::bit_cast<uint64_t>(*b));
}

std::vector<std::string> DifferingFiles(const std::map<std::string, std::string>& a,
                                        const std::map<std::string, std::string>& b) {
  std::vector<std::string> files;
  for (const auto& [file, sum] : a) {
    const auto other = b.find(file);
    if (other == b.end() || other->second != sum) files.push_back(file);
  }
  return files;
}

std::string WhatIsEqual(const FolderDiff& diff) {
  std::vector<std::string> parts;
  if (diff.losses > 0) parts.push_back(absl::StrCat("the losses of ", diff.losses, " steps"));
  if (diff.checkpoints > 0) parts.push_back(absl::StrCat(diff.checkpoints, " checkpoints"));
  return absl::StrJoin(parts, " and ");
}

}  // namespace

absl::StatusOr<RunTraces> ReadTraces(const std::string& folder) {
  RunTraces traces;
  ReadLosses(absl::StrCat(folder, "/steps.jsonl"), &traces);
  ReadCheckpoints(folder, &traces);
  const bool none = traces.losses.empty() && traces.checkpoints.empty();
  if (absl::Status readable = CheckReadable(folder); none && !readable.ok()) return readable;
  if (none)
    return absl::NotFoundError(absl::StrCat(folder, " holds neither steps of a run nor a checkpoint"));
  return traces;
}

FolderDiff DiffTraces(const RunTraces& a, const RunTraces& b) {
  FolderDiff diff;
  for (const auto& [step, loss] : a.losses) {
    const auto other = b.losses.find(step);
    if (other == b.losses.end()) continue;
    ++diff.losses;
    if (!diff.differing_loss.has_value() && !SameLoss(loss, other->second)) diff.differing_loss = step;
  }
  for (const auto& [step, files] : a.checkpoints) {
    const auto other = b.checkpoints.find(step);
    if (other == b.checkpoints.end()) continue;
    ++diff.checkpoints;
    if (diff.differing_checkpoint.has_value()) continue;
    diff.differing_files = DifferingFiles(files, other->second);
    (diff.differing_files.empty() ? diff.equal_checkpoint : diff.differing_checkpoint) = step;
  }
  return diff;
}

std::string FolderDiffText(const FolderDiff& diff, const DiffNames& names) {
  if (diff.equal()) return absl::StrCat("equal: ", WhatIsEqual(diff), "\n");
  std::string text;
  if (diff.differing_checkpoint.has_value()) {
    absl::StrAppend(&text, "The first checkpoint that differs is of step ", *diff.differing_checkpoint, ": ",
                    absl::StrJoin(diff.differing_files, ", "), "\n");
  }
  if (diff.equal_checkpoint.has_value())
    absl::StrAppend(&text, "The checkpoint of step ", *diff.equal_checkpoint, " is equal.\n");
  if (diff.differing_loss.has_value())
    absl::StrAppend(&text, "The first loss that differs is of step ", *diff.differing_loss, ".\n");
  absl::StrAppend(&text,
                  "Losses and checkpoints do not tell which job it was: train both with `--record hashes`");
  if (diff.equal_checkpoint.value_or(0) > 0) absl::StrAppend(&text, ", from that checkpoint on (`--resume`)");
  return absl::StrCat(text, ", then `weft diff ", names.a, " ", names.b, "` names it.\n");
}

nlohmann::ordered_json FolderDiffJson(const FolderDiff& diff, const DiffNames& names) {
  nlohmann::ordered_json json = {{"equal", diff.equal()}, {"a", names.a},
                                 {"b", names.b},          {"hashes", false},
                                 {"losses", diff.losses}, {"checkpoints", diff.checkpoints}};
  if (diff.differing_loss.has_value()) json["differing_loss"] = *diff.differing_loss;
  if (diff.equal_checkpoint.has_value()) json["equal_checkpoint"] = *diff.equal_checkpoint;
  if (diff.differing_checkpoint.has_value()) {
    json["differing_checkpoint"] = *diff.differing_checkpoint;
    json["differing_files"] = diff.differing_files;
  }
  return json;
}

}  // namespace weft
