#include "run/measured_buffers.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "run/file_section.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr int kMaxSamples = 1 << 20;

// Reads a number of bytes.
int64_t ReadBytes(FileSection& section, const char* name) {
  double bytes = 0;
  section.Read(name, bytes, 0, kMaxBufferBytes);
  return WholeBytes(bytes);
}

}  // namespace

int64_t WholeBytes(double bytes) { return static_cast<int64_t>(std::ceil(bytes)); }

MeasuredBuffers ReadMeasuredBuffers(const Json& value, size_t layers, absl::Status& status) {
  MeasuredBuffers buffers;
  FileSection section(value, "buffers", {"samples", "standing", "layers"}, status);
  section.Require("samples", "samples: 4");
  section.Require("layers", "the profile's file: buffers: profile.json");
  section.Read("samples", buffers.samples, 1, kMaxSamples);
  buffers.standing = ReadBytes(section, "standing");
  if (!status.ok()) return buffers;
  const Json& list = section.At("layers");
  if (!list.is_array() || list.size() != layers) {
    status = ErrorAt("buffers.layers", absl::StrCat("must have the figures of the model's ", layers,
                                                    " layers; measure them with weft profile"));
    return buffers;
  }
  std::vector<std::string> names;
  for (const LayerBuffersField& field : kLayerBuffersFields) names.emplace_back(field.name);
  for (size_t l = 0; l < list.size() && status.ok(); ++l) {
    FileSection of_layer(list[l], absl::StrCat("buffers.layers[", l, "]"), names, status);
    LayerBuffers& layer = buffers.layers.emplace_back();
    for (const LayerBuffersField& field : kLayerBuffersFields) {
      of_layer.Require(field.name, absl::StrCat(field.name, ": 4096"));
      layer.*field.bytes = ReadBytes(of_layer, field.name);
    }
  }
  return buffers;
}

Json ToJson(const MeasuredBuffers& buffers) {
  Json layers = Json::array();
  for (const LayerBuffers& layer : buffers.layers) {
    Json of_layer = Json::object();
    for (const LayerBuffersField& field : kLayerBuffersFields) of_layer[field.name] = layer.*field.bytes;
    layers.push_back(std::move(of_layer));
  }
  return {{"samples", buffers.samples}, {"standing", buffers.standing}, {"layers", std::move(layers)}};
}

}  // namespace weft
