#include "worker/shell/compute/exported_weights.h"

#include <fstream>
#include <set>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/run_files.h"
#include "worker/shell/checkpoint/safetensors.h"

namespace weft {
namespace {

absl::Status CheckTensor(const std::string& file, const SafetensorsEntry* entry, const ExportedTensor& tensor,
                         DataType held) {
  if (entry == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s holds no %s, which the model has; export the model again", file, tensor.name));
  }
  if (entry->shape == tensor.sizes && entry->type == held) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s holds %s with the sizes [%s], and the model has it as %s with [%s]; export the model again", file,
      tensor.name, absl::StrJoin(entry->shape, ", "), std::string(ElementTypeName(tensor.type)),
      absl::StrJoin(tensor.sizes, ", ")));
}

absl::Status CheckWeightsFile(const ExportedSpec& exported) {
  const std::string file = exported.weights();
  const absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(file);
  if (!header.ok()) return header.status();
  const std::vector<std::string>& elsewhere = exported.model->elsewhere;
  std::set<std::string> wanted(elsewhere.begin(), elsewhere.end());
  absl::Status fits;
  const auto check = [&](const ExportedTensor& tensor, DataType held) {
    wanted.insert(tensor.name);
    if (fits.ok()) fits = CheckTensor(file, header->Find(tensor.name), tensor, held);
  };
  for (const ExportedLayer* const layer : AllGraphs(*exported.model)) {
    for (const ExportedTensor& p : layer->parameters) check(p, DataType::kFloat32);
    for (const ExportedStatistic& s : layer->statistics)
      check({s.name, ElementType::kF32, s.sizes}, DataType::kFloat32);
    for (const ExportedConstant& c : layer->constants) check(c, HeldTypeOf(c));
  }
  if (!fits.ok()) return fits;
  for (const SafetensorsEntry& entry : header->entries) {
    if (wanted.count(entry.name) != 0) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s holds %s, which the model does not have; export the model again", file, entry.name));
  }
  return absl::OkStatus();
}

}  // namespace

DataType HeldTypeOf(const ExportedConstant& constant) {
  if (constant.is_frozen_parameter) return DataType::kFloat32;
  switch (constant.type) {
    case ElementType::kF32:
      return DataType::kFloat32;
    case ElementType::kBF16:
      return DataType::kBFloat16;
    case ElementType::kU8:
    case ElementType::kBool:
      return DataType::kUInt8;
    default:
      return DataType::kInt64;
  }
}

absl::Status CheckExportedWeights(const ExportedSpec& exported) {
  absl::Status checked = CheckWeightsFile(exported);
  if (checked.ok()) return checked;
  return absl::InvalidArgumentError(absl::StrCat("model.exported: ", checked.message()));
}

absl::Status ReadExportedConstant(const std::string& file, const ExportedConstant& constant, void* out) {
  const absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(file);
  if (!header.ok()) return header.status();
  const SafetensorsEntry* const entry = header->Find(constant.name);
  if (absl::Status s = CheckTensor(file, entry, constant, HeldTypeOf(constant)); !s.ok()) return s;
  std::ifstream in = RunFileToRead(file);
  in.seekg(static_cast<std::streamoff>(header->data_begin + entry->begin));
  in.read(static_cast<char*>(out), static_cast<std::streamsize>(entry->end - entry->begin));
  if (in) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("%s: cannot read %s", file, constant.name));
}

}  // namespace weft
