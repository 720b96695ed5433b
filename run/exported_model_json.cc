#include "run/exported_model_json.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "run/exported_operations.h"
#include "run/file_section.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 3, kOldestFormat = 2;  // format 2 has no evaluation
constexpr size_t kMaxGraphLayers = 10000, kMaxDimensions = 7, kMaxNameBytes = 512;
constexpr size_t kMaxFigures = 64, kMaxFigureNameBytes = 64;
constexpr int64_t kMaxElements = int64_t{1} << 40;
constexpr int kMaxValues = 1 << 20;
constexpr int64_t kFieldAlignment = 8;

absl::Status Wrong(absl::string_view path, absl::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat(path.empty() ? "" : absl::StrCat(path, ": "), message, "; export the model again"));
}

// Reads the values of one object, and keeps the first failure; after it, reads return empty values.
class Reader {
 public:
  Reader(const Json& json, std::string path, absl::Status& status)
      : json_(json), path_(std::move(path)), status_(status) {
    if (status_.ok() && !json.is_object()) Fail("", "is not an object");
  }

  bool ok() const { return status_.ok(); }
  void Fail(absl::string_view key, absl::string_view message) {
    if (status_.ok()) status_ = Wrong(PathOf(key), message);
  }
  std::string PathOf(absl::string_view key) const {
    return key.empty() ? path_ : path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key);
  }

  // Returns the value of a key that has to be there; null behind a failure.
  const Json& At(const char* key) {
    static const Json none;
    if (!ok()) return none;
    const auto found = json_.find(key);
    if (found == json_.end()) {
      Fail("", absl::StrCat("the field \"", key, "\" is missing"));
      return none;
    }
    return *found;
  }
  const Json& List(const char* key) {
    static const Json empty = Json::array();
    const Json& list = At(key);
    if (ok() && !list.is_array()) Fail(key, "is not a list");
    return ok() ? list : empty;
  }
  std::string Name(const char* key) {
    const Json& text = At(key);
    if (ok() && (!text.is_string() || text.get_ref<const std::string&>().empty() ||
                 text.get_ref<const std::string&>().size() > kMaxNameBytes))
      Fail(key, "is not a name");
    return ok() ? text.get<std::string>() : "";
  }
  bool Flag(const char* key) {
    const Json& flag = At(key);
    if (ok() && !flag.is_boolean()) Fail(key, "is neither true nor false");
    return ok() && flag.get<bool>();
  }
  int64_t Whole(const char* key, int64_t least, int64_t most) { return WholeOf(At(key), key, least, most); }
  int64_t WholeOf(const Json& json, absl::string_view key, int64_t least, int64_t most) {
    if (!ok()) return least;
    const bool fits = json.is_number_integer() &&
                      (!json.is_number_unsigned() || json.get<uint64_t>() <= uint64_t{INT64_MAX}) &&
                      json.get<int64_t>() >= least && json.get<int64_t>() <= most;
    if (!fits) Fail(key, absl::StrCat("is not a whole number from ", least, " to ", most));
    return ok() ? json.get<int64_t>() : least;
  }
  std::vector<int64_t> Sizes(const char* key, int64_t least = 1) {
    std::vector<int64_t> sizes;
    int64_t elements = 1;
    for (const Json& size : List(key)) {
      sizes.push_back(WholeOf(size, key, least, kMaxElements));
      const int64_t factor = std::max<int64_t>(sizes.back(), 1);
      if (elements > kMaxElements / factor) Fail(key, "are too large");
      if (!ok()) return {};
      elements *= factor;
    }
    if (sizes.size() > kMaxDimensions) Fail(key, absl::StrCat("are more than ", kMaxDimensions));
    return sizes;
  }
  std::vector<std::string> Names(const char* key) {
    std::vector<std::string> names;
    for (const Json& name : List(key)) {
      if (!name.is_string()) Fail(key, "are not names");
      if (!ok()) return {};
      names.push_back(name.get<std::string>());
    }
    return names;
  }
  ElementType Type(const char* key) { return TypeOf(At(key), key); }
  ElementType TypeOf(const Json& json, absl::string_view key) {
    const std::optional<ElementType> type =
        json.is_string() ? ElementTypeOf(json.get_ref<const std::string&>()) : std::nullopt;
    if (!type.has_value()) Fail(key, "is not a type of elements");
    return type.value_or(ElementType::kF32);
  }

 private:
  const Json& json_;
  const std::string path_;
  absl::Status& status_;
};

std::string Numbered(absl::string_view path, const char* key, size_t number) {
  return absl::StrCat(path, path.empty() ? "" : ".", key, "[", number, "]");
}

// ---- arguments

// Reads the number of a value that stands before the operation.
int ValueNumber(Reader& reader, const Json& json, int defined) {
  return static_cast<int>(reader.WholeOf(json, "arguments", 0, defined - 1));
}

// Reads the numbers that JSON does not have.
double NonFinite(Reader& reader, const Json& json) {
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  reader.Fail("arguments", "have a malformed number");
  return 0;
}

// Returns the one key and its content of {"key": content}, or nothing.
std::optional<std::pair<std::string, const Json*>> TaggedOf(const Json& json) {
  if (!json.is_object() || json.size() != 1) return std::nullopt;
  return std::pair(json.begin().key(), &json.begin().value());
}

GraphNumber NumberOf(Reader& reader, const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return reader.WholeOf(json, "arguments", INT64_MIN, INT64_MAX);
  if (json.is_number()) return json.get<double>();
  const auto tagged = TaggedOf(json);
  if (tagged.has_value() && tagged->first == "samples")
    return GraphSamples{reader.WholeOf(*tagged->second, "arguments", 0, kMaxElements)};
  if (tagged.has_value() && tagged->first == "float") return NonFinite(reader, *tagged->second);
  reader.Fail("arguments", "have a list of something other than numbers");
  return int64_t{0};
}

GraphMemoryFormat MemoryFormatOf(Reader& reader, const Json& json) {
  if (json == "contiguous") return GraphMemoryFormat::kContiguous;
  if (json == "preserve") return GraphMemoryFormat::kPreserve;
  if (json != "channels_last") reader.Fail("arguments", "have an unknown memory format");
  return GraphMemoryFormat::kChannelsLast;
}

GraphArgument ListOf(Reader& reader, const std::string& kind, const Json& list, int defined) {
  if (!list.is_array()) reader.Fail("arguments", absl::StrCat("have a ", kind, " that is no list"));
  if (kind == "values") {
    GraphValues values;
    for (const Json& v : list) values.numbers.push_back(v.is_null() ? -1 : ValueNumber(reader, v, defined));
    return values;
  }
  GraphNumbers numbers;
  for (const Json& number : list) numbers.push_back(NumberOf(reader, number));
  return numbers;
}

GraphArgument ArgumentOf(Reader& reader, const Json& json, int defined) {
  if (json.is_null()) return std::monostate();
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return reader.WholeOf(json, "arguments", INT64_MIN, INT64_MAX);
  if (json.is_number()) return json.get<double>();
  const auto tagged = TaggedOf(json);
  const std::string kind = tagged.has_value() ? tagged->first : "";
  if (kind == "value") return GraphValue{ValueNumber(reader, *tagged->second, defined)};
  if (kind == "values" || kind == "list") return ListOf(reader, kind, *tagged->second, defined);
  if (kind == "samples") return GraphSamples{reader.WholeOf(*tagged->second, "arguments", 0, kMaxElements)};
  if (kind == "float") return NonFinite(reader, *tagged->second);
  if (kind == "text" && tagged->second->is_string()) return tagged->second->get<std::string>();
  if (kind == "type") return reader.TypeOf(*tagged->second, "arguments");
  if (kind == "device") return GraphDevice();
  if (kind == "layout") return GraphLayout();
  if (kind == "memory_format") return MemoryFormatOf(reader, *tagged->second);
  reader.Fail("arguments", "have a form that this version does not know");
  return std::monostate();
}

// ---- layers

GraphOperation OperationOf(const Json& json, const std::string& path, int* defined, absl::Status& status) {
  Reader reader(json, path, status);
  GraphOperation operation;
  const std::string full = reader.Name("op");
  const size_t dot = full.find('.');
  operation.name = full.substr(0, dot);
  if (dot != std::string::npos) operation.overload = full.substr(dot + 1);
  if (json.is_object() && json.contains("place")) operation.place = reader.Name("place");
  if (reader.ok() && !IsExportedOperation(operation.name) && !IsForeignOperation(operation.name)) {
    reader.Fail("op", absl::StrCat("the operation ", operation.name,
                                   operation.place.empty() ? "" : absl::StrCat(", in ", operation.place, ","),
                                   " is not among those that an exported model may use"));
  }
  for (const Json& argument : reader.List("arguments"))
    operation.arguments.push_back(ArgumentOf(reader, argument, *defined));
  for (const Json& result : reader.List("results")) {
    operation.results.push_back(result.is_null() ? -1 : *defined);
    if (!result.is_null() && reader.WholeOf(result, "results", 0, kMaxValues) != (*defined)++)
      reader.Fail("results", "are not numbered one after the other");
  }
  if (operation.results.empty()) reader.Fail("results", "are none");
  return operation;
}

std::vector<ExportedTensor> ParametersOf(const Json& list, const std::string& path, absl::Status& status) {
  std::vector<ExportedTensor> parameters;
  for (const Json& json : list) {
    Reader reader(json, absl::StrCat(path, "[", parameters.size(), "]"), status);
    ExportedTensor parameter{reader.Name("name"), ElementType::kF32, reader.Sizes("sizes")};
    if (json.contains("type")) parameter.type = reader.Type("type");
    if (reader.ok() && parameter.type != ElementType::kF32 && parameter.type != ElementType::kBF16)
      reader.Fail("type", "must be F32 or BF16");
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

std::vector<ExportedConstant> ConstantsOf(const Json& list, const std::string& path, absl::Status& status) {
  std::vector<ExportedConstant> constants;
  for (const Json& json : list) {
    Reader reader(json, absl::StrCat(path, "[", constants.size(), "]"), status);
    ExportedConstant constant;
    constant.name = reader.Name("name");
    constant.sizes = reader.Sizes("sizes", /*least=*/0);
    constant.type = reader.Type("type");
    constant.is_frozen_parameter = reader.Flag("frozen_parameter");
    constants.push_back(std::move(constant));
  }
  return constants;
}

std::vector<ExportedStatistic> StatisticsOf(const Json& list, const std::string& path, absl::Status& status) {
  std::vector<ExportedStatistic> statistics;
  for (const Json& json : list) {
    Reader reader(json, absl::StrCat(path, "[", statistics.size(), "]"), status);
    ExportedStatistic statistic{reader.Name("name"), reader.Sizes("sizes")};
    const Json& momentum = reader.At("momentum");
    if (reader.ok() && !(momentum.is_number() && momentum.get<double>() >= 0 && momentum.get<double>() <= 1))
      reader.Fail("momentum", "is not a number from 0 to 1");
    if (reader.ok()) statistic.momentum = momentum.get<double>();
    statistics.push_back(std::move(statistic));
  }
  return statistics;
}

ExportedCosts CostsOf(const Json& json, const std::string& path, absl::Status& status) {
  Reader reader(json, path, status);
  ExportedCosts costs;
  const Json& flops = reader.At("flops");
  if (reader.ok() && !(flops.is_number() && flops.get<double>() >= 0 && flops.get<double>() < 1e30))
    reader.Fail("flops", "is not a number from 0 up");
  if (reader.ok()) costs.flops = flops.get<double>();
  costs.activation_bytes = reader.Whole("activation_bytes", 0, kMaxElements);
  costs.fixed_activation_bytes = reader.Whole("fixed_activation_bytes", 0, kMaxElements);
  costs.work_bytes = reader.Whole("work_bytes", 0, kMaxElements);
  return costs;
}

void ReadReads(const Json& json, const std::string& path, const ExportedModel& model, ExportedLayer& layer,
               absl::Status& status) {
  Reader reader(json, path, status);
  const auto before = static_cast<int64_t>(model.layers.size());
  for (const Json& number : reader.List("layers")) {
    const int64_t least = layer.layers.empty() ? 0 : layer.layers.back() + 1;
    layer.layers.push_back(static_cast<int>(reader.WholeOf(number, "layers", least, before - 1)));
    if (!reader.ok()) return;
  }
  for (const Json& name : reader.List("fields")) {
    int found = -1;
    for (size_t i = 0; i < model.fields.size(); ++i) {
      if (name == model.fields[i].name) found = static_cast<int>(i);
    }
    if (found < 0) return reader.Fail("fields", "name a field that the model does not have");
    layer.fields.push_back(found);
  }
}

// Reads the layer's output; the last one's is the loss, a number.
void ReadOutput(const Json& json, const std::string& path, bool is_last, int defined, ExportedLayer& layer,
                absl::Status& status) {
  Reader reader(json, path, status);
  layer.output = static_cast<int>(reader.Whole("value", 0, defined - 1));
  if (is_last) return;
  layer.output_sizes = reader.Sizes("sizes");
  const std::string of = reader.Name("of");
  layer.output_by_sample = of == "sample";
  if (of != "sample" && of != "micro-batch") reader.Fail("of", "is neither sample nor micro-batch");
}

ExportedLayer LayerOf(const Json& json, const std::string& path, const ExportedModel& model, bool is_last,
                      absl::Status& status) {
  Reader reader(json, path, status);
  ExportedLayer layer;
  layer.name = reader.Name("name");
  ReadReads(reader.At("reads"), reader.PathOf("reads"), model, layer, status);
  layer.parameters = ParametersOf(reader.List("parameters"), reader.PathOf("parameters"), status);
  layer.statistics = StatisticsOf(reader.List("statistics"), reader.PathOf("statistics"), status);
  layer.constants = ConstantsOf(reader.List("constants"), reader.PathOf("constants"), status);
  int defined = layer.first_statistic() + static_cast<int>(layer.statistics.size() + layer.constants.size());
  for (const Json& operation : reader.List("operations")) {
    layer.operations.push_back(
        OperationOf(operation, Numbered(path, "operations", layer.operations.size()), &defined, status));
    if (!status.ok()) return layer;
  }
  layer.values = static_cast<int>(reader.Whole("values", 1, kMaxValues));
  if (reader.ok() && layer.values != defined) reader.Fail("values", absl::StrCat("must be ", defined));
  ReadOutput(reader.At("output"), reader.PathOf("output"), is_last, defined, layer, status);
  layer.costs = CostsOf(reader.At("costs"), reader.PathOf("costs"), status);
  return layer;
}

// Places a field behind those that the model has.
void AppendField(ExportedField field, ExportedModel& model) {
  field.begin = model.sample_bytes;
  field.bytes = TensorBytes(field.type, field.sizes);
  model.sample_bytes += (field.bytes + kFieldAlignment - 1) / kFieldAlignment * kFieldAlignment;
  model.fields.push_back(std::move(field));
}

void ReadFields(const Json& list, ExportedModel& model, absl::Status& status) {
  for (const Json& json : list) {
    Reader reader(json, Numbered("", "fields", model.fields.size()), status);
    ExportedField field{reader.Name("name"), reader.Type("type"), reader.Sizes("sizes")};
    if (reader.ok() && field.type != ElementType::kF32 && field.type != ElementType::kI64)
      reader.Fail("type", "must be F32 or I64");
    AppendField(std::move(field), model);
  }
}

// Reads what counts a micro-batch, as a model of the fields that it reads; null where there is none.
std::shared_ptr<const ExportedModel> CountOf(const Json& file, const std::vector<ExportedField>& fields,
                                             absl::Status& status) {
  const auto found = file.find("count");
  if (found == file.end() || !status.ok()) return nullptr;
  ExportedModel data;
  data.fields = fields;
  ExportedLayer layer = LayerOf(*found, "count", data, /*is_last=*/true, status);
  if (!status.ok()) return nullptr;
  if (!layer.parameters.empty() || !layer.statistics.empty() || layer.fields.empty()) {
    status = Wrong("count", "does not read data alone");
    return nullptr;
  }
  auto count = std::make_shared<ExportedModel>();
  for (int& field : layer.fields) {
    AppendField(fields[field], *count);
    field = static_cast<int>(count->fields.size()) - 1;
  }
  count->layers.push_back(std::move(layer));
  return count;
}

// Returns true for a name that stands beside those of an evaluation and of a validation.
bool IsFigureName(const std::string& name) {
  static const auto* const taken = new std::set<std::string>{
      "all_samples", "checkpoint", "correct", "name", "predictions", "samples", "step", "version"};
  return taken->count(name) == 0 && name.size() <= kMaxFigureNameBytes && absl::ascii_isalpha(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

// Reads the names of the figures, the loss first.
std::vector<ExportedFigure> FiguresOf(const Json& list, absl::Status& status) {
  std::vector<ExportedFigure> figures;
  std::set<std::string> names;
  for (const Json& json : list) {
    Reader reader(json, Numbered("evaluation", "figures", figures.size()), status);
    ExportedFigure figure{reader.Name("name"), reader.Flag("counted")};
    if (reader.ok() && !IsFigureName(figure.name))
      reader.Fail("name", "is no name of letters, digits and _, or is taken");
    if (reader.ok() && !names.insert(figure.name).second) reader.Fail("name", "stands twice");
    if (!reader.ok()) return figures;
    figures.push_back(std::move(figure));
  }
  if (status.ok() && (figures.empty() || figures.size() > kMaxFigures || figures[0].name != "loss"))
    status = Wrong("evaluation.figures", absl::StrCat("are not 1 to ", kMaxFigures, ", the loss first"));
  return figures;
}

// Checks that the layers of the model have what the evaluation reads of a checkpoint.
void CheckReadsOf(const ExportedLayer& evaluation, const ExportedModel& model, absl::Status& status) {
  std::map<std::string, std::vector<int64_t>> parameters, statistics;
  for (const ExportedLayer& layer : model.layers) {
    for (const ExportedTensor& p : layer.parameters) parameters[p.name] = p.sizes;
    for (const ExportedStatistic& s : layer.statistics) statistics[s.name] = s.sizes;
  }
  const auto check = [&status](const auto& held, const auto& reads) {
    for (const auto& read : reads) {
      const auto found = held.find(read.name);
      if (status.ok() && (found == held.end() || found->second != read.sizes))
        status =
            Wrong("evaluation", absl::StrCat("reads ", read.name, ", which no layer has in these sizes"));
    }
  };
  check(parameters, evaluation.parameters);
  check(statistics, evaluation.statistics);
}

// Reads the graph of the module in evaluation mode, or why there is none.
void ReadEvaluation(const Json& json, ExportedModel& model, absl::Status& status) {
  if (!status.ok()) return;
  if (json.is_string()) {
    model.no_evaluation = json.get<std::string>();
    return;
  }
  auto evaluation = std::make_shared<ExportedModel>();
  evaluation->fields = model.fields;
  evaluation->sample_bytes = model.sample_bytes;
  ExportedLayer layer = LayerOf(json, "evaluation", *evaluation, /*is_last=*/true, status);
  Reader reader(json, "evaluation", status);
  evaluation->figures = FiguresOf(reader.List("figures"), status);
  CheckReadsOf(layer, model, status);
  layer.output_sizes = {0};
  for (const ExportedFigure& figure : evaluation->figures) layer.output_sizes[0] += figure.counted ? 2 : 1;
  evaluation->layers.push_back(std::move(layer));
  if (status.ok()) model.evaluation = std::move(evaluation);
}

// Checks that no name stands twice: parameters and constants are found by name, and checkpoints name layers.
void CheckNames(const ExportedModel& model, absl::Status& status) {
  std::set<std::string> layers, parameters, fields;
  const auto check = [&status](std::set<std::string>& names, const std::string& name) {
    if (names.insert(name).second || !status.ok()) return;
    status = Wrong("", absl::StrCat("the name ", name, " stands twice"));
  };
  for (const ExportedField& field : model.fields) check(fields, field.name);
  for (const ExportedLayer& layer : model.layers) {
    check(layers, layer.name);
    for (const ExportedTensor& parameter : layer.parameters) check(parameters, parameter.name);
    for (const ExportedStatistic& statistic : layer.statistics) check(parameters, statistic.name);
  }
}

// Returns true if the layers compute in bfloat16.
bool ReadNarrow(Reader& reader) {
  const std::string precision = reader.Name("precision");
  if (reader.ok() && precision != "float32" && precision != "bf16")
    reader.Fail("precision", "is neither float32 nor bf16");
  return precision == "bf16";
}

// Reads the names of tensors that are in no layer.
void ReadOtherNames(Reader& reader, bool has_elsewhere, ExportedModel& model) {
  const Json& aliases = reader.At("aliases");
  if (reader.ok() && !aliases.is_object()) reader.Fail("aliases", "are not an object");
  if (!reader.ok()) return;
  for (const auto& [alias, name] : aliases.items()) {
    if (!name.is_string()) return reader.Fail("aliases", "are not names");
    model.aliases[alias] = name.get<std::string>();
  }
  model.unread = reader.Names("unread");
  if (has_elsewhere) model.elsewhere = reader.Names("elsewhere");
}

// Checks that one or two layers read each layer but the last.
void CheckReaders(const ExportedModel& model, absl::Status& status) {
  std::vector<int> readers(model.layers.size());
  for (const ExportedLayer& layer : model.layers) {
    for (const int number : layer.layers) ++readers[number];
  }
  for (size_t i = 0; i + 1 < readers.size() && status.ok(); ++i) {
    if (readers[i] == 1 || readers[i] == 2) continue;
    status =
        Wrong(Numbered("", "layers", i), absl::StrCat("is read by ", readers[i], " layers, not by 1 or 2"));
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ExportedModel>> ParseExportedModel(const Json& file) {
  absl::Status status;
  Reader reader(file, "", status);
  const Json& format = reader.At("format");
  if (!status.ok()) return status;
  if (format != kFormat && format != kOldestFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("has the format ", format.dump(), ", and this version reads ", kOldestFormat, " and ",
                     kFormat, "; export the model again, with this version's weft"));
  }
  auto model = std::make_shared<ExportedModel>();
  if (file.contains("weights")) model->has_weights = reader.Flag("weights");
  if (file.contains("precision")) model->narrow = ReadNarrow(reader);
  ReadFields(reader.List("fields"), *model, status);
  const Json& layers = reader.List("layers");
  if (layers.empty() || layers.size() > kMaxGraphLayers)
    reader.Fail("layers", absl::StrCat("are not 1 to ", kMaxGraphLayers));
  for (const Json& layer : layers) {
    if (!status.ok()) return status;
    const size_t number = model->layers.size();
    model->layers.push_back(
        LayerOf(layer, Numbered("", "layers", number), *model, number + 1 == layers.size(), status));
  }
  ReadOtherNames(reader, file.contains("elsewhere"), *model);
  model->count = CountOf(file, model->fields, status);
  if (format == kFormat) {
    ReadEvaluation(reader.At("evaluation"), *model, status);
  } else {
    model->no_evaluation = "an older version exported it; export it again, with this version's weft";
  }
  CheckNames(*model, status);
  CheckReaders(*model, status);
  if (!status.ok()) return status;
  return std::shared_ptr<const ExportedModel>(std::move(model));
}

}  // namespace weft
