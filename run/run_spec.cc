#include "run/run_spec.h"

#include <algorithm>
#include <climits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "run/byte_size.h"
#include "run/checkpoint_spec.h"
#include "run/file_section.h"
#include "run/learning_rate.h"
#include "run/model_layers.h"
#include "run/network_spec.h"
#include "run/plugin_spec.h"
#include "run/replan_spec.h"
#include "run/resnet.h"
#include "run/schedule_spec.h"
#include "run/stage_cut.h"
#include "run/unknown_name.h"
#include "run/weight_decay.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr int kMaxMicrobatches = 65536;

std::string ReadName(FileSection& file) {
  std::string name = "run";
  file.Read("name", name);
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  bool valid = !name.empty() && name.size() <= 63 && letter(name[0]);
  for (const char c : name) valid = valid && (letter(c) || c == '-' || c == '_' || c == '.');
  if (!valid) {
    file.Fail("name", "must be 1 to 63 letters, digits, '-', '_' or '.', and begin with a letter or digit");
  }
  return name;
}

Augmentation ReadAugmentation(const FileSection& data, absl::Status& status) {
  constexpr int kMaxCrop = 1024;
  Augmentation augment;
  FileSection section(data.At("augment"), data.PathOf("augment"), {"crop", "flip"}, status);
  section.Read("crop", augment.crop, 0, kMaxCrop);
  section.Read("flip", augment.flip);
  return augment;
}

constexpr const char* kTokensNames[] = {"bytes", "uint16", "uint32", "llm.c",
                                        "megatron"};  // of TextData::Tokens

TextData::Tokens ReadTokens(FileSection& text) {
  std::string name = kTokensNames[0];
  text.Read("tokens", name);
  const std::vector<std::string> names(std::begin(kTokensNames), std::end(kTokensNames));
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    text.Fail("tokens", UnknownName("kind of tokens", name, names));
    return TextData::Tokens::kBytes;
  }
  return static_cast<TextData::Tokens>(found - names.begin());
}

// Reads one text, or a list of them. `what` says what they are.
std::vector<std::string> ReadTexts(const Json& value, const std::string& place, absl::string_view what,
                                   absl::Status& status) {
  const Json list = value.is_array() ? value : Json::array({value});
  std::vector<std::string> texts;
  for (const Json& text : list) {
    if (text.is_string()) texts.push_back(text.get<std::string>());
  }
  if (texts.size() == list.size() && !texts.empty()) return texts;
  status = ErrorAt(place, absl::StrCat("must be ", what, value.is_array() ? "" : ", not ",
                                       value.is_array() ? "" : TypeName(value)));
  return {};
}

// Reads the files of fields. The model decides which fields there must be.
ArraysData ReadArrays(const Choice& choice, absl::Status& status) {
  ArraysData arrays;
  if (!status.ok()) return arrays;
  if (!choice.parameters.is_object() || choice.parameters.empty()) {
    status =
        ErrorAt(choice.path, "must have a NumPy file for each field of the model, as {tokens: tokens.npy}");
    return arrays;
  }
  for (const auto& item : choice.parameters.items()) {
    const std::string place = absl::StrCat(choice.path, ".", item.key());
    arrays.paths[item.key()] =
        ReadTexts(item.value(), place, "the path of a NumPy file, or a list of them", status);
    if (!status.ok()) return arrays;
  }
  return arrays;
}

// Reads the data. `further_keys` lists the keys that may stand beside the kind of data.
DataSpec ReadData(const Json& value, const std::string& path, const std::vector<std::string>& further_keys,
                  absl::Status& status) {
  const Choice choice =
      ReadChoice(value, path, {"kind of data", {"text", "idx", "cifar10", "arrays"}, further_keys}, status);
  DataSpec data;
  if (choice.name == "idx") {
    IdxData idx;
    FileSection section(choice.parameters, choice.path, {"images", "labels", "resize"}, status);
    section.Require("images", "images: train-images-idx3-ubyte");
    section.Require("labels", "labels: train-labels-idx1-ubyte");
    section.Read("images", idx.images);
    section.Read("labels", idx.labels);
    section.Read("resize", idx.resize);
    data.source = idx;
  } else if (choice.name == "cifar10") {
    Cifar10Data cifar10;
    FileSection section(choice.parameters, choice.path, {"path", "resize"}, status);
    section.Require("path", "path: cifar-10-batches-bin");
    section.Read("path", cifar10.path);
    section.Read("resize", cifar10.resize);
    data.source = cifar10;
  } else if (choice.name == "arrays") {
    data.source = ReadArrays(choice, status);
  } else {
    TextData text;
    FileSection section(choice.parameters, choice.path, {"path", "tokens", "inputs", "targets"}, status);
    section.Require("path", "path: input.txt");
    section.Read("path", text.path);
    text.tokens = ReadTokens(section);
    for (auto [key, fields] : {std::pair("inputs", &text.inputs), std::pair("targets", &text.targets)}) {
      if (!section.ok() || !section.Has(key)) continue;
      *fields = ReadTexts(section.At(key), absl::StrCat(choice.path, ".", key),
                          "the name of a field of the exported model, or a list of them", status);
    }
    data.source = text;
  }
  if (!status.ok() || !value.is_object()) return data;
  std::vector<std::string> keys = further_keys;
  keys.push_back(choice.name);
  FileSection section(value, path, keys, status);
  section.Read("order", data.order);
  if (data.order != "sequential" && data.order != "shuffled")
    section.Fail("order", UnknownName("order", data.order, {"sequential", "shuffled"}));
  if (section.Has("augment") && (choice.name == "text" || choice.name == "arrays"))
    section.Fail("augment",
                 absl::StrCat("changes images; ", choice.name == "text" ? "a text is" : "arrays are",
                              " trained on as ", choice.name == "text" ? "it is" : "they are"));
  data.augment = ReadAugmentation(section, status);
  return data;
}

// Checks that each field of the model gets tokens, and is a row of whole numbers as long as the others.
absl::Status CheckTokenFields(const ExportedModel& model, const TextData& text) {
  std::vector<std::string> names, given = text.inputs;
  given.insert(given.end(), text.targets.begin(), text.targets.end());
  for (const ExportedField& field : model.fields) {
    names.push_back(field.name);
    const auto times = std::count(given.begin(), given.end(), field.name);
    if (times != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the model's field ", field.name, times == 0 ? " gets no tokens" : " is named more than once",
          "; name each field once: inputs: [..] for those that "
          "get the tokens, targets: [..] for those that get "
          "the token behind each"));
    }
    if (field.type == ElementType::kI64 && field.sizes.size() == 1 && field.sizes == model.fields[0].sizes)
      continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the model's field ", field.name,
                     " is no row of whole numbers as long as the others, so a file of tokens "
                     "cannot fill it; write the fields as arrays"));
  }
  for (const std::string& name : given) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      return absl::InvalidArgumentError(UnknownName("field", name, names));
  }
  return absl::OkStatus();
}

// Checks that an exported model comes with a file for each of its fields. Either may be null for another
// kind.
void CheckFields(const ExportedSpec* exported, const ArraysData* arrays, const std::string& path,
                 absl::Status& status) {
  if (exported == nullptr) {
    status = ErrorAt(path, "arrays are the data of an exported model, and this one is built in");
    return;
  }
  std::vector<std::string> names;
  for (const ExportedField& field : exported->model->fields) names.push_back(field.name);
  const std::string wanted = absl::StrCat("write data: {arrays: {", absl::StrJoin(names, ": .., "), ": ..}}");
  if (arrays == nullptr) {
    status = ErrorAt(
        path, absl::StrCat("an exported model learns from arrays, or from the tokens of a text; ", wanted));
    return;
  }
  for (const std::string& name : names) {
    if (arrays->paths.count(name) == 0)
      status = ErrorAt(absl::StrCat(path, ".arrays"),
                       absl::StrCat("the model's field ", name, " has no file; ", wanted));
  }
  for (const auto& [name, file] : arrays->paths) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      status = ErrorAt(absl::StrCat(path, ".arrays.", name), UnknownName("field", name, names));
  }
}

// Checks that the graphs are those of the run's precision.
void CheckGraphsPrecision(const RunSpec& spec, const ExportedSpec& exported, absl::Status& status) {
  const bool narrow = spec.precision == Precision::kBFloat16;
  if (narrow == exported.model->narrow) return;
  status = ErrorAt("precision", absl::StrCat("the graphs of ", exported.folder, " compute in ",
                                             narrow ? "float32" : "bf16", ", and the run in ",
                                             PrecisionName(spec.precision)));
}

// Refuses what an exported model cannot do as it was exported.
void CheckExported(const RunSpec& spec, absl::Status& status) {
  const auto* exported = std::get_if<ExportedSpec>(&spec.model);
  if (!status.ok() || exported == nullptr) return;
  CheckGraphsPrecision(spec, *exported, status);
  if (!spec.validate.any()) return;
  const absl::Status can = CheckEvaluable(spec.model);
  if (!can.ok()) status = ErrorAt("validate", can.message());
}

void CheckModelAndData(const ModelSpec& model, const DataSpec& data, const std::string& path,
                       absl::Status& status) {
  if (!status.ok()) return;
  const auto* exported = std::get_if<ExportedSpec>(&model);
  const auto* arrays = std::get_if<ArraysData>(&data.source);
  const auto* tokens = std::get_if<TextData>(&data.source);
  if (exported != nullptr && tokens != nullptr) {
    const absl::Status fits = CheckTokenFields(*exported->model, *tokens);
    if (!fits.ok()) status = ErrorAt(absl::StrCat(path, ".text"), fits.message());
    return;
  }
  if (tokens != nullptr && !(tokens->inputs.empty() && tokens->targets.empty())) {
    status = ErrorAt(absl::StrCat(path, ".text"),
                     "names fields, which only an exported model has; leave inputs and "
                     "targets out");
    return;
  }
  if (exported != nullptr || arrays != nullptr) return CheckFields(exported, arrays, path, status);
  const bool text = tokens != nullptr;
  if (text == LearnsFromText(model)) return;
  status = ErrorAt(
      path,
      absl::StrCat(
          "the model ", ModelName(model),
          text ? " learns from labelled images, not from text; write data: {idx: {images: .., labels: ..}}"
               : " learns from text, not from images; write data: "
                 "{text: {path: input.txt}}"));
}

// Refuses a batch norm over one value, which has nothing to compare it with.
void CheckBatchNorm(const RunSpec& spec, absl::Status& status) {
  const auto* resnet = std::get_if<ResNetSpec>(&spec.model);
  if (!status.ok() || resnet == nullptr || spec.microbatch_samples() > 1) return;
  if (PlanOf(*resnet).last_side > 1) return;
  status = ErrorAt(
      "train.batch",
      absl::StrCat("with one sample per micro-batch, the last batch norms of ", ModelName(spec.model),
                   " on images of size ", resnet->size,
                   " have one value per channel, which has no variance; use fewer microbatches, a larger "
                   "batch or larger images"));
}

void CheckActivations(const RunSpec& spec, absl::Status& status) {
  if (!status.ok()) return;
  const absl::Status fits = CheckActivationsOfStages(spec.schedule, spec.placed_stages());
  if (!fits.ok()) status = ErrorAt("schedule.activations", fits.message());
}

OptimizerSpec ReadOptimizer(FileSection& train, const ModelSpec& model, absl::Status& status) {
  if (!train.Has("optimizer")) return SgdSpec();
  const Choice choice =
      ReadChoice(train.At("optimizer"), "train.optimizer", {"optimizer", {"adamw", "sgd"}, {}}, status);
  if (choice.name == "sgd") {
    SgdSpec sgd;
    FileSection section(choice.parameters, choice.path, {"lr", "momentum", "weight_decay", "no_decay"},
                        status);
    section.Read("lr", sgd.lr, 0, 1000);
    section.Read("momentum", sgd.momentum, 0, 1, /*below=*/true);
    section.Read("weight_decay", sgd.weight_decay, 0, 1000);
    sgd.no_decay = ReadNoDecay(section, model);
    return sgd;
  }
  AdamWSpec adamw;
  FileSection section(choice.parameters, choice.path,
                      {"lr", "beta1", "beta2", "eps", "weight_decay", "no_decay"}, status);
  section.Read("lr", adamw.lr, 0, 1000);
  section.Read("beta1", adamw.beta1, 0, 1, /*below=*/true);
  section.Read("beta2", adamw.beta2, 0, 1, /*below=*/true);
  section.Read("eps", adamw.eps, 0, 1);
  section.Read("weight_decay", adamw.weight_decay, 0, 1000);
  adamw.no_decay = ReadNoDecay(section, model);
  return adamw;
}

constexpr const char* kNonFiniteNames[] = {"stop", "skip", "continue"};

NonFinite ReadNonFinite(FileSection& train) {
  std::string name = kNonFiniteNames[0];
  train.Read("non_finite", name);
  for (const NonFinite choice : {NonFinite::kStop, NonFinite::kSkip, NonFinite::kContinue}) {
    if (name == kNonFiniteNames[static_cast<int>(choice)]) return choice;
  }
  train.Fail("non_finite", UnknownName("choice", name, {"stop", "skip", "continue"}));
  return NonFinite::kStop;
}

TrainSpec ReadTrain(FileSection& file, const ModelSpec& model, absl::Status& status) {
  file.Require("train", "train: {steps: 200, batch: 32, microbatches: 8}");
  TrainSpec train;
  FileSection section(
      file.At("train"), "train",
      {"steps", "batch", "microbatches", "seed", "optimizer", "lr_schedule", "clip_norm", "non_finite"},
      status);
  section.Require("steps", "steps: 200");
  section.Require("batch", "batch: 32");
  section.Read("steps", train.steps, 1, INT_MAX / 2);
  section.Read("batch", train.batch, 1, kMaxBatch);
  section.Read("microbatches", train.microbatches, 1, kMaxMicrobatches);
  section.Read("seed", train.seed);
  train.optimizer = ReadOptimizer(section, model, status);
  train.lr_schedule = ReadLearningRateSchedule(section, train, status);
  section.Read("clip_norm", train.clip_norm, 0, 1e9);
  train.non_finite = ReadNonFinite(section);
  if (status.ok() && train.batch % train.microbatches != 0) {
    section.Fail("batch", absl::StrCat("the batch of ", train.batch, " samples cannot be cut into ",
                                       train.microbatches,
                                       " equal micro-batches; make batch a multiple of microbatches"));
  }
  return train;
}

std::string WithoutNumber(const std::string& name) {
  return name.substr(0, name.find_last_not_of("0123456789") + 1);
}

// Returns "6 layers of the model (embedding, block0 to block3, head)".
std::string DescribeLayers(const std::vector<LayerCount>& layers) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end = 0; begin < layers.size(); begin = end) {
    const std::string& first = layers[begin].name;
    while (end < layers.size() && WithoutNumber(layers[end].name) == WithoutNumber(first)) ++end;
    parts.push_back(end == begin + 1 ? first : absl::StrCat(first, " to ", layers[end - 1].name));
  }
  return absl::StrCat(layers.size(), layers.size() == 1 ? " layer" : " layers", " of the model (",
                      absl::StrJoin(parts, ", "), ")");
}

StageCut CutEvenly(FileSection& file, const std::vector<LayerCount>& layers) {
  int stages = 1;
  if (!file.At("stages").is_number_integer()) {
    file.Fail("stages",
              absl::StrCat("must be a number of stages, or the list of the layers of each stage, not ",
                           TypeName(file.At("stages"))));
  }
  file.Read("stages", stages, 1, INT_MAX);
  if (!file.ok()) return {};
  if (stages > MostStages(layers)) {
    file.Fail("stages", absl::StrCat(stages, " is more than the ", DescribeLayers(layers),
                                     TiedLayers(layers) > 0 ? " allow beside tied parameters" : "",
                                     "; use at most ", MostStages(layers)));
    return {};
  }
  StageCut cut = CutBesideTied(layers, stages);
  if (cut.layers_of_stage.empty()) {
    file.Fail("stages", absl::StrCat("the ", DescribeLayers(layers), " cannot be cut into ", stages,
                                     " stages such that each stage passes on the output of one layer"));
  }
  return cut;
}

StageCut ReadCut(const Json& list, const std::vector<LayerCount>& layers, absl::Status& status) {
  std::vector<int> cut;
  int64_t sum = 0;
  for (size_t s = 0; s < list.size(); ++s) {
    const Json& n = list[s];
    if (!n.is_number_integer() || n.get<int64_t>() < 1 ||
        n.get<int64_t>() > static_cast<int64_t>(layers.size())) {
      status = ErrorAt(absl::StrCat("stages[", s, "]"), absl::StrCat("must be the number of layers of stage ",
                                                                     s, ", a whole number from 1 up"));
      return {};
    }
    cut.push_back(n.get<int>());
    sum += cut.back();
  }
  if (static_cast<size_t>(sum) != layers.size()) {
    status =
        ErrorAt("stages", absl::StrCat("the list [", absl::StrJoin(cut, ", "), "] places ", sum, " of the ",
                                       DescribeLayers(layers), "; its numbers must sum to ", layers.size()));
    return {};
  }
  StageCut stages = WithTiedStages(layers, std::move(cut));
  if (const absl::Status fits = CheckCut(layers, stages.layers_of_stage); !fits.ok())
    status = ErrorAt("stages", fits.message());
  return stages;
}

StageCut ReadStages(FileSection& file, const ModelSpec& model, absl::Status& status) {
  file.Require("stages", "stages: 4, or the layers of each stage, as stages: [3, 2, 3]");
  if (!status.ok()) return {};
  const std::vector<LayerCount> layers = CountLayers(model);
  const Json& stages = file.At("stages");
  if (stages.is_array()) return ReadCut(stages, layers, status);
  return CutEvenly(file, layers);
}

int64_t ReadMemory(FileSection& file) {
  constexpr double kMaxMemory = 1e15;
  const Json& memory = file.At("memory");
  if (!file.ok() || memory.is_null()) return 0;
  const std::optional<double> bytes = memory.is_string()   ? ParseByteSize(memory.get<std::string>())
                                      : memory.is_number() ? std::optional(memory.get<double>())
                                                           : std::nullopt;
  if (!bytes.has_value() || !(*bytes >= 1 && *bytes <= kMaxMemory)) {
    file.Fail("memory", "must be a number of bytes from 1 to 1000TB, as 2GiB or 500MB");
    return 0;
  }
  return static_cast<int64_t>(*bytes);
}

bool ReadRecord(FileSection& file) {
  if (!file.Has("record")) return false;
  std::string what;
  file.Read("record", what);
  if (what != "hashes") file.Fail("record", UnknownName("kind of record", what, {"hashes"}));
  return true;
}

// Returns the number of processes with a second copy.
int ReadRedundancy(FileSection& file, const RunSpec& spec, absl::Status& status) {
  int peers = 0;
  if (!file.Has("redundancy")) return peers;
  FileSection section(file.At("redundancy"), "redundancy", {"peers"}, status);
  section.Require("peers", "peers: 1");
  section.Read("peers", peers, 1, 1);
  if (status.ok() && spec.restarts == 0)
    file.Fail("redundancy", "keeps copies to begin again from, and `restarts: 0` never begins again");
  return peers;
}

JobTimeoutSpec ReadJobTimeout(FileSection& file, absl::Status& status) {
  constexpr double kMostSeconds = 1e8;
  JobTimeoutSpec timeout;
  if (!file.Has("job_timeout")) return timeout;
  FileSection section(file.At("job_timeout"), "job_timeout", {"times", "at_least", "first"}, status);
  section.Read("times", timeout.times, 1.0, 1e6);
  section.Read("at_least", timeout.at_least, 1.0, kMostSeconds);
  section.Read("first", timeout.first, 1.0, kMostSeconds);
  return timeout;
}

ResumeSpec ReadResume(FileSection& file, absl::Status& status) {
  ResumeSpec resume;
  if (!file.Has("resume")) return resume;
  FileSection section(file.At("resume"), "resume", {"checkpoint", "step", "copies"}, status);
  section.Read("copies", resume.copies);
  if (!resume.copies) section.Require("checkpoint", "checkpoint: out/run/checkpoint");
  section.Require("step", "step: 100");
  section.Read("checkpoint", resume.checkpoint);
  section.Read("step", resume.step, 1, INT_MAX / 2);
  if (status.ok() && resume.checkpoint.empty() != resume.copies)
    section.Fail("checkpoint", "must be a checkpoint's folder");
  return resume;
}

// Without `every` the curve has ten points.
ValidateSpec ReadValidate(FileSection& file, const RunSpec& spec, absl::Status& status) {
  ValidateSpec validate;
  if (!file.Has("validate")) return validate;
  FileSection section(file.At("validate"), "validate", {"data", "every", "samples"}, status);
  section.Require("data", "data: {text: {path: held_out.txt}}");
  if (!status.ok()) return validate;
  validate.data = ReadData(section.At("data"), "validate.data", {}, status);
  CheckModelAndData(spec.model, validate.data, "validate.data", status);
  validate.every = std::max(1, (spec.train.steps + 9) / 10);
  section.Read("every", validate.every, 1, INT_MAX / 2);
  if (section.At("samples").is_string() && section.At("samples") == "all") return validate;
  section.Read("samples", validate.samples, 1, INT_MAX);
  return validate;
}

Json SourceToJson(const DataSpec& data) {
  Json json = Json::object();
  if (const auto* text = std::get_if<TextData>(&data.source)) {
    json["text"] = {{"path", text->path}, {"tokens", kTokensNames[static_cast<size_t>(text->tokens)]}};
    if (!text->inputs.empty()) json["text"]["inputs"] = text->inputs;
    if (!text->targets.empty()) json["text"]["targets"] = text->targets;
  } else if (const auto* cifar10 = std::get_if<Cifar10Data>(&data.source)) {
    json["cifar10"] = {{"path", cifar10->path}, {"resize", cifar10->resize}};
  } else if (const auto* arrays = std::get_if<ArraysData>(&data.source)) {
    // A list only where there are several, so that other releases read what they know.
    for (const auto& [field, paths] : arrays->paths)
      json["arrays"][field] = paths.size() == 1 ? Json(paths[0]) : Json(paths);
  } else {
    const auto& idx = std::get<IdxData>(data.source);
    json["idx"] = {{"images", idx.images}, {"labels", idx.labels}, {"resize", idx.resize}};
  }
  return json;
}

Json ToJson(const DataSpec& data) {
  Json json = SourceToJson(data);
  json["order"] = data.order;
  if (data.augment.any()) json["augment"] = {{"crop", data.augment.crop}, {"flip", data.augment.flip}};
  return json;
}

Json ToJson(const OptimizerSpec& optimizer) {
  Json json;
  if (const auto* sgd = std::get_if<SgdSpec>(&optimizer)) {
    json = {{"sgd", {{"lr", sgd->lr}, {"momentum", sgd->momentum}, {"weight_decay", sgd->weight_decay}}}};
  } else {
    const auto& adamw = std::get<AdamWSpec>(optimizer);
    json = {{"adamw",
             {{"lr", adamw.lr},
              {"beta1", adamw.beta1},
              {"beta2", adamw.beta2},
              {"eps", adamw.eps},
              {"weight_decay", adamw.weight_decay}}}};
  }
  if (!NoDecayOf(optimizer).empty()) json.begin().value()["no_decay"] = NoDecayOf(optimizer);
  return json;
}

}  // namespace

absl::StatusOr<RunSpec> ParseRunSpec(const Json& json) {
  absl::Status status;
  RunSpec spec;
  FileSection file(json, "",
                   {"name",     "model",      "weights",     "plugins",         "data",    "train",
                    "stages",   "schedule",   "memory",      "precision",       "kernels", "checkpoint",
                    "restarts", "redundancy", "job_timeout", "replan",          "network", "validate",
                    "record",   "resume",     "until",       "separate_memory", "buffers"},
                   status);
  spec.name = ReadName(file);
  file.Require("model", "model: {gpt: {layers: 8, width: 256}}");
  spec.model = ReadModel(file.At("model"), "model", status);
  file.Read("weights", spec.weights);
  if (auto* exported = std::get_if<ExportedSpec>(&spec.model)) exported->initial = spec.weights;
  ReadPlugins(file, spec, status);
  file.Require("data", "data: {text: {path: input.txt}}");
  spec.data = ReadData(file.At("data"), "data", {"order", "augment"}, status);
  CheckModelAndData(spec.model, spec.data, "data", status);
  spec.train = ReadTrain(file, spec.model, status);
  CheckBatchNorm(spec, status);
  StageCut cut = ReadStages(file, spec.model, status);
  spec.layers_of_stage = std::move(cut.layers_of_stage);
  spec.tied_stages = cut.tied_stages;
  file.Require("schedule", "schedule: 1f1b");
  spec.schedule = ReadSchedule(file.At("schedule"), "schedule", status);
  CheckActivations(spec, status);
  spec.memory = ReadMemory(file);
  file.Read("separate_memory", spec.separate_memory);
  if (file.Has("buffers") && status.ok())
    spec.buffers = ReadMeasuredBuffers(file.At("buffers"), CountLayers(spec.model).size(), status);
  spec.precision = ReadPrecision(file.At("precision"), "precision", status);
  spec.kernels = ReadKernels(file.At("kernels"), "kernels", status);
  spec.checkpoint = ReadCheckpointSpec(file, status);
  file.Read("restarts", spec.restarts, 0, 1000);
  spec.redundancy = ReadRedundancy(file, spec, status);
  spec.job_timeout = ReadJobTimeout(file, status);
  spec.replan = ReadReplanSpec(file, spec.schedule, status);
  if (file.Has("network")) spec.network = ReadNetworkSpec(file.At("network"), "network", status);
  spec.validate = ReadValidate(file, spec, status);
  CheckNeedsNone(spec, status);
  CheckExported(spec, status);
  spec.record_hashes = ReadRecord(file);
  spec.resume = ReadResume(file, status);
  file.Read("until", spec.until, 1, INT_MAX / 2);
  if (status.ok()) status = CheckSteps(spec);
  if (!status.ok()) return status;
  return spec;
}

absl::Status CheckSteps(const RunSpec& run) {
  if (run.until > run.train.steps) {
    return ErrorAt("until",
                   absl::StrCat("the run has ", run.train.steps, " steps; it cannot make ", run.until));
  }
  if (run.first_step() < run.end_step()) return absl::OkStatus();
  return ErrorAt("resume", absl::StrCat("the checkpoint is of step ", run.first_step(),
                                        ", and the run ends at step ", run.end_step(), ": nothing is left"));
}

absl::Status CheckHasWeights(const RunSpec& run) {
  const auto* exported = std::get_if<ExportedSpec>(&run.model);
  if (exported == nullptr || exported->model->has_weights) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "model.exported: was exported from the meta device, without weights, so that it can be simulated, "
      "compared and planned; export it on the CPU to train it");
}

void SetCut(std::vector<int> as_written, RunSpec* run) {
  StageCut cut = WithTiedStages(CountLayers(run->model), std::move(as_written));
  run->layers_of_stage = std::move(cut.layers_of_stage);
  run->tied_stages = cut.tied_stages;
}

std::vector<int> CutAsWritten(const RunSpec& run) {
  return StageCut{run.layers_of_stage, run.tied_stages}.AsWritten();
}

RunSpec ValidationRun(const RunSpec& run) {
  RunSpec held_out = run;
  held_out.data = run.validate.data;
  return held_out;
}

Json ToJson(const RunSpec& spec) {
  Json json = {{"name", spec.name},
               {"model", ToJson(spec.model)},
               {"data", ToJson(spec.data)},
               {"train",
                {{"steps", spec.train.steps},
                 {"batch", spec.train.batch},
                 {"microbatches", spec.train.microbatches},
                 {"seed", spec.train.seed},
                 {"optimizer", ToJson(spec.train.optimizer)},
                 {"lr_schedule", ToJson(spec.train.lr_schedule)},
                 {"clip_norm", spec.train.clip_norm},
                 {"non_finite", kNonFiniteNames[static_cast<int>(spec.train.non_finite)]}}},
               {"stages", CutAsWritten(spec)},
               {"schedule", ToJson(spec.schedule)},
               {"precision", PrecisionName(spec.precision)},
               {"kernels", KernelsName(spec.kernels)}};
  if (!spec.weights.empty()) json["weights"] = spec.weights;
  const auto* const exported = std::get_if<ExportedSpec>(&spec.model);
  if (exported != nullptr && !exported->plugins.empty()) json["plugins"] = ToJson(exported->plugins);
  if (spec.memory > 0) json["memory"] = spec.memory;
  if (spec.buffers.has_value()) json["buffers"] = ToJson(*spec.buffers);
  if (spec.separate_memory) json["separate_memory"] = true;
  if (spec.restarts != RunSpec().restarts) json["restarts"] = spec.restarts;
  if (spec.redundancy > 0) json["redundancy"] = {{"peers", spec.redundancy}};
  if (spec.job_timeout != JobTimeoutSpec()) {
    json["job_timeout"] = {{"times", spec.job_timeout.times},
                           {"at_least", spec.job_timeout.at_least},
                           {"first", spec.job_timeout.first}};
  }
  if (spec.replan.any()) json["replan"] = ToJson(spec.replan);
  if (spec.network.has_value()) json["network"] = ToJson(*spec.network);
  if (spec.checkpoint.none || spec.checkpoint.periodic()) json["checkpoint"] = ToJson(spec.checkpoint);
  if (spec.validate.any()) {
    json["validate"] = {{"data", SourceToJson(spec.validate.data)}, {"every", spec.validate.every}};
    if (spec.validate.samples > 0) json["validate"]["samples"] = spec.validate.samples;
  }
  if (spec.record_hashes) json["record"] = "hashes";
  if (!spec.resume.checkpoint.empty()) {
    json["resume"] = {{"checkpoint", spec.resume.checkpoint}, {"step", spec.resume.step}};
  } else if (spec.resume.copies) {
    json["resume"] = {{"copies", true}, {"step", spec.resume.step}};
  }
  if (spec.until > 0) json["until"] = spec.until;
  return json;
}

}  // namespace weft
