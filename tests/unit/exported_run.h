// Makes small exported models, and runs that train them, as their JSON.
#ifndef WEFT_TESTS_UNIT_EXPORTED_RUN_H_
#define WEFT_TESTS_UNIT_EXPORTED_RUN_H_

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace weft {

// Returns two layers: y = x W, and the mean of (y - target)^2.
inline nlohmann::json TwoLayers() {
  return nlohmann::json::parse(R"({
    "format": 2, "torch": "2.11.0", "aliases": {"c.weight": "a.weight"}, "unread": ["count"],
    "fields": [{"name": "odd", "type": "F32", "sizes": [3]}, {"name": "target", "type": "I64", "sizes": []}],
    "layers": [
      {"name": "first", "reads": {"layers": [], "fields": ["odd"]},
       "parameters": [{"name": "a.weight", "sizes": [2, 3]}], "statistics": [], "constants": [], "values": 3,
       "operations": [{"op": "aten::linear", "arguments": [{"value": 0}, {"value": 1}, null], "results": [2],
                       "place": "m.py:3"}],
       "output": {"value": 2, "sizes": [2], "of": "sample"},
       "costs": {"flops": 12, "activation_bytes": 8, "fixed_activation_bytes": 5, "work_bytes": 7}},
      {"name": "last", "reads": {"layers": [0], "fields": ["target"]},
       "parameters": [{"name": "b.weight", "sizes": [2]}], "statistics": [], "constants": [], "values": 5,
       "operations": [{"op": "aten::mul.Tensor", "arguments": [{"value": 0}, {"value": 2}], "results": [3]},
                      {"op": "aten::sum", "arguments": [{"value": 3}, {"type": "F32"}], "results": [4]}],
       "output": {"value": 4},
       "costs": {"flops": 2, "activation_bytes": 8, "fixed_activation_bytes": 0, "work_bytes": 0}}]})");
}

inline nlohmann::json RunOf(const nlohmann::json& graphs) {
  return {{"model", {{"exported", {{"folder", "/m.weft"}, {"graphs", graphs}}}}},
          {"data", {{"arrays", {{"odd", "/odd.npy"}, {"target", "/target.npy"}}}}},
          {"train", {{"steps", 2}, {"batch", 4}, {"microbatches", 2}}},
          {"stages", 2},
          {"schedule", "1f1b"}};
}

// Returns graphs with so much text that a specification holds them packed.
inline nlohmann::json LargeGraphs() {
  nlohmann::json graphs = TwoLayers();
  for (int i = 0; i < 60'000; ++i) graphs["unread"].push_back(absl::StrCat("blocks.", i, ".count"));
  return graphs;
}

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_EXPORTED_RUN_H_
