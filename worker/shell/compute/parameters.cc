#include "worker/shell/compute/parameters.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "run/model_layers.h"
#include "run/stage_cut.h"
#include "run/weight_decay.h"

namespace weft {
namespace {

// Fills the links of the stage to the others, and of its layers to one another.
void LinkLayers(const std::vector<LayerCount>& layers, const StageLinks& links, StageLayout* layout) {
  layout->first_layer = links.first_layer;
  layout->end_layer = links.end_layer;
  layout->reads_data = links.reads_data;
  layout->consumers = links.consumers;
  layout->output = layers[links.end_layer - 1].output;
  for (const int from : links.inputs) layout->inputs.push_back(layers[from].output);
  const int data = static_cast<int>(links.inputs.size()), own = data + 1 - links.first_layer;
  layout->last_reader.assign(own + links.end_layer, 0);
  for (int l = links.first_layer; l < links.end_layer; ++l) {
    std::vector<int>& reads = layout->reads.emplace_back();
    for (const int from : layers[l].inputs) {
      const auto input = std::lower_bound(links.inputs.begin(), links.inputs.end(), from);
      reads.push_back(from < links.first_layer ? static_cast<int>(input - links.inputs.begin()) : own + from);
    }
    if (layers[l].reads_data) reads.push_back(data);
    for (const int number : reads) layout->last_reader[number] = l - links.first_layer;
  }
}

enum class SlotKind : uint8_t { kDecays, kTrained, kStatistic };  // in the order of the flat buffer

SlotKind KindOf(const ParameterSlot& slot) {
  if (slot.parameter.kind == ParameterSpec::Kind::kStatistic) return SlotKind::kStatistic;
  return slot.decays ? SlotKind::kDecays : SlotKind::kTrained;
}

// Gives each slot its place in the flat buffer.
void PlaceSlots(StageLayout* layout) {
  constexpr int64_t kAlign = StageLayout::kAlignElements;
  for (const SlotKind kind : {SlotKind::kDecays, SlotKind::kTrained, SlotKind::kStatistic}) {
    if (kind != SlotKind::kStatistic) layout->no_decay_begin = layout->elements;
    layout->statistics_begin = layout->elements;
    for (ParameterSlot& slot : layout->slots) {
      if (KindOf(slot) != kind) continue;
      slot.offset = layout->elements;
      const float momentum = slot.parameter.momentum;
      const bool other = layout->momenta.empty() || layout->momenta.back().momentum != momentum;
      if (kind == SlotKind::kStatistic && other) layout->momenta.push_back({slot.offset, momentum});
      layout->elements += (slot.parameter.elements() + kAlign - 1) / kAlign * kAlign;
    }
  }
}

// Mixes with SplitMix64's finalizer: every input bit moves every output bit.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t Combine(uint64_t hash, uint64_t value) { return Mix(hash ^ Mix(value)); }

}  // namespace

StageLayout LayOutStage(const RunSpec& run, int stage) {
  const std::vector<LayerSpec> layers = DescribeLayers(run.model);
  StageLayout layout;
  layout.stage = stage;
  const std::vector<LayerCount> counts = CountLayers(run.model);
  LinkLayers(counts, LinkStages(counts, run.layers_of_stage).at(stage), &layout);
  const std::vector<std::string>& no_decay = NoDecayOf(run.train.optimizer);
  for (int l = layout.first_layer; l < layout.end_layer; ++l) {
    for (const ParameterSpec& p : layers.at(l).parameters) {
      ParameterSlot& slot = layout.slots.emplace_back(ParameterSlot{p, l, layers[l].name, 0});
      slot.decays = !FitsAny(NameInModel(layers[l].name, p), no_decay);
      if (run.weights.empty()) continue;
      slot.parameter.model_name = NameInModel(layers[l].name, p);
      slot.parameter.file = run.weights;
    }
  }
  PlaceSlots(&layout);
  return layout;
}

std::string CheckpointName(int stage, const ParameterSlot& slot) {
  return absl::StrCat(absl::StrFormat("stage%02d.", stage), NameInModel(slot.layer_name, slot.parameter));
}

uint64_t ParameterSeed(uint64_t seed, int layer, absl::string_view parameter) {
  uint64_t hash = Combine(Mix(seed), static_cast<uint64_t>(layer));
  for (char c : parameter) hash = Combine(hash, static_cast<unsigned char>(c));
  return hash;
}

uint64_t MaskSeed(uint64_t seed, int step, int microbatch, int layer, int site) {
  uint64_t hash = ~Mix(seed);
  for (int value : {step, microbatch, layer, site}) hash = Combine(hash, static_cast<uint64_t>(value));
  return hash;
}

}  // namespace weft
