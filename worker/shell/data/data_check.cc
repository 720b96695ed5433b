#include "worker/shell/data/data_check.h"

#include <memory>
#include <variant>

#include "absl/strings/str_format.h"
#include "worker/shell/compute/exported_weights.h"
#include "worker/shell/compute/initial_weights.h"

namespace weft {

absl::StatusOr<std::vector<std::string>> CheckData(const RunSpec& run, DataUse use,
                                                   const ScanProgress& progress) {
  if (const auto* exported = std::get_if<ExportedSpec>(&run.model)) {
    if (absl::Status weights = CheckExportedWeights(*exported); !weights.ok()) return weights;
  }
  if (absl::Status weights = CheckInitialWeights(run); !weights.ok()) return weights;
  const absl::StatusOr<std::unique_ptr<Dataset>> data = Dataset::Open(run);
  if (!data.ok()) return data.status();
  if (absl::Status whole = (*data)->CheckWhole(progress); !whole.ok()) return whole;
  std::vector<std::string> warnings;
  if (use == DataUse::kValidation) {
    if ((*data)->count() < run.validate.samples)
      warnings.push_back(absl::StrFormat("samples: %d are asked for, and the data have %d, so all are taken",
                                         run.validate.samples, (*data)->count()));
    return warnings;
  }
  if ((*data)->count() < run.train.batch) {
    const bool text = LearnsFromText(run.model);
    warnings.push_back(
        absl::StrFormat("train.batch: a batch has %d samples, the data have only %d%s, so a batch has some "
                        "of them several times",
                        run.train.batch, (*data)->count(), text ? " of model.gpt.context tokens" : ""));
  }
  return warnings;
}

std::vector<std::string> DataPaths(const RunSpec& run) {
  if (const auto* idx = std::get_if<IdxData>(&run.data.source)) return {idx->images, idx->labels};
  if (const auto* cifar10 = std::get_if<Cifar10Data>(&run.data.source)) return {cifar10->path};
  std::vector<std::string> paths;
  if (const auto* text = std::get_if<TextData>(&run.data.source)) paths.push_back(text->path);
  if (const auto* arrays = std::get_if<ArraysData>(&run.data.source)) {
    for (const auto& [name, files] : arrays->paths) paths.insert(paths.end(), files.begin(), files.end());
  }
  if (const auto* exported = std::get_if<ExportedSpec>(&run.model)) paths.push_back(exported->weights());
  return paths;
}

}  // namespace weft
