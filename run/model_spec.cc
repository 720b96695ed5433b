#include "run/model_spec.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "run/exported_model_json.h"
#include "run/file_section.h"
#include "run/graphs_text.h"
#include "run/unknown_name.h"

namespace weft {
namespace {

using Json = nlohmann::json;

// Bounds that keep sizes far from overflow in every product of them (parameters, FLOPs, bytes).
constexpr int kMaxLayers = 1000;
constexpr int kMaxWidth = 65536;
constexpr int kMaxInputs = 1 << 24;
constexpr int kMaxChannels = 256;
constexpr int kMaxSize = 4096;  // pixels of an image's side

// Reads the keys that models of linear layers on images have in common.
template <typename Spec>
void ReadLinear(FileSection& section, int inputs_least, Spec& spec) {
  section.Read("layers", spec.layers, 1, kMaxLayers);
  section.Read("width", spec.width, 1, kMaxWidth);
  section.Read("inputs", spec.inputs, inputs_least, kMaxInputs);
  section.Read("classes", spec.classes, 2, kMaxWidth);
  section.Read("dropout", spec.dropout, 0, 1, /*below=*/true);
}

MlpSpec ReadMlp(const Choice& choice, absl::Status& status) {
  MlpSpec mlp;
  FileSection section(choice.parameters, choice.path,
                      {"layers", "width", "inputs", "classes", "dropout", "gelu"}, status);
  ReadLinear(section, 1, mlp);
  std::string gelu = "fused";
  section.Read("gelu", gelu);
  if (gelu != "fused" && gelu != "apart") section.Fail("gelu", UnknownName("gelu", gelu, {"fused", "apart"}));
  mlp.gelu_apart = gelu == "apart";
  return mlp;
}

TwoTowerSpec ReadTwoTower(const Choice& choice, absl::Status& status) {
  TwoTowerSpec model;
  FileSection section(choice.parameters, choice.path,
                      {"stem", "layers", "width", "inputs", "classes", "dropout"}, status);
  section.Read("stem", model.stem, 0, kMaxLayers);
  ReadLinear(section, 2, model);
  if (section.ok() && model.stem == 0 && model.inputs % 2 != 0) {
    section.Fail("inputs",
                 absl::StrCat(model.inputs, " cannot be halved; without a stem each tower reads one half"));
  }
  return model;
}

// The published sizes of GPT-2. Its head is tied to the embedding, and its GELU is by tanh; here keys beside
// the preset say so.
struct GptPreset {
  const char* name;
  int layers, width, heads;
};
constexpr GptPreset kGptPresets[] = {{"gpt2", 12, 768, 12},
                                     {"gpt2_medium", 24, 1024, 16},
                                     {"gpt2_large", 36, 1280, 20},
                                     {"gpt2_xl", 48, 1600, 25}};

// Sets the sizes, which keys beside the preset may then change.
void ReadPreset(FileSection& section, GptSpec& gpt) {
  if (!section.Has("preset")) return;
  std::string name;
  section.Read("preset", name);
  std::vector<std::string> names;
  for (const GptPreset& preset : kGptPresets) {
    names.emplace_back(preset.name);
    if (name != preset.name) continue;
    gpt.layers = preset.layers;
    gpt.width = preset.width;
    gpt.heads = preset.heads;
    gpt.context = 1024;
    gpt.vocabulary = 50257;
    return;
  }
  section.Fail("preset", UnknownName("preset", name, names));
}

GptSpec ReadGpt(const Choice& choice, absl::Status& status) {
  GptSpec gpt;
  FileSection section(
      choice.parameters, choice.path,
      {"preset", "layers", "width", "heads", "context", "vocabulary", "dropout", "gelu", "tied"}, status);
  ReadPreset(section, gpt);
  section.Read("layers", gpt.layers, 1, kMaxLayers);
  section.Read("width", gpt.width, 1, kMaxWidth);
  section.Read("heads", gpt.heads, 1, kMaxWidth);
  section.Read("context", gpt.context, 1, kMaxWidth);
  section.Read("vocabulary", gpt.vocabulary, 256, kMaxWidth);
  section.Read("dropout", gpt.dropout, 0, 1, /*below=*/true);
  std::string gelu = "erf";
  section.Read("gelu", gelu);
  if (gelu != "erf" && gelu != "tanh") section.Fail("gelu", UnknownName("gelu", gelu, {"erf", "tanh"}));
  gpt.tanh_gelu = gelu == "tanh";
  section.Read("tied", gpt.tied);
  if (section.ok() && gpt.width % gpt.heads != 0) {
    section.Fail("width", absl::StrCat(gpt.width, " is not divisible by heads ", gpt.heads,
                                       "; each head takes an equal share of the width"));
  }
  return gpt;
}

ResNetSpec ReadResNet(const Choice& choice, int depth, absl::Status& status) {
  ResNetSpec resnet;
  resnet.depth = depth;
  FileSection section(choice.parameters, choice.path, {"classes", "channels", "size", "stem", "width"},
                      status);
  section.Read("classes", resnet.classes, 2, kMaxWidth);
  section.Read("channels", resnet.channels, 1, kMaxChannels);
  section.Read("size", resnet.size, 1, kMaxSize);
  section.Read("width", resnet.width, 1, kMaxWidth / 32);
  std::string stem = "cifar";
  section.Read("stem", stem);
  if (stem != "cifar" && stem != "imagenet") {
    section.Fail("stem", UnknownName("stem", stem, {"cifar", "imagenet"}));
  }
  resnet.stem = stem == "imagenet" ? ResNetSpec::Stem::kImageNet : ResNetSpec::Stem::kCifar;
  return resnet;
}

VitSpec ReadVit(const Choice& choice, absl::Status& status) {
  VitSpec vit;
  FileSection section(choice.parameters, choice.path,
                      {"layers", "width", "heads", "patch", "classes", "channels", "size"}, status);
  section.Read("layers", vit.layers, 1, kMaxLayers);
  section.Read("width", vit.width, 1, kMaxWidth);
  section.Read("heads", vit.heads, 1, kMaxWidth);
  section.Read("patch", vit.patch, 1, kMaxSize);
  section.Read("classes", vit.classes, 2, kMaxWidth);
  section.Read("channels", vit.channels, 1, kMaxChannels);
  section.Read("size", vit.size, 1, kMaxSize);
  if (section.ok() && vit.width % vit.heads != 0) {
    section.Fail("width", absl::StrCat(vit.width, " is not divisible by heads ", vit.heads,
                                       "; each head takes an equal share of the width"));
  }
  if (section.ok() && vit.size % vit.patch != 0) {
    section.Fail("patch", absl::StrCat(vit.patch, " does not divide the image's size ", vit.size));
  }
  return vit;
}

ExportedSpec ReadExported(const Choice& choice, absl::Status& status) {
  ExportedSpec exported;
  if (choice.parameters.is_string() || !choice.parameters.contains("graphs")) {
    if (status.ok()) status = ErrorAt(choice.path, "must be the folder that weft.export wrote, read by weft");
    return exported;
  }
  FileSection section(choice.parameters, choice.path, {"folder", "graphs"}, status);
  section.Require("folder", "folder: mymodel.weft");
  section.Read("folder", exported.folder);
  if (!status.ok()) return exported;
  const absl::StatusOr<Json> unpacked = UnpackGraphs(section.At("graphs"));
  if (!unpacked.ok()) {
    status = ErrorAt(absl::StrCat(choice.path, ".graphs"), unpacked.status().message());
    return exported;
  }
  const Json& graphs = *unpacked;
  absl::StatusOr<std::shared_ptr<const ExportedModel>> model = ParseExportedModel(graphs);
  if (!model.ok()) {
    const bool narrow = graphs.is_object() && graphs.contains("precision") && graphs["precision"] == "bf16";
    status = ErrorAt(choice.path,
                     absl::StrCat(exported.folder, "/", GraphsFile(narrow), ": ", model.status().message()));
    return exported;
  }
  exported.model = *std::move(model);
  exported.source = std::make_shared<const Json>(graphs);
  return exported;
}

Json Parameters(const ExportedSpec& m) { return {{"folder", m.folder}, {"graphs", PackGraphs(*m.source)}}; }

Json Parameters(const ResNetSpec& m) {
  return {{"classes", m.classes},
          {"channels", m.channels},
          {"size", m.size},
          {"stem", m.stem == ResNetSpec::Stem::kCifar ? "cifar" : "imagenet"},
          {"width", m.width}};
}

Json Parameters(const VitSpec& m) {
  return {{"layers", m.layers},   {"width", m.width},       {"heads", m.heads}, {"patch", m.patch},
          {"classes", m.classes}, {"channels", m.channels}, {"size", m.size}};
}

Json Parameters(const MlpSpec& m) {
  return {{"layers", m.layers},   {"width", m.width},     {"inputs", m.inputs},
          {"classes", m.classes}, {"dropout", m.dropout}, {"gelu", m.gelu_apart ? "apart" : "fused"}};
}

Json Parameters(const TwoTowerSpec& m) {
  return {{"stem", m.stem},     {"layers", m.layers},   {"width", m.width},
          {"inputs", m.inputs}, {"classes", m.classes}, {"dropout", m.dropout}};
}

Json Parameters(const GptSpec& m) {
  Json json = {{"layers", m.layers},   {"width", m.width},           {"heads", m.heads},
               {"context", m.context}, {"vocabulary", m.vocabulary}, {"dropout", m.dropout}};
  if (m.tanh_gelu) json["gelu"] = "tanh";
  if (m.tied) json["tied"] = true;
  return json;
}

}  // namespace

std::string ModelName(const ModelSpec& model) {
  struct Name {
    std::string operator()(const MlpSpec&) const { return "mlp"; }
    std::string operator()(const TwoTowerSpec&) const { return "two_tower"; }
    std::string operator()(const GptSpec&) const { return "gpt"; }
    std::string operator()(const ResNetSpec& m) const { return absl::StrCat("resnet", m.depth); }
    std::string operator()(const VitSpec&) const { return "vit_b16"; }
    std::string operator()(const ExportedSpec&) const { return "exported"; }
  };
  return std::visit(Name(), model);
}

bool LearnsFromText(const ModelSpec& model) { return std::holds_alternative<GptSpec>(model); }

absl::Status CheckEvaluable(const ModelSpec& model) {
  const auto* exported = std::get_if<ExportedSpec>(&model);
  if (exported == nullptr || exported->model->evaluation != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the exported model ", exported->folder,
                   " has no graph of its evaluation: ", exported->model->no_evaluation));
}

ImageInputs ImageInputsOf(const ModelSpec& model) {
  struct Inputs {
    static ImageInputs Square(int channels, int size, int classes) {
      return {int64_t{channels} * size * size, channels, size, classes};
    }
    ImageInputs operator()(const MlpSpec& m) const { return {m.inputs, 0, 0, m.classes}; }
    ImageInputs operator()(const TwoTowerSpec& m) const { return {m.inputs, 0, 0, m.classes}; }
    ImageInputs operator()(const GptSpec&) const { return {}; }
    ImageInputs operator()(const ResNetSpec& m) const { return Square(m.channels, m.size, m.classes); }
    ImageInputs operator()(const VitSpec& m) const { return Square(m.channels, m.size, m.classes); }
    ImageInputs operator()(const ExportedSpec&) const { return {}; }
  };
  return std::visit(Inputs(), model);
}

ModelSpec ReadModel(const Json& value, const std::string& path, absl::Status& status) {
  const Choice choice = ReadChoice(
      value, path,
      {"model", {"gpt", "mlp", "two_tower", "resnet18", "resnet34", "resnet50", "vit_b16", "exported"}, {}},
      status);
  if (choice.name == "mlp") return ReadMlp(choice, status);
  if (choice.name == "two_tower") return ReadTwoTower(choice, status);
  for (const int depth : {18, 34, 50}) {
    if (choice.name == absl::StrCat("resnet", depth)) return ReadResNet(choice, depth, status);
  }
  if (choice.name == "exported") return ReadExported(choice, status);
  if (choice.name == "vit_b16") return ReadVit(choice, status);
  return ReadGpt(choice, status);
}

Json ToJson(const ModelSpec& model) {
  return {{ModelName(model), std::visit([](const auto& m) { return Parameters(m); }, model)}};
}

}  // namespace weft
