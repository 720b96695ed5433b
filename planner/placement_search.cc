#include "planner/placement_search.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "planner/pipedream.h"

namespace weft {
namespace {

// Lists the placements whose ranks have less to do than `below`, and whose resident bytes fit.
class PlacementList {
 public:
  PlacementList(const PlannedChain& chain, const PlacementSearchOptions& options, int64_t below)
      : chain_(chain), options_(options), below_(below), load_(chain.ranks, 0), resident_(chain.ranks, 0) {
    Extend(0, 0);
  }

  bool complete() const { return complete_; }
  std::vector<Placement>& placements() { return placements_; }

 private:
  // Puts the layer, and all behind it, on each of the ranks that have layers, or on the next one.
  void Extend(int layer, int used) {
    if (!complete_) return;
    if (layer == chain_.size()) {
      placements_.push_back(placement_);
      return;
    }
    constexpr int64_t kMaxVisited = 50'000'000;
    if (++visited_ > kMaxVisited || placements_.size() >= options_.listed ||
        (visited_ % 4096 == 0 && options_.limits.stop())) {
      complete_ = false;
      return;
    }
    const int64_t work = options_.batches * (chain_.layers[layer].forward + chain_.layers[layer].backward);
    const int first = options_.contiguous ? std::max(0, used - 1) : 0;
    for (int rank = first; rank < std::min(used + 1, chain_.ranks); ++rank) {
      const bool fits = chain_.memory == kUnlimitedBytes ||
                        resident_[rank] + chain_.layers[layer].resident <= chain_.memory;
      if (load_[rank] + work >= below_ || !fits) continue;
      load_[rank] += work;
      resident_[rank] += chain_.layers[layer].resident;
      placement_.push_back(rank);
      Extend(layer + 1, std::max(used, rank + 1));
      placement_.pop_back();
      load_[rank] -= work;
      resident_[rank] -= chain_.layers[layer].resident;
    }
  }

  const PlannedChain& chain_;
  const PlacementSearchOptions& options_;
  const int64_t below_;
  Placement placement_;
  std::vector<int64_t> load_, resident_;
  std::vector<Placement> placements_;
  int64_t visited_ = 0;
  bool complete_ = true;
};

// Returns the placement with its ranks numbered in the order in which the layers meet them.
Placement Renumbered(const Placement& placement) {
  std::vector<int> number(*std::max_element(placement.begin(), placement.end()) + 1, -1);
  int next = 0;
  Placement same;
  for (const int rank : placement) {
    if (number[rank] < 0) number[rank] = next++;
    same.push_back(number[rank]);
  }
  return same;
}

// Returns the placement that packs the longest layers first, each where it leaves the least room in
// `capacity` ticks; nothing if they do not fit.
std::optional<Placement> PackedByWork(const PlannedChain& chain, int64_t capacity) {
  std::vector<int> layers(chain.size());
  std::iota(layers.begin(), layers.end(), 0);
  const auto work = [&](int l) { return chain.layers[l].forward + chain.layers[l].backward; };
  std::stable_sort(layers.begin(), layers.end(), [&](int a, int b) { return work(a) > work(b); });
  std::vector<int64_t> load(chain.ranks, 0), resident(chain.ranks, 0);
  Placement placement(chain.size(), -1);
  for (const int l : layers) {
    int best = -1;
    for (int rank = 0; rank < chain.ranks; ++rank) {
      const bool fits =
          chain.memory == kUnlimitedBytes || resident[rank] + chain.layers[l].resident <= chain.memory;
      if (load[rank] + work(l) > capacity || !fits) continue;
      if (best < 0 || load[rank] > load[best]) best = rank;
    }
    if (best < 0) return std::nullopt;
    load[best] += work(l);
    resident[best] += chain.layers[l].resident;
    placement[l] = best;
  }
  return Renumbered(placement);
}

class PlacementSearch {
 public:
  PlacementSearch(const PlannedChain& chain, const PlacementSearchOptions& options)
      : chain_(chain), options_(options) {}

  PlacementSearchResult Run() {
    BoundAll();
    const auto contiguous = FindContiguousPlan(chain_, /*replicated=*/false);
    if (contiguous.has_value()) Try(PlacementOf(*contiguous));
    if (options_.contiguous) {
      if (contiguous.has_value()) RaiseBound(static_cast<int64_t>(contiguous->period) * options_.batches);
    } else {
      TryPacked();
    }
    if (!result_.proven()) TryAll();
    return std::move(result_);
  }

 private:
  int64_t best_period() const { return result_.best.has_value() ? result_.best->pattern.period : kNoPeriod; }
  void RaiseBound(int64_t period) { result_.lower_bound = std::max(result_.lower_bound, period); }

  // No rank may have less than its share of the work, and some rank has the longest layer.
  void BoundAll() {
    int64_t sum = 0, longest = 1;
    for (const ChainLayer& layer : chain_.layers) {
      sum += options_.batches * (layer.forward + layer.backward);
      longest = std::max(longest, options_.batches * (layer.forward + layer.backward));
    }
    RaiseBound(std::max((sum + chain_.ranks - 1) / chain_.ranks, longest));
  }

  // Looks for a better pattern with this placement. Returns a bound on its period; at most the best one.
  int64_t Try(const Placement& placement) {
    if (!tried_.insert(placement).second) return kNoPeriod;
    ChainPattern placed = PlaceChain(chain_, placement, options_.batches);
    LeastPeriod found = FindLeastPeriod(placed.problem, options_.limits, best_period());
    if (found.pattern.has_value()) result_.best = {placement, std::move(placed), *std::move(found.pattern)};
    return found.lower_bound;
  }

  // Bisects the capacity with which the layers can be packed.
  void TryPacked() {
    int64_t least = result_.lower_bound / options_.batches, most = 0;
    for (const ChainLayer& layer : chain_.layers) most += layer.forward + layer.backward;
    while (least <= most) {
      const int64_t capacity = least + (most - least) / 2;
      const auto placement = PackedByWork(chain_, capacity);
      if (placement.has_value()) {
        Try(*placement);
        most = capacity - 1;
      } else {
        least = capacity + 1;
      }
    }
  }

  void TryAll() {
    PlacementList list(chain_, options_, best_period());
    std::vector<std::pair<int64_t, Placement>> bounded;
    for (Placement& placement : list.placements()) {
      const int64_t bound = LoadBound(PlaceChain(chain_, placement, options_.batches).problem);
      bounded.emplace_back(bound, std::move(placement));
    }
    std::sort(bounded.begin(), bounded.end());
    int64_t open = kNoPeriod;  // the least bound of a placement that is not decided
    for (const auto& [bound, placement] : bounded) {
      if (bound >= best_period()) break;
      open = std::min(open, options_.limits.stop() ? bound : Try(placement));
    }
    if (list.complete()) {
      RaiseBound(std::min(open, best_period()));
    } else {
      Improve();
    }
  }

  // Moves single layers to other ranks, and exchanges two, as long as that helps.
  void Improve() {
    for (bool better = result_.best.has_value(); better && !result_.proven() && !options_.limits.stop();) {
      const int64_t before = best_period();
      const Placement from = result_.best->placement;
      for (int a = 0; a < chain_.size() && best_period() == before; ++a) {
        for (int rank = 0; rank < chain_.ranks && best_period() == before; ++rank) {
          Placement to = from;
          to[a] = rank;
          TryChanged(to);
        }
        for (int b = a + 1; b < chain_.size() && best_period() == before; ++b) {
          Placement to = from;
          std::swap(to[a], to[b]);
          TryChanged(to);
        }
      }
      better = best_period() < before;
    }
  }

  void TryChanged(const Placement& changed) {
    if (options_.limits.stop()) return;
    const Placement placement = Renumbered(changed);
    if (options_.contiguous && !std::is_sorted(placement.begin(), placement.end())) return;
    if (LoadBound(PlaceChain(chain_, placement, options_.batches).problem) < best_period()) Try(placement);
  }

  const PlannedChain& chain_;
  const PlacementSearchOptions& options_;
  std::set<Placement> tried_;
  PlacementSearchResult result_;
};

}  // namespace

PlacementSearchResult FindPlacement(const PlannedChain& chain, const PlacementSearchOptions& options) {
  return PlacementSearch(chain, options).Run();
}

int64_t LeastMemoryThatFits(const PlannedChain& chain, const PlacementSearchOptions& options) {
  PlannedChain unlimited = chain;
  unlimited.memory = kUnlimitedBytes;
  int64_t least = kUnlimitedBytes;
  const auto consider = [&](const Placement& placement) {
    const std::vector<int64_t> bytes = LeastMemory(PlaceChain(unlimited, placement, options.batches).problem);
    least = std::min(least, *std::max_element(bytes.begin(), bytes.end()));
  };
  if (const auto cut = FindContiguousPlan(unlimited, /*replicated=*/false); cut.has_value())
    consider(PlacementOf(*cut));
  PlacementList list(unlimited, options, kNoPeriod);
  for (const Placement& placement : list.placements()) consider(placement);
  return least;
}

}  // namespace weft
