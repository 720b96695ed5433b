#include "client/commands/export_weights_command.h"

#include <filesystem>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/durable_file.h"
#include "base/run_files.h"
#include "nlohmann/json.hpp"
#include "worker/shell/checkpoint/checkpoint_audit.h"
#include "worker/shell/checkpoint/checkpoint_index.h"
#include "worker/shell/checkpoint/safetensors.h"
#include "worker/shell/compute/initial_weights.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Returns the checkpoint that is meant, which is whole.
absl::StatusOr<std::string> CheckpointIn(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(fs::path(folder) / std::string(kCheckpointIndex), error)) {
    const std::string newest = FindNewestValid(folder).folder;
    if (!newest.empty()) return newest;
    if (absl::Status readable = CheckReadable(folder); !readable.ok()) return readable;
    return absl::NotFoundError(absl::StrCat(folder, " holds no whole checkpoint"));
  }
  const CheckpointAudit audit = AuditCheckpoint({folder}, AuditDepth::kData);
  if (audit.damages.empty()) return folder;
  return absl::DataLossError(audit.damages.front().message);
}

// Returns the number of tensors.
absl::StatusOr<size_t> WriteWeights(const std::string& checkpoint, const std::string& file) {
  const absl::StatusOr<InitialWeights> weights = InitialWeights::Open(checkpoint);
  if (!weights.ok()) return weights.status();
  std::map<std::string, std::vector<float>> values;
  std::vector<SafetensorsSource> tensors;
  for (const auto& [name, place] : weights->places()) {
    std::vector<float>& value = values[name];
    value.resize((place.entry.end - place.entry.begin) / sizeof(float));
    if (absl::Status read = weights->Read(name, place.entry.shape, value.data()); !read.ok()) return read;
    tensors.push_back({name, DataType::kFloat32, place.entry.shape, value.data()});
  }
  if (absl::Status written = WriteSafetensors(file, tensors, {{"format", "pt"}}); !written.ok())
    return written;
  return tensors.size();
}

}  // namespace

ExitCode RunExportWeights(const ExportWeightsOptions& options) {
  const absl::StatusOr<std::string> file = ReplaceableFile(options.file);
  if (!file.ok()) return Fail(kExitBadConfiguration, file.status().message());
  const absl::StatusOr<std::string> checkpoint = CheckpointIn(options.folder);
  if (!checkpoint.ok()) return Fail(kExitBadConfiguration, checkpoint.status().message());
  const absl::StatusOr<size_t> tensors = WriteWeights(*checkpoint, *file);
  if (!tensors.ok()) {
    const absl::Status& why = tensors.status();
    return Fail(absl::IsDataLoss(why) ? kExitBadConfiguration : kExitFailed, why.message());
  }
  if (options.json) {
    return PrintJson({{"file", options.file}, {"checkpoint", *checkpoint}, {"tensors", *tensors}});
  }
  PrintMessage(absl::StrCat(options.file, ": the weights of ", *checkpoint));
  return kExitOk;
}

}  // namespace weft
