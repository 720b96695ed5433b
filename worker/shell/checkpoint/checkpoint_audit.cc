#include "worker/shell/checkpoint/checkpoint_audit.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "worker/shell/checkpoint/checkpoint.h"
#include "worker/shell/checkpoint/safetensors.h"
#include "worker/shell/compute/training_state.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kStateFolder = "state/";

bool IsState(const std::string& file) { return absl::StartsWith(file, kStateFolder); }

uint64_t BytesIn(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    const uint64_t size = it->is_regular_file(gone) ? it->file_size(gone) : 0;
    if (!gone) bytes += size;
  }
  return bytes;
}

// Examines one checkpoint whose index was read.
class Examination {
 public:
  explicit Examination(CheckpointAudit* audit) : audit_(*audit), index_(*audit->index) {}

  void Run(AuditDepth depth) {
    for (const auto& [file, named] : index_.files) ReadFile(file, depth);
    CheckStages();
    CheckWeights();
    for (const std::string& file : index_.state) CheckState(file);
  }

 private:
  std::string PathOf(const std::string& file) const { return absl::StrCat(audit_.folder(), "/", file); }

  // Notes what is wrong with a file; the first finding about it counts.
  void Note(const std::string& file, std::string message, bool unreadable = false) {
    for (const CheckpointDamage& damage : audit_.damages) {
      if (damage.file == file) return;
    }
    audit_.damages.push_back({file, std::move(message), unreadable});
  }

  void ReadFile(const std::string& file, AuditDepth depth) {
    absl::StatusOr<SafetensorsHeader> header =
        depth == AuditDepth::kData ? CheckSafetensors(PathOf(file)) : ReadSafetensorsHeader(PathOf(file));
    if (absl::IsNotFound(header.status()))
      return Note(file, absl::StrCat(PathOf(file), " is missing; use another checkpoint"));
    const bool unreadable = absl::IsUnavailable(header.status());
    if (!header.ok()) return Note(file, std::string(header.status().message()), unreadable);
    const absl::Status own = index_.Check(audit_.folder(), file, *header);
    if (!own.ok()) return Note(file, std::string(own.message()));
    const std::string version = absl::StrCat(index_.version);
    if (header->metadata["version"] != version) {
      return Note(file, absl::StrCat(PathOf(file), " is of step ", header->metadata["version"],
                                     ", its checkpoint of step ", version, "; use another checkpoint"));
    }
    headers_[file] = *std::move(header);
  }

  // Checks that there is a file of each stage, with its state if there is any.
  void CheckStages() {
    int stages = 0;
    for (const auto& [file, named] : index_.files) stages += IsState(file) ? 0 : 1;
    for (int stage = 0; stage < stages; ++stage) {
      for (const std::string& file : {StageFileName(stage), StateFileName(stage)}) {
        const bool needed = !IsState(file) || !index_.state.empty();
        if (needed && index_.files.count(file) == 0)
          Note(file, absl::StrCat("the index of ", audit_.folder(), " does not name ", file,
                                  ", which belongs to it; use another checkpoint"));
      }
    }
  }

  // Checks that the files hold the parameters that the index names, and no others.
  void CheckWeights() {
    for (const auto& [parameter, file] : index_.weight_map) {
      const auto header = headers_.find(file);
      if (header == headers_.end() || header->second.Find(parameter) != nullptr) continue;
      Note(file, absl::StrCat(PathOf(file), " does not hold ", parameter,
                              ", which the index names; use another checkpoint"));
    }
    for (const auto& [file, header] : headers_) {
      if (IsState(file)) continue;
      for (const SafetensorsEntry& entry : header.entries) {
        const auto named = index_.weight_map.find(entry.name);
        if (named != index_.weight_map.end() && named->second == file) continue;
        Note(file, absl::StrCat(PathOf(file), " holds ", entry.name,
                                ", which the index does not name; use another checkpoint"));
      }
    }
  }

  // Checks that the file of a state holds all buffers of each of the stage's parameters.
  void CheckState(const std::string& file) {
    const auto state = headers_.find(file);
    const auto weights = headers_.find(std::string(absl::StripPrefix(file, kStateFolder)));
    if (state == headers_.end() || weights == headers_.end()) return;
    const auto buffers = BuffersNamedBy(state->second);
    if (!buffers.ok()) {
      return Note(file, absl::StrCat(PathOf(file), " is damaged: ", buffers.status().message(),
                                     "; use another checkpoint"));
    }
    for (const SafetensorsEntry& parameter : weights->second.entries) {
      for (const std::string& buffer : *buffers) {
        const std::string name = absl::StrCat(parameter.name, ".", buffer);
        const SafetensorsEntry* entry = state->second.Find(name);
        if (entry != nullptr && entry->shape == parameter.shape) continue;
        return Note(file, absl::StrCat(PathOf(file), " does not hold ", name,
                                       " in its size; use another checkpoint"));
      }
    }
    const size_t wanted = weights->second.entries.size() * buffers->size();
    if (state->second.entries.size() != wanted) {
      Note(file, absl::StrFormat("%s holds %d tensors, its stage has %d; use another checkpoint",
                                 PathOf(file), state->second.entries.size(), wanted));
    }
  }

  CheckpointAudit& audit_;
  const CheckpointIndex& index_;
  std::map<std::string, SafetensorsHeader> headers_;  // of the files that are whole so far
};

// Reads the index, without which nothing else can be judged.
CheckpointAudit BeginAudit(const NamedCheckpoint& named) {
  CheckpointAudit audit;
  audit.named = named;
  audit.bytes = BytesIn(named.folder);
  if (named.partial) return audit;
  absl::StatusOr<CheckpointIndex> index = CheckpointIndex::Read(named.folder);
  if (index.ok()) {
    audit.index = *std::move(index);
  } else {
    const absl::Status& why = index.status();
    audit.damages.push_back(
        {std::string(kCheckpointIndex), std::string(why.message()), absl::IsUnavailable(why)});
  }
  return audit;
}

void EndAudit(AuditDepth depth, CheckpointAudit* audit) {
  if (audit->index.has_value()) Examination(audit).Run(depth);
}

// Returns the checkpoints of a path with their indexes, in the order of AuditCheckpoints.
std::vector<CheckpointAudit> BeginAudits(const std::string& folder) {
  std::vector<CheckpointAudit> audits;
  for (const NamedCheckpoint& named : CheckpointsIn(folder)) audits.push_back(BeginAudit(named));
  if (audits.empty()) {
    std::error_code error;
    std::optional<NamedCheckpoint> own = ReadCheckpointName(folder);
    const bool has_index = fs::exists(fs::path(folder) / std::string(kCheckpointIndex), error);
    if (!own.has_value() && has_index) own = NamedCheckpoint{folder, std::nullopt, false};
    if (own.has_value() && fs::is_directory(folder, error)) audits.push_back(BeginAudit(*own));
  }
  const auto age = [](const CheckpointAudit& audit) {
    const bool known = audit.index.has_value();
    return std::tuple(known, known ? audit.index->sealed_ms : 0, audit.step().value_or(-1));
  };
  std::stable_sort(audits.begin(), audits.end(),
                   [&](const CheckpointAudit& a, const CheckpointAudit& b) { return age(a) < age(b); });
  return audits;
}

}  // namespace

bool CheckpointAudit::unreadable() const {
  return !damages.empty() && std::all_of(damages.begin(), damages.end(),
                                         [](const CheckpointDamage& damage) { return damage.unreadable; });
}

CheckpointAudit AuditCheckpoint(const NamedCheckpoint& named, AuditDepth depth) {
  CheckpointAudit audit = BeginAudit(named);
  EndAudit(depth, &audit);
  return audit;
}

std::vector<CheckpointAudit> AuditCheckpoints(const std::string& folder, AuditDepth depth) {
  std::vector<CheckpointAudit> audits = BeginAudits(folder);
  for (CheckpointAudit& audit : audits) EndAudit(depth, &audit);
  return audits;
}

NewestValid FindNewestValid(const std::string& output) {
  NewestValid newest;
  std::vector<CheckpointAudit> audits = BeginAudits(output);
  int step = 0;  // of the one that is found
  for (auto audit = audits.rbegin(); audit != audits.rend(); ++audit) {
    const bool known = audit->index.has_value();
    if (audit->named.partial || audit->named.step == 0) continue;
    // An index that is damaged does not tell when it was sealed; its step tells what it may be.
    if (!newest.folder.empty() && (known || audit->named.step.value_or(step + 1) <= step)) continue;
    EndAudit(AuditDepth::kData, &*audit);
    if (audit->resumable()) {
      newest.folder = audit->folder();
      step = audit->index->version;
    } else if (!audit->damages.empty()) {
      newest.refused.insert(newest.refused.begin(), std::move(*audit));
    }
  }
  return newest;
}

absl::StatusOr<WholeCheckpoint> FindWholeCheckpoint(const std::string& folder, int least) {
  std::error_code error;
  if (fs::exists(fs::path(folder) / std::string(kCheckpointIndex), error)) return WholeCheckpoint{folder, {}};
  const NewestValid newest = FindNewestValid(folder);
  WholeCheckpoint found = {newest.folder, {}};
  for (const CheckpointAudit& refused : newest.refused)
    found.left_out.push_back(refused.damages.front().message);
  if (!found.folder.empty()) return found;
  if (!found.left_out.empty()) {
    return absl::DataLossError(
        absl::StrCat("no checkpoint of ", folder, " is whole: ", absl::StrJoin(found.left_out, "; ")));
  }
  auto complete = FindCheckpoint(folder, least);
  if (!complete.ok()) return complete.status();
  return WholeCheckpoint{*std::move(complete), {}};
}

}  // namespace weft
