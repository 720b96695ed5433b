// The built-in models as values: which one, and its sizes.
//
// Reading and writing of a run file's `model` are here; what the layers of a model are and cost is
// model_layers.h's. Pure. Failure: as file_section.h.
#ifndef WEFT_PROTO_RUN_MODEL_SPEC_H_
#define WEFT_PROTO_RUN_MODEL_SPEC_H_

#include <string>
#include <variant>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace weft {

struct MlpSpec {
  int layers = 3;  // linear layers in all, the last one to the classes
  int width = 256;
  int inputs = 784;  // features of a sample
  int classes = 10;
  double dropout = 0;
};
// Two encoders of linear layers into one head that reads both. With a stem both read its output; without,
// each reads one half of the features.
struct TwoTowerSpec {
  int stem = 0;    // layers before the towers
  int layers = 2;  // of each tower
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
  int vocabulary = 256;  // bytes
  double dropout = 0;
};
using ModelSpec = std::variant<MlpSpec, TwoTowerSpec, GptSpec>;

// "mlp", "two_tower", "gpt": as in a run file.
std::string ModelName(const ModelSpec& model);
// The kind of data that it learns from: "text" or "idx".
std::string DataOf(const ModelSpec& model);

ModelSpec ReadModel(const nlohmann::json& value, const std::string& path, absl::Status& status);
nlohmann::json ToJson(const ModelSpec& model);

}  // namespace weft

#endif  // WEFT_PROTO_RUN_MODEL_SPEC_H_
