// Describes models as values: which built-in model, and its sizes, or an exported one.
//
// This file reads and writes a run file's `model`. model_layers.h says what the layers of a model are and
// cost. Pure. Failure: as file_section.h.
#ifndef WEFT_RUN_MODEL_SPEC_H_
#define WEFT_RUN_MODEL_SPEC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"
#include "run/exported_model.h"

namespace weft {

struct MlpSpec {
  int layers = 3;  // linear layers in all, the last one to the classes
  int width = 256;
  int inputs = 784;  // features of a sample
  int classes = 10;
  double dropout = 0;
  bool gelu_apart = false;  // makes each GELU, with its dropout, a layer of its own, which has no parameters
};
// Two encoders of linear layers and one head that reads both. With a stem, both encoders read its output;
// without one, each reads one half of the features.
struct TwoTowerSpec {
  int stem = 0;    // layers before the towers
  int layers = 2;  // layers of each tower
  int width = 256;
  int inputs = 784;
  int classes = 10;
  double dropout = 0;
};
struct GptSpec {
  int layers = 8;  // transformer blocks; embedding and head are further layers of the chain
  int width = 256;
  int heads = 4;
  int context = 128;     // tokens of a sample
  int vocabulary = 256;  // at least 256, so that bytes are tokens
  double dropout = 0;
  bool tanh_gelu = false;  // the GELU of the published GPT-2, by tanh; else by erf
  // True if the token embedding is the projection to the scores too. It is in a layer of its own, the first.
  bool tied = false;
  int embedding_layer() const { return tied ? 1 : 0; }
};
// A residual network over square images (arXiv 1512.03385; strides as torchvision has them). resnet.h has its
// blocks.
struct ResNetSpec {
  enum class Stem : uint8_t {
    kCifar,     // 3x3, keeps the image's size
    kImageNet,  // 7x7 with stride 2 and a maximum over 3x3 with stride 2
  };
  int depth = 18;  // 18, 34 or 50
  int width = 64;  // channels of the first blocks; every group of blocks doubles them
  int classes = 10;
  int channels = 3;  // channels of an image
  int size = 32;     // pixels of an image's side
  Stem stem = Stem::kCifar;
};
// A vision transformer over square images (arXiv 2010.11929); the defaults are ViT-B/16.
struct VitSpec {
  int layers = 12;  // transformer blocks; embedding and head are further layers of the chain
  int width = 768;
  int heads = 12;
  int patch = 16;  // pixels of a patch's side; divides size
  int classes = 1000;
  int channels = 3;  // channels of an image
  int size = 224;    // pixels of an image's side
  int patches() const { return (size / patch) * (size / patch); }
};
// A library of operations that an exported model calls, and the hash that its file must have.
struct PluginSpec {
  std::string library;
  std::string sha256;  // 64 hexadecimal digits, a-f
  bool operator==(const PluginSpec&) const = default;
};
// The user's own model, in the folder that weft.export wrote. A run file names the folder alone; the client
// puts the model's graphs beside it, so that only the weights are read from the folder later.
struct ExportedSpec {
  std::string folder;
  std::shared_ptr<const ExportedModel> model;
  std::shared_ptr<const nlohmann::json> source;  // the model as its file has it
  std::string initial;  // weights in the place of the exported ones (run_spec.h); "" for none
  std::vector<PluginSpec> plugins;
  std::string weights() const { return folder + "/weights.safetensors"; }
};
using ModelSpec = std::variant<MlpSpec, TwoTowerSpec, GptSpec, ResNetSpec, VitSpec, ExportedSpec>;

// Returns the name as in a run file: "mlp", "two_tower", "gpt", "resnet18", "resnet34", "resnet50",
// "vit_b16", "exported".
std::string ModelName(const ModelSpec& model);
// Returns true for a model that learns from text; the other built-in ones learn from labelled images.
bool LearnsFromText(const ModelSpec& model);

// Returns why the model cannot be evaluated; OK for one that can, as all built-in ones.
absl::Status CheckEvaluable(const ModelSpec& model);

// The shape of an image that a model reads.
struct ImageInputs {
  int64_t features = 0;  // numbers of an image
  int channels = 0;      // channels, and the side of an image; 0 where the model takes any shape
  int size = 0;
  int classes = 0;
};
// Returns the image that the model reads; every field is 0 for a model that reads none.
ImageInputs ImageInputsOf(const ModelSpec& model);

ModelSpec ReadModel(const nlohmann::json& value, const std::string& path, absl::Status& status);
nlohmann::json ToJson(const ModelSpec& model);

}  // namespace weft

#endif  // WEFT_RUN_MODEL_SPEC_H_
