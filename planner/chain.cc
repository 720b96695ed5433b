#include "planner/chain.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/require.h"

namespace weft {
namespace {

// Makes the tasks and the holds of a placed chain, batch after batch.
class Placer {
 public:
  Placer(const PlannedChain& chain, const Placement& placement, int batches)
      : chain_(chain), placement_(placement), layers_(chain.size()) {
    placed_.problem.batches = batches;
    placed_.problem.resident.assign(chain.ranks, 0);
    placed_.problem.memory.assign(chain.ranks, chain.memory);
    for (int l = 0; l < layers_; ++l) placed_.problem.resident[placement[l]] += chain.layers[l].resident;
  }

  ChainPattern Place() {
    for (int batch = 0; batch < placed_.problem.batches; ++batch) {
      PlaceTasks(batch);
      for (int l = 0; l < layers_; ++l) {
        chain_.count == MemoryCount::kKeptActivations ? HoldActivation(l) : HoldTensors(l);
      }
    }
    if (chain_.count == MemoryCount::kAllTensors) AddBuffers();
    return std::move(placed_);
  }

 private:
  bool IsCut(int layer) const {  // behind it, the chain goes on on another rank
    return layer + 1 < layers_ && placement_[layer] != placement_[layer + 1];
  }
  int Forward(int layer) const { return placed_.forward[placed_.forward.size() - layers_ + layer]; }
  int Backward(int layer) const { return placed_.backward[placed_.backward.size() - layers_ + layer]; }

  int AddTask(std::string name, int64_t duration, std::vector<int> resources) {
    if (duration == 0) resources.clear();
    placed_.problem.tasks.push_back({std::move(name), duration, std::move(resources)});
    return static_cast<int>(placed_.problem.tasks.size()) - 1;
  }

  std::vector<int> LinkOf(int from, int to) const {
    int n = chain_.ranks, first = n;
    if (!chain_.SameNode(from, to)) {  // behind the links of ranks there are those of nodes
      first += 2 * n * n;
      from = chain_.node[from];
      to = chain_.node[to];
    }
    switch (chain_.links) {
      case LinkKind::kPairFull:
        return {first + from * n + to};
      case LinkKind::kPairHalf:
        return {first + std::min(from, to) * n + std::max(from, to)};
      case LinkKind::kPort:
        return {first + from, first + n + to};
    }
    return {};
  }

  // A transfer that takes no time is a lag of the task before it.
  void AddTransfer(int layer, bool forward, int batch) {
    const int here = placement_[layer], next = placement_[layer + 1];
    const bool inside = chain_.SameNode(here, next);
    const int64_t ticks = inside ? chain_.layers[layer].transfer : chain_.layers[layer].transfer_between;
    if (ticks > 0) {
      AddTask(absl::StrFormat("%s of layer %d, batch %d", forward ? "output" : "gradient", layer, batch),
              ticks, forward ? LinkOf(here, next) : LinkOf(next, here));
    }
    placed_.problem.tasks.back().lag = inside ? chain_.latency : chain_.latency_between;
  }

  void PlaceTasks(int batch) {
    placed_.backward.resize(placed_.backward.size() + layers_);
    for (int l = 0; l < layers_; ++l) {
      placed_.forward.push_back(AddTask(absl::StrFormat("forward of layer %d, batch %d", l, batch),
                                        chain_.TicksOn(placement_[l], chain_.layers[l].forward),
                                        {placement_[l]}));
      if (IsCut(l)) AddTransfer(l, /*forward=*/true, batch);
    }
    for (int l = layers_ - 1; l >= 0; --l) {
      if (IsCut(l)) AddTransfer(l, /*forward=*/false, batch);
      placed_.backward[placed_.backward.size() - layers_ + l] =
          AddTask(absl::StrFormat("backward of layer %d, batch %d", l, batch),
                  chain_.TicksOn(placement_[l], chain_.layers[l].backward), {placement_[l]});
    }
  }

  void Hold(int layer, int64_t bytes, int first, int last) {
    if (bytes > 0) placed_.problem.holds.push_back({placement_[layer], bytes, first, last});
  }

  // Copies from other ranks come with what the forward keeps: of its input, and of its output's gradient.
  void HoldActivation(int l) {
    int64_t bytes = chain_.layers[l].kept;
    if (l > 0 && IsCut(l - 1)) bytes += chain_.layers[l - 1].copied;
    if (IsCut(l)) bytes += chain_.layers[l].copied;
    Hold(l, bytes, Forward(l), Backward(l));
  }

  // Bytes that go to a task of the same rank are there from the start of the task that writes it to the end
  // of the last one that reads it. Bytes that go to another rank are there while their task runs, and their
  // buffer counts besides.
  void HoldTensors(int l) {
    const int64_t input = l == 0 ? chain_.input : chain_.layers[l - 1].output;
    const int64_t output = chain_.layers[l].output;
    if (l == 0 || IsCut(l - 1)) {
      Hold(l, input, Forward(l), Backward(l));
      Hold(l, input, Backward(l), Backward(l));  // the input's gradient, which goes away
    }
    if (l + 1 == layers_) {
      Hold(l, output, Forward(l), Backward(l));  // the loss's
    } else if (IsCut(l)) {
      Hold(l, output, Forward(l), Forward(l));
      Hold(l, output, Backward(l), Backward(l));
    } else {
      Hold(l, output, Forward(l), Backward(l + 1));
      Hold(l, output, Backward(l + 1), Backward(l));
    }
  }

  void AddBuffers() {
    for (int l = 0; l + 1 < layers_; ++l) {
      if (!IsCut(l)) continue;
      for (const int side : {l, l + 1})
        placed_.problem.resident[placement_[side]] += 2 * chain_.layers[l].output;
    }
  }

  const PlannedChain& chain_;
  const Placement& placement_;
  const int layers_;
  ChainPattern placed_;
};

}  // namespace

int64_t PlannedChain::TicksOn(int rank, int64_t ticks) const {
  if (speeds.empty() || speeds[rank] == 1) return ticks;
  return static_cast<int64_t>(std::ceil(static_cast<double>(ticks) / speeds[rank] - 1e-6));
}

absl::Status CheckChain(const PlannedChain& chain) {
  const auto of_ranks = [&](size_t size) { return size == 0 || size == static_cast<size_t>(chain.ranks); };
  const auto is_speed = [](double speed) {
    return speed >= kLeastPlannedSpeed && speed <= 1 / kLeastPlannedSpeed;
  };
  if (!of_ranks(chain.speeds.size()) || !of_ranks(chain.node.size()) ||
      !std::all_of(chain.speeds.begin(), chain.speeds.end(), is_speed)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "each of %d ranks has a speed of %g to %g and a node; there are %d speeds, and nodes for %d ranks",
        chain.ranks, kLeastPlannedSpeed, 1 / kLeastPlannedSpeed, chain.speeds.size(), chain.node.size()));
  }
  if (chain.layers.empty() || chain.ranks < 1 || chain.memory < 0 || chain.input < 0 || chain.latency < 0 ||
      chain.latency_between < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a plan needs layers and ranks, and no number below 0; there are %d layers and %d ranks",
        chain.layers.size(), chain.ranks));
  }
  for (int l = 0; l < chain.size(); ++l) {
    const ChainLayer& layer = chain.layers[l];
    const int64_t least = std::min({layer.forward, layer.backward, layer.kept, layer.resident, layer.output,
                                    layer.transfer, layer.transfer_between, layer.sync, layer.copied});
    if (least < 0) {
      return absl::InvalidArgumentError(absl::StrFormat("layer %d has a time or a size below 0", l));
    }
    const bool copies = layer.copied > 0 || (l > 0 && chain.layers[l - 1].copied > 0);
    const bool keeps = chain.count == MemoryCount::kKeptActivations ? layer.kept > 0 || copies
                                                                    : layer.output > 0 || chain.input > 0;
    if (keeps && (layer.forward == 0 || layer.backward == 0)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("layer %d keeps bytes from its forward to its backward; both must take time", l));
    }
  }
  return absl::OkStatus();
}

ChainPattern PlaceChain(const PlannedChain& chain, const Placement& placement, int batches) {
  Require(static_cast<int>(placement.size()) == chain.size() && batches >= 1, "each layer has a rank");
  return Placer(chain, placement, batches).Place();
}

}  // namespace weft
