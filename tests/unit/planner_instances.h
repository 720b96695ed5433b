// Makes the instances with published answers (Beaumont, Eyraud-Dubois, Shilova, HAL hal-02968802v1), for the
// planner's tests.
#ifndef WEFT_TESTS_UNIT_PLANNER_INSTANCES_H_
#define WEFT_TESTS_UNIT_PLANNER_INSTANCES_H_

#include <cstdint>
#include <vector>

#include "planner/chain.h"

namespace weft {

// Ticks of a unit of time: every period that is a sum of times over at most eight windows is a whole number.
inline constexpr int64_t kUnit = 840;

// Layers whose forward and backward take the same time and that keep `kept` bytes, without links.
inline PlannedChain KeptChain(const std::vector<int>& times, const std::vector<int>& kept, int ranks,
                              int64_t memory = kUnlimitedBytes) {
  PlannedChain chain;
  chain.ranks = ranks;
  chain.memory = memory;
  for (size_t l = 0; l < times.size(); ++l) {
    ChainLayer layer;
    layer.forward = layer.backward = times[l] * kUnit;
    layer.kept = kept[l];
    chain.layers.push_back(layer);
  }
  return chain;
}

// Layers in the published count: tensors[l] is the input of layer l, `loss` the last output, and a layer has
// three copies of its weights. `ticks_per_byte` on the links, which both directions share.
inline PlannedChain CountedChain(const std::vector<int>& times, const std::vector<int>& tensors,
                                 const std::vector<int>& weights, int loss, int ranks,
                                 int64_t ticks_per_byte) {
  PlannedChain chain;
  chain.ranks = ranks;
  chain.links = LinkKind::kPairHalf;
  chain.count = MemoryCount::kAllTensors;
  chain.input = tensors[0];
  for (size_t l = 0; l < times.size(); ++l) {
    ChainLayer layer;
    layer.forward = layer.backward = times[l] * kUnit;
    layer.resident = weights.empty() ? 0 : 3 * weights[l];
    layer.output = l + 1 < times.size() ? tensors[l + 1] : loss;
    layer.transfer = layer.output * ticks_per_byte;
    chain.layers.push_back(layer);
  }
  return chain;
}

// Layers of `work` ticks, forward and backward together, and `weights` bytes.
inline PlannedChain WorkChain(const std::vector<int>& work, const std::vector<int>& weights, int ranks,
                              int64_t memory = kUnlimitedBytes) {
  PlannedChain chain;
  chain.ranks = ranks;
  chain.memory = memory;
  for (size_t l = 0; l < work.size(); ++l) {
    ChainLayer layer;
    layer.forward = work[l];
    layer.resident = weights.empty() ? 0 : weights[l];
    chain.layers.push_back(layer);
  }
  return chain;
}

// The theorem's family: contiguous cuts take 2 - O(1/k) times as long as the best placement. A layer of the
// length 1 takes 2k + 1 ticks.
inline PlannedChain TheoremChain(int k) {
  const int unit = 2 * k + 1;
  std::vector<int> work;
  for (int i = 0; i < k; ++i) work.insert(work.end(), {k * unit, 1, (k - 1) * unit, 1});
  work.push_back(k * unit);
  work.insert(work.end(), (k - 2) * unit + 1, 1);
  work.push_back(unit);
  return WorkChain(work, {}, unit);
}

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_PLANNER_INSTANCES_H_
