#include "proto/run/model_spec.h"

#include "absl/strings/str_cat.h"
#include "proto/run/file_section.h"

namespace weft {
namespace {

using Json = nlohmann::json;

// Bounds keep sizes far from overflow in every product that is formed of them (parameters, FLOPs, bytes).
constexpr int kLayersMost = 1000;
constexpr int kWidthMost = 65536;
constexpr int kInputsMost = 1 << 24;

// What models of linear layers on images have in common.
template <typename Spec>
void ReadLinear(FileSection& section, int inputs_least, Spec& spec) {
  section.Read("layers", spec.layers, 1, kLayersMost);
  section.Read("width", spec.width, 1, kWidthMost);
  section.Read("inputs", spec.inputs, inputs_least, kInputsMost);
  section.Read("classes", spec.classes, 2, kWidthMost);
  section.Read("dropout", spec.dropout, 0, 1, /*below=*/true);
}

MlpSpec ReadMlp(const Choice& choice, absl::Status& status) {
  MlpSpec mlp;
  FileSection section(choice.parameters, choice.path, {"layers", "width", "inputs", "classes", "dropout"},
                      status);
  ReadLinear(section, 1, mlp);
  return mlp;
}

TwoTowerSpec ReadTwoTower(const Choice& choice, absl::Status& status) {
  TwoTowerSpec model;
  FileSection section(choice.parameters, choice.path,
                      {"stem", "layers", "width", "inputs", "classes", "dropout"}, status);
  section.Read("stem", model.stem, 0, kLayersMost);
  ReadLinear(section, 2, model);
  if (section.ok() && model.stem == 0 && model.inputs % 2 != 0) {
    section.Fail("inputs",
                 absl::StrCat(model.inputs, " cannot be halved; without a stem each tower reads one half"));
  }
  return model;
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

Json Parameters(const MlpSpec& m) {
  return {{"layers", m.layers},
          {"width", m.width},
          {"inputs", m.inputs},
          {"classes", m.classes},
          {"dropout", m.dropout}};
}

Json Parameters(const TwoTowerSpec& m) {
  return {{"stem", m.stem},     {"layers", m.layers},   {"width", m.width},
          {"inputs", m.inputs}, {"classes", m.classes}, {"dropout", m.dropout}};
}

Json Parameters(const GptSpec& m) {
  return {{"layers", m.layers},   {"width", m.width},           {"heads", m.heads},
          {"context", m.context}, {"vocabulary", m.vocabulary}, {"dropout", m.dropout}};
}

}  // namespace

std::string ModelName(const ModelSpec& model) {
  if (std::holds_alternative<MlpSpec>(model)) return "mlp";
  return std::holds_alternative<TwoTowerSpec>(model) ? "two_tower" : "gpt";
}

std::string DataOf(const ModelSpec& model) { return std::holds_alternative<GptSpec>(model) ? "text" : "idx"; }

ModelSpec ReadModel(const Json& value, const std::string& path, absl::Status& status) {
  const Choice choice = ReadChoice(value, path,
                                   {"model",
                                    {"gpt", "mlp", "two_tower"},
                                    {"resnet18", "resnet34", "resnet50", "vit_b16", "torchscript"},
                                    {}},
                                   status);
  if (choice.name == "mlp") return ReadMlp(choice, status);
  if (choice.name == "two_tower") return ReadTwoTower(choice, status);
  return ReadGpt(choice, status);
}

Json ToJson(const ModelSpec& model) {
  return {{ModelName(model), std::visit([](const auto& m) { return Parameters(m); }, model)}};
}

}  // namespace weft
