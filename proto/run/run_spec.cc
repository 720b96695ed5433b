#include "proto/run/run_spec.h"

#include <climits>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/run/byte_size.h"
#include "proto/run/file_section.h"
#include "proto/run/model_chain.h"
#include "proto/run/schedule_spec.h"

namespace weft {
namespace {

using Json = nlohmann::json;

// Bounds keep sizes far from overflow in every product that is formed of them (parameters, FLOPs, bytes).
constexpr int kLayersMost = 1000;
constexpr int kWidthMost = 65536;
constexpr int kBatchMost = 1 << 20;
constexpr int kMicrobatchesMost = 65536;

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

MlpSpec ReadMlp(const Choice& choice, absl::Status& status) {
  MlpSpec mlp;
  FileSection section(choice.parameters, choice.path, {"layers", "width", "inputs", "classes", "dropout"},
                      status);
  section.Read("layers", mlp.layers, 1, kLayersMost);
  section.Read("width", mlp.width, 1, kWidthMost);
  section.Read("inputs", mlp.inputs, 1, 1 << 24);
  section.Read("classes", mlp.classes, 2, kWidthMost);
  section.Read("dropout", mlp.dropout, 0, 1, /*below=*/true);
  return mlp;
}

GptSpec ReadGpt(const Choice& choice, absl::Status& status) {
  GptSpec gpt;
  FileSection section(choice.parameters, choice.path,
                      {"layers", "width", "heads", "context", "vocabulary", "dropout"}, status);
  section.Read("layers", gpt.layers, 1, kLayersMost);
  section.Read("width", gpt.width, 1, kWidthMost);
  section.Read("heads", gpt.heads, 1, kWidthMost);
  section.Read("context", gpt.context, 1, kWidthMost);
  section.Read("vocabulary", gpt.vocabulary, 256, kWidthMost);
  section.Read("dropout", gpt.dropout, 0, 1, /*below=*/true);
  if (section.ok() && gpt.width % gpt.heads != 0) {
    section.Fail("width", absl::StrCat(gpt.width, " is not divisible by heads ", gpt.heads,
                                       "; each head takes an equal share of the width"));
  }
  return gpt;
}

ModelSpec ReadModel(FileSection& file, absl::Status& status) {
  file.Require("model", "model: {gpt: {layers: 8, width: 256}}");
  const Choice choice = ReadChoice(
      file.At("model"), "model",
      {"model", {"gpt", "mlp"}, {"resnet18", "resnet34", "resnet50", "vit_b16", "torchscript"}, {}}, status);
  if (choice.name == "mlp") return ReadMlp(choice, status);
  return ReadGpt(choice, status);
}

DataSpec ReadData(FileSection& file, absl::Status& status) {
  file.Require("data", "data: {text: {path: input.txt}}");
  const Choice choice =
      ReadChoice(file.At("data"), "data", {"kind of data", {"text", "idx"}, {"cifar10"}, {"order"}}, status);
  DataSpec data;
  if (choice.name == "idx") {
    IdxData idx;
    FileSection section(choice.parameters, choice.path, {"images", "labels"}, status);
    section.Require("images", "images: train-images-idx3-ubyte");
    section.Require("labels", "labels: train-labels-idx1-ubyte");
    section.Read("images", idx.images);
    section.Read("labels", idx.labels);
    data.source = idx;
  } else {
    TextData text;
    FileSection section(choice.parameters, choice.path, {"path"}, status);
    section.Require("path", "path: input.txt");
    section.Read("path", text.path);
    data.source = text;
  }
  if (!status.ok() || !file.At("data").is_object()) return data;
  FileSection section(file.At("data"), "data", {choice.name, "order"}, status);
  section.Read("order", data.order);
  if (data.order != "sequential") section.Fail("order", "must be sequential; other orders are not built yet");
  return data;
}

void CheckModelAndData(const RunSpec& spec, absl::Status& status) {
  if (!status.ok()) return;
  const bool gpt = std::holds_alternative<GptSpec>(spec.model);
  const bool text = std::holds_alternative<TextData>(spec.data.source);
  if (gpt && !text)
    status = ErrorAt("data", "a gpt learns from text, not idx; write data: {text: {path: input.txt}}");
  if (!gpt && text) {
    status = ErrorAt(
        "data", "an mlp learns from labelled images, not text; write data: {idx: {images: .., labels: ..}}");
  }
}

OptimizerSpec ReadOptimizer(FileSection& train, absl::Status& status) {
  if (!train.Has("optimizer")) return SgdSpec();
  const Choice choice =
      ReadChoice(train.At("optimizer"), "train.optimizer", {"optimizer", {"adamw", "sgd"}, {}, {}}, status);
  if (choice.name == "sgd") {
    SgdSpec sgd;
    FileSection section(choice.parameters, choice.path, {"lr", "momentum", "weight_decay"}, status);
    section.Read("lr", sgd.lr, 0, 1000);
    section.Read("momentum", sgd.momentum, 0, 1, /*below=*/true);
    section.Read("weight_decay", sgd.weight_decay, 0, 1000);
    return sgd;
  }
  AdamWSpec adamw;
  FileSection section(choice.parameters, choice.path, {"lr", "beta1", "beta2", "eps", "weight_decay"},
                      status);
  section.Read("lr", adamw.lr, 0, 1000);
  section.Read("beta1", adamw.beta1, 0, 1, /*below=*/true);
  section.Read("beta2", adamw.beta2, 0, 1, /*below=*/true);
  section.Read("eps", adamw.eps, 0, 1);
  section.Read("weight_decay", adamw.weight_decay, 0, 1000);
  return adamw;
}

TrainSpec ReadTrain(FileSection& file, absl::Status& status) {
  file.Require("train", "train: {steps: 200, batch: 32, microbatches: 8}");
  TrainSpec train;
  FileSection section(file.At("train"), "train", {"steps", "batch", "microbatches", "seed", "optimizer"},
                      status);
  section.Require("steps", "steps: 200");
  section.Require("batch", "batch: 32");
  section.Read("steps", train.steps, 1, INT_MAX / 2);
  section.Read("batch", train.batch, 1, kBatchMost);
  section.Read("microbatches", train.microbatches, 1, kMicrobatchesMost);
  section.Read("seed", train.seed);
  train.optimizer = ReadOptimizer(section, status);
  if (status.ok() && train.batch % train.microbatches != 0) {
    section.Fail("batch", absl::StrCat("the batch of ", train.batch, " samples cannot be cut into ",
                                       train.microbatches,
                                       " equal micro-batches; make batch a multiple of microbatches"));
  }
  return train;
}

// "6 layers of the model (embedding, 4 blocks, head)"
std::string DescribeChain(const ModelSpec& model, size_t layers) {
  const auto* gpt = std::get_if<GptSpec>(&model);
  const std::string parts = gpt != nullptr ? absl::StrCat("embedding, ", gpt->layers,
                                                          gpt->layers == 1 ? " block, head" : " blocks, head")
                                           : absl::StrCat(layers, " linear");
  return absl::StrCat(layers, layers == 1 ? " layer" : " layers", " of the model (", parts, ")");
}

std::vector<int> CutEvenly(FileSection& file, const ModelSpec& model, const std::vector<LayerCount>& layers) {
  int stages = 1;
  if (!file.At("stages").is_number_integer()) {
    file.Fail("stages",
              absl::StrCat("must be a number of stages, or the list of the layers of each stage, not ",
                           TypeName(file.At("stages"))));
  }
  file.Read("stages", stages, 1, INT_MAX);
  if (!file.ok()) return {};
  if (static_cast<size_t>(stages) > layers.size()) {
    file.Fail("stages", absl::StrCat(stages, " is more than the ", DescribeChain(model, layers.size()),
                                     "; use at most ", layers.size()));
    return {};
  }
  return CutStages(layers, stages);
}

std::vector<int> ReadCut(const Json& list, const ModelSpec& model, size_t layers, absl::Status& status) {
  std::vector<int> cut;
  int64_t sum = 0;
  for (size_t s = 0; s < list.size(); ++s) {
    const Json& n = list[s];
    if (!n.is_number_integer() || n.get<int64_t>() < 1 || n.get<int64_t>() > kLayersMost + 2) {
      status = ErrorAt(absl::StrCat("stages[", s, "]"), absl::StrCat("must be the number of layers of stage ",
                                                                     s, ", a whole number from 1 up"));
      return {};
    }
    cut.push_back(n.get<int>());
    sum += cut.back();
  }
  if (static_cast<size_t>(sum) != layers) {
    status =
        ErrorAt("stages", absl::StrCat("the list [", absl::StrJoin(cut, ", "), "] places ", sum, " of the ",
                                       DescribeChain(model, layers), "; its numbers must sum to ", layers));
  }
  return cut;
}

std::vector<int> ReadStages(FileSection& file, const ModelSpec& model, absl::Status& status) {
  file.Require("stages", "stages: 4, or the layers of each stage, as stages: [3, 2, 3]");
  if (!status.ok()) return {};
  const std::vector<LayerCount> layers = CountLayers(model);
  const Json& stages = file.At("stages");
  if (stages.is_array()) return ReadCut(stages, model, layers.size(), status);
  return CutEvenly(file, model, layers);
}

int64_t ReadMemory(FileSection& file) {
  constexpr double kMemoryMost = 1e15;
  const Json& memory = file.At("memory");
  if (!file.ok() || memory.is_null()) return 0;
  const std::optional<double> bytes = memory.is_string()   ? ParseByteSize(memory.get<std::string>())
                                      : memory.is_number() ? std::optional(memory.get<double>())
                                                           : std::nullopt;
  if (!bytes.has_value() || !(*bytes >= 1 && *bytes <= kMemoryMost)) {
    file.Fail("memory", "must be a number of bytes from 1 to 1000TB, as 2GiB or 500MB");
    return 0;
  }
  return static_cast<int64_t>(*bytes);
}

Json ToJson(const ModelSpec& model) {
  if (const auto* mlp = std::get_if<MlpSpec>(&model)) {
    return {{"mlp",
             {{"layers", mlp->layers},
              {"width", mlp->width},
              {"inputs", mlp->inputs},
              {"classes", mlp->classes},
              {"dropout", mlp->dropout}}}};
  }
  const auto& gpt = std::get<GptSpec>(model);
  return {{"gpt",
           {{"layers", gpt.layers},
            {"width", gpt.width},
            {"heads", gpt.heads},
            {"context", gpt.context},
            {"vocabulary", gpt.vocabulary},
            {"dropout", gpt.dropout}}}};
}

Json ToJson(const DataSpec& data) {
  Json json = {{"order", data.order}};
  if (const auto* text = std::get_if<TextData>(&data.source)) {
    json["text"] = {{"path", text->path}};
  } else {
    const auto& idx = std::get<IdxData>(data.source);
    json["idx"] = {{"images", idx.images}, {"labels", idx.labels}};
  }
  return json;
}

Json ToJson(const OptimizerSpec& optimizer) {
  if (const auto* sgd = std::get_if<SgdSpec>(&optimizer)) {
    return {{"sgd", {{"lr", sgd->lr}, {"momentum", sgd->momentum}, {"weight_decay", sgd->weight_decay}}}};
  }
  const auto& adamw = std::get<AdamWSpec>(optimizer);
  return {{"adamw",
           {{"lr", adamw.lr},
            {"beta1", adamw.beta1},
            {"beta2", adamw.beta2},
            {"eps", adamw.eps},
            {"weight_decay", adamw.weight_decay}}}};
}

}  // namespace

absl::StatusOr<RunSpec> ParseRunSpec(const Json& json) {
  absl::Status status;
  RunSpec spec;
  FileSection file(json, "", {"name", "model", "data", "train", "stages", "schedule", "memory"}, status);
  spec.name = ReadName(file);
  spec.model = ReadModel(file, status);
  spec.data = ReadData(file, status);
  CheckModelAndData(spec, status);
  spec.train = ReadTrain(file, status);
  spec.layers_of_stage = ReadStages(file, spec.model, status);
  file.Require("schedule", "schedule: 1f1b");
  spec.schedule = ReadSchedule(file.At("schedule"), "schedule", status);
  spec.memory = ReadMemory(file);
  if (!status.ok()) return status;
  return spec;
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
                 {"optimizer", ToJson(spec.train.optimizer)}}},
               {"stages", spec.layers_of_stage},
               {"schedule", ToJson(spec.schedule)}};
  if (spec.memory > 0) json["memory"] = spec.memory;
  return json;
}

}  // namespace weft
