#include "run/stage_cut.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// Returns, by layer, the last layer that reads it; the layer itself if none does.
std::vector<int> LastReaders(const std::vector<LayerCount>& layers) {
  std::vector<int> last(layers.size());
  for (size_t l = 0; l < layers.size(); ++l) {
    last[l] = static_cast<int>(l);
    for (const int input : layers[l].inputs) last[input] = static_cast<int>(l);
  }
  return last;
}

// The figures that decide between cuts whose largest part is equally small.
enum class EqualCuts { kEarliest, kMostEven };

// Cuts the layers into parts by dynamic programming.
class Cutter {
 public:
  Cutter(const std::vector<LayerCount>& layers, int stages)
      : count_(static_cast<int>(layers.size())),
        stages_(stages),
        before_(layers.size() + 1, 0),
        last_reader_(LastReaders(layers)) {
    for (int i = 0; i < count_; ++i) before_[i + 1] = before_[i] + layers[i].forward_flops;
  }

  // Returns the number of layers of each part; nothing if there is no such cut.
  std::vector<int> Run(EqualCuts equal) {
    const double largest = Search(kNone, 1, [](double part, double rest) { return std::max(part, rest); });
    if (largest == kNone) return {};
    // A smaller sum of squares means that no part is needlessly small.
    if (equal == EqualCuts::kMostEven)
      Search(largest, kLess, [](double part, double rest) { return part * part + rest; });
    std::vector<int> sizes;
    int begin = 0;
    for (int k = stages_; k >= 1; --k) {
      const int end = k == 1 ? count_ : cut_[k][begin];
      sizes.push_back(end - begin);
      begin = end;
    }
    return sizes;
  }

 private:
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  static constexpr double kLess = 1 - 1e-12;  // sums nearer than that differ by rounding

  double Part(int begin, int end) const { return before_[end] - before_[begin]; }

  // Returns the least cost of a cut whose parts are at most `most`, and keeps its places in cut_. `join`
  // gives the cost of a part together with that of the parts behind it. A cost is less than another one if it
  // is below `less` times that.
  template <typename Join>
  double Search(double most, double less, const Join& join) {
    // least[k][i]: the cost when layers [i, count) are cut into k parts at best; cut_[k][i]: where the first
    // of these parts ends, the earliest of equally good places.
    std::vector<std::vector<double>> least(stages_ + 1, std::vector<double>(count_ + 1, kNone));
    cut_.assign(stages_ + 1, std::vector<int>(count_ + 1, count_));
    for (int i = 0; i < count_; ++i) {
      if (Part(i, count_) <= most) least[1][i] = join(Part(i, count_), 0);
    }
    for (int k = 2; k <= stages_; ++k) {
      for (int i = 0; i + k <= count_; ++i) {
        int reach = i;  // last reader of the layers of the part except its last one
        for (int end = i + 1; end + k - 1 <= count_; reach = std::max(reach, last_reader_[end++ - 1])) {
          if (reach >= end || Part(i, end) > most) continue;
          const double cost = join(Part(i, end), least[k - 1][end]);
          if (cost >= least[k][i] * less) continue;
          least[k][i] = cost;
          cut_[k][i] = end;
        }
      }
    }
    return least[stages_][0];
  }

  const int count_, stages_;
  std::vector<double> before_;  // FLOPs of layers [0, i)
  const std::vector<int> last_reader_;
  std::vector<std::vector<int>> cut_;
};

}  // namespace

std::vector<int> CutStages(const std::vector<LayerCount>& layers, int stages) {
  if (stages < 1 || stages > static_cast<int>(layers.size()))
    std::abort();  // the caller checks and words the error for the user
  return Cutter(layers, stages).Run(EqualCuts::kEarliest);
}

int TiedLayers(const std::vector<LayerCount>& layers) {
  const int count = static_cast<int>(layers.size());
  int tied = 0;
  while (tied + 1 < count && !layers[tied].output.by_sample && !layers[tied].output.sizes.empty()) ++tied;
  return tied;
}

int MostStages(const std::vector<LayerCount>& layers) {
  return static_cast<int>(layers.size()) - TiedLayers(layers);
}

std::vector<int> StageCut::AsWritten() const {
  std::vector<int> written(layers_of_stage.begin() + tied_stages, layers_of_stage.end());
  if (!written.empty()) written[0] += tied_stages;
  return written;
}

StageCut WithTiedStages(const std::vector<LayerCount>& layers, std::vector<int> as_written) {
  const int tied = TiedLayers(layers);
  StageCut cut{std::move(as_written)};
  std::vector<int>& stages = cut.layers_of_stage;
  if (tied == 0 || stages.empty() || stages[0] <= tied || CheckCut(layers, stages).ok()) return cut;
  stages[0] -= tied;
  stages.insert(stages.begin(), tied, 1);
  cut.tied_stages = tied;
  return cut;
}

std::vector<LayerCount> JoinTiedLayers(const std::vector<LayerCount>& layers) {
  const int tied = TiedLayers(layers);
  std::vector<LayerCount> joined(layers.begin() + tied, layers.end());
  for (LayerCount& layer : joined) {
    std::vector<int> inputs;
    for (const int from : layer.inputs) {
      if (from >= tied) inputs.push_back(from - tied);
    }
    layer.inputs = std::move(inputs);
  }
  for (int l = 0; l < tied; ++l) joined[0].forward_flops += layers[l].forward_flops;
  return joined;
}

StageCut CutBesideTied(const std::vector<LayerCount>& layers, int stages) {
  if (stages < 1 || stages > MostStages(layers)) std::abort();
  const int tied = TiedLayers(layers);
  std::vector<int> cut =
      Cutter(JoinTiedLayers(layers), stages).Run(tied > 0 ? EqualCuts::kMostEven : EqualCuts::kEarliest);
  if (!cut.empty()) cut[0] += tied;
  return WithTiedStages(layers, std::move(cut));
}

absl::Status CheckCut(const std::vector<LayerCount>& layers, const std::vector<int>& layers_of_stage) {
  const std::vector<int> last_reader = LastReaders(layers);
  int begin = 0;
  for (size_t stage = 0; stage < layers_of_stage.size(); ++stage) {
    const int end = begin + layers_of_stage[stage];
    for (int l = begin; l + 1 < end; ++l) {
      if (last_reader[l] < end) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", stage, " ends with layer ", layers[end - 1].name, ", and ",
                       layers[last_reader[l]].name, " of a later stage reads ", layers[l].name,
                       " in its middle; cut so that other stages read only the last layer of a stage"));
    }
    begin = end;
  }
  return absl::OkStatus();
}

std::vector<StageLinks> LinkStages(const std::vector<LayerCount>& layers,
                                   const std::vector<int>& layers_of_stage) {
  std::vector<StageLinks> stages(layers_of_stage.size());
  std::vector<int> stage_of(layers.size());
  int layer = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    StageLinks& stage = stages[s];
    stage.first_layer = layer;
    stage.end_layer = layer + layers_of_stage[s];
    std::set<int> inputs;
    for (; layer < stage.end_layer; ++layer) {
      stage_of[layer] = static_cast<int>(s);
      stage.reads_data |= layers[layer].reads_data;
      for (const int from : layers[layer].inputs) {
        if (from < stage.first_layer) inputs.insert(from);
      }
    }
    stage.inputs.assign(inputs.begin(), inputs.end());
    for (const int from : inputs) ++stages[stage_of[from]].consumers;
  }
  return stages;
}

std::vector<std::vector<int>> StageInputs(const std::vector<LayerCount>& layers,
                                          const std::vector<int>& layers_of_stage) {
  const std::vector<StageLinks> stages = LinkStages(layers, layers_of_stage);
  std::vector<int> stage_of(layers.size());
  std::vector<std::vector<int>> inputs;
  bool chain = true;
  for (const StageLinks& stage : stages) {
    const int number = static_cast<int>(inputs.size());
    stage_of[stage.end_layer - 1] = number;
    std::vector<int>& of_stage = inputs.emplace_back();
    for (const int from : stage.inputs) of_stage.push_back(stage_of[from]);
    chain &= of_stage == (number == 0 ? std::vector<int>() : std::vector<int>{number - 1});
  }
  if (chain) inputs.clear();
  return inputs;
}

}  // namespace weft
