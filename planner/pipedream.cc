#include "planner/pipedream.h"

#include <algorithm>
#include <limits>

#include "base/require.h"

namespace weft {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class CutTable {
 public:
  CutTable(const PlannedChain& chain, bool replicated)
      : chain_(chain), replicated_(replicated), layers_(chain.size()), ranks_(chain.ranks) {
    work_.assign(layers_ + 1, 0);
    resident_.assign(layers_ + 1, 0);
    sync_.assign(layers_ + 1, 0);
    for (int l = 0; l < layers_; ++l) {
      const ChainLayer& layer = chain.layers[l];
      work_[l + 1] = work_[l] + layer.forward + layer.backward;
      resident_[l + 1] = resident_[l] + layer.resident;
      sync_[l + 1] = sync_[l] + layer.sync;
    }
  }

  std::optional<ContiguousPlan> Solve() {
    best_.assign((layers_ + 1) * (ranks_ + 1), {});
    for (int p = 0; p <= ranks_; ++p) At(0, p).period = 0;
    for (int end = 1; end <= layers_; ++end) {
      for (int p = 1; p <= ranks_; ++p) {
        if (!replicated_) At(end, p) = At(end, p - 1);  // where ranks differ, one may better have no stage
        for (int begin = 0; begin < end; ++begin) TryStage(begin, end, p);
      }
    }
    if (At(layers_, ranks_).period == kNever) return std::nullopt;
    return Trace();
  }

 private:
  // The best cut of the layers before one, on so many ranks: its last stage begins at `begin`.
  struct Best {
    double period = kNever;
    int begin = 0, replicas = 1;
    int rank = 0;  // its first
  };
  Best& At(int end, int ranks) { return best_[end * (ranks_ + 1) + ranks]; }

  // Returns what the transfers before a stage on `rank` take, whose input comes from rank `from`.
  double CutTicks(int begin, int from, int rank) const {
    if (begin == 0) return 0;
    const ChainLayer& layer = chain_.layers[begin - 1];
    const auto ticks =
        static_cast<double>(chain_.SameNode(from, rank) ? layer.transfer : layer.transfer_between);
    return chain_.links == LinkKind::kPairHalf ? 2 * ticks : ticks;
  }

  void TryStage(int begin, int end, int ranks) {
    if (chain_.memory != kUnlimitedBytes && resident_[end] - resident_[begin] > chain_.memory) return;
    const double speed = replicated_ || chain_.speeds.empty() ? 1 : chain_.speeds[ranks - 1];
    for (int m = 1; m <= (replicated_ ? ranks : 1); ++m) {
      const double sync =
          4.0 * (m - 1) / (static_cast<double>(m) * m) * static_cast<double>(sync_[end] - sync_[begin]);
      const double stage = static_cast<double>(work_[end] - work_[begin]) / m / speed + sync;
      const Best& before = At(begin, ranks - m);
      const double period = std::max({before.period, CutTicks(begin, before.rank, ranks - m) / m, stage});
      Best& best = At(end, ranks);
      if (period < best.period) best = {period, begin, m, ranks - m};
    }
  }

  ContiguousPlan Trace() {
    ContiguousPlan plan;
    plan.period = At(layers_, ranks_).period;
    int used = 0;
    for (int end = layers_, ranks = ranks_; end > 0;) {
      const Best& best = At(end, ranks);
      plan.stages.insert(plan.stages.begin(), {end - best.begin, best.replicas, best.rank});
      end = best.begin;
      ranks = best.rank;
      used += best.replicas;
    }
    const int first = plan.stages.front().replicas;
    plan.batches_in_flight = (used + first - 1) / first;
    return plan;
  }

  const PlannedChain& chain_;
  const bool replicated_;
  const int layers_, ranks_;
  std::vector<int64_t> work_, resident_, sync_;  // of the layers before one
  std::vector<Best> best_;
};

}  // namespace

std::optional<ContiguousPlan> FindContiguousPlan(const PlannedChain& chain, bool replicated) {
  return CutTable(chain, replicated).Solve();
}

Placement PlacementOf(const ContiguousPlan& plan) {
  Placement placement;
  for (const ContiguousStage& stage : plan.stages) {
    Require(stage.replicas == 1, "a placement has one rank for each stage");
    placement.insert(placement.end(), stage.layers, stage.rank);
  }
  return placement;
}

}  // namespace weft
