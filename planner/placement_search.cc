#include "planner/placement_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "planner/pipedream.h"

namespace weft {
namespace {

bool FitsResident(const PlannedChain& chain, int64_t bytes) {
  return chain.memory == kUnlimitedBytes || bytes <= chain.memory;
}

// Tells whether a layer may open the rank: among unused ranks that are alike, the first one stands for all.
bool IsFirstOfItsKind(const PlannedChain& chain, const std::vector<int>& layers_on, int rank) {
  for (int other = 0; other < rank; ++other) {
    if (layers_on[other] == 0 && chain.AreAlike(other, rank)) return false;
  }
  return true;
}

// Lists the placements whose ranks have less to do than `below`, and whose resident bytes fit.
class PlacementList {
 public:
  PlacementList(const PlannedChain& chain, const PlacementSearchOptions& options, int64_t below)
      : chain_(chain),
        options_(options),
        below_(below),
        load_(chain.ranks, 0),
        resident_(chain.ranks, 0),
        layers_on_(chain.ranks, 0) {
    Extend(0);
  }

  bool complete() const { return complete_; }
  std::vector<Placement>& placements() { return placements_; }

 private:
  bool MayTake(int rank, int layer, int64_t work) const {
    if (layers_on_[rank] == 0 && !IsFirstOfItsKind(chain_, layers_on_, rank)) return false;
    if (options_.contiguous && layers_on_[rank] > 0 && placement_.back() != rank) return false;
    return load_[rank] + work < below_ &&
           FitsResident(chain_, resident_[rank] + chain_.layers[layer].resident);
  }

  // Puts the layer, and all behind it, on each of the ranks that may take it.
  void Extend(int layer) {
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
    for (int rank = 0; rank < chain_.ranks; ++rank) {
      const int64_t work = options_.batches * chain_.WorkOn(rank, layer);
      if (!MayTake(rank, layer, work)) continue;
      load_[rank] += work;
      resident_[rank] += chain_.layers[layer].resident;
      ++layers_on_[rank];
      placement_.push_back(rank);
      Extend(layer + 1);
      placement_.pop_back();
      --layers_on_[rank];
      load_[rank] -= work;
      resident_[rank] -= chain_.layers[layer].resident;
    }
  }

  const PlannedChain& chain_;
  const PlacementSearchOptions& options_;
  const int64_t below_;
  Placement placement_;
  std::vector<int64_t> load_, resident_;
  std::vector<int> layers_on_;
  std::vector<Placement> placements_;
  int64_t visited_ = 0;
  bool complete_ = true;
};

// Returns the placement with ranks that are alike in the order in which the layers meet them.
Placement Renumbered(const PlannedChain& chain, const Placement& placement) {
  std::vector<int> number(chain.ranks, -1), taken(chain.ranks, 0);
  Placement same;
  for (const int rank : placement) {
    for (int other = 0; number[rank] < 0; ++other) {
      if (taken[other] != 0 || !chain.AreAlike(other, rank)) continue;
      number[rank] = other;
      taken[other] = 1;
    }
    same.push_back(number[rank]);
  }
  return same;
}

bool IsContiguous(const Placement& placement) {
  std::set<int> left;
  for (size_t l = 1; l < placement.size(); ++l) {
    if (placement[l] == placement[l - 1]) continue;
    left.insert(placement[l - 1]);
    if (left.contains(placement[l])) return false;
  }
  return true;
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
      if (load[rank] + chain.WorkOn(rank, l) > capacity ||
          !FitsResident(chain, resident[rank] + chain.layers[l].resident)) {
        continue;
      }
      if (best < 0 || load[rank] > load[best]) best = rank;
    }
    if (best < 0) return std::nullopt;
    load[best] += chain.WorkOn(best, l);
    resident[best] += chain.layers[l].resident;
    placement[l] = best;
  }
  return Renumbered(chain, placement);
}

// Returns the bytes that the ranks lack together to work on one micro-batch at a time.
int64_t LackedBytes(const PlannedChain& chain, const Placement& placement) {
  const ChainPattern placed = PlaceChain(chain, placement, 1);
  int64_t lacked = 0;
  for (const int64_t bytes : LeastMemory(placed.problem)) {
    if (chain.memory != kUnlimitedBytes) lacked += std::max<int64_t>(0, bytes - chain.memory);
  }
  return lacked;
}

// Visits the placements that are one move away, until `visit` returns true: a layer on another rank, or two
// layers that change places.
template <typename Visit>
bool VisitNeighbours(const Placement& from, int ranks, const Visit& visit) {
  Placement to = from;
  for (size_t a = 0; a < from.size(); ++a) {
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == from[a]) continue;
      to[a] = rank;
      if (visit(to)) return true;
    }
    to[a] = from[a];
    for (size_t b = a + 1; b < from.size(); ++b) {
      if (from[a] == from[b]) continue;
      std::swap(to[a], to[b]);
      if (visit(to)) return true;
      std::swap(to[a], to[b]);
    }
  }
  return false;
}

// Returns the pattern of one micro-batch in a window of `batches`: each enters a period behind the one
// before.
PlacedPattern Repeated(const PlannedChain& chain, PlacedPattern single, int batches) {
  Pattern repeated{batches * single.pattern.period, {}};
  for (int b = 0; b < batches; ++b) {
    for (const int64_t start : single.pattern.starts)
      repeated.starts.push_back(start + b * single.pattern.period);
  }
  ChainPattern placed = PlaceChain(chain, single.placement, batches);
  return {std::move(single.placement), std::move(placed), std::move(repeated)};
}

class PlacementSearch {
 public:
  PlacementSearch(const PlannedChain& chain, const PlacementSearchOptions& options)
      : chain_(chain), options_(options) {}

  PlacementSearchResult Run() {
    BoundAll();
    if (options_.batches > 1) BeginWithSingle();
    const auto contiguous = FindContiguousPlan(chain_, /*replicated=*/false);
    if (contiguous.has_value()) Try(Renumbered(chain_, PlacementOf(*contiguous)));
    if (options_.contiguous) {
      const bool alike = chain_.speeds.empty() && chain_.node.empty();
      if (contiguous.has_value() && alike)
        RaiseBound(static_cast<int64_t>(contiguous->period) * options_.batches);
    } else {
      TryPacked();
    }
    if (!result_.proven()) Improve(/*by_two=*/false);  // the better the best, the fewer are listed
    if (!result_.proven()) TryAll();
    return std::move(result_);
  }

 private:
  int64_t best_period() const { return result_.best.has_value() ? result_.best->pattern.period : kNoPeriod; }
  void RaiseBound(int64_t period) { result_.lower_bound = std::max(result_.lower_bound, period); }

  // The ranks together do all of the work, and one of them the longest layer.
  void BoundAll() {
    int64_t sum = 0, longest = 1;
    double speed = 0, fastest = 0;
    for (int rank = 0; rank < chain_.ranks; ++rank) {
      speed += chain_.speeds.empty() ? 1 : chain_.speeds[rank];
      fastest = std::max(fastest, chain_.speeds.empty() ? 1 : chain_.speeds[rank]);
    }
    for (const ChainLayer& layer : chain_.layers) {
      sum += options_.batches * (layer.forward + layer.backward);
      longest = std::max(longest, options_.batches * (layer.forward + layer.backward));
    }
    constexpr double kRounding = 1e-6;  // of sums of speeds
    RaiseBound(static_cast<int64_t>(std::ceil(static_cast<double>(sum) / speed - kRounding)));
    RaiseBound(static_cast<int64_t>(std::ceil(static_cast<double>(longest) / fastest - kRounding)));
  }

  // Takes the best pattern of one micro-batch, in a window of as many as are wanted.
  void BeginWithSingle() {
    if (options_.stop_single()) return;
    PlacementSearchOptions single = options_;
    single.batches = 1;
    single.limits.stop = options_.stop_single;
    PlacementSearchResult found = PlacementSearch(chain_, single).Run();
    if (found.best.has_value()) result_.best = Repeated(chain_, *std::move(found.best), options_.batches);
  }

  // Looks for a better pattern with this placement. Returns a bound on its period; at most the best one.
  int64_t Try(const Placement& placement) { return Try(placement, options_.limits); }
  int64_t Try(const Placement& placement, const SearchLimits& limits) {
    int64_t& bound = bound_of_[placement];
    if (bound >= best_period()) return bound;
    ChainPattern placed = PlaceChain(chain_, placement, options_.batches);
    LeastPeriod found = FindLeastPeriod(placed.problem, limits, best_period());
    if (found.pattern.has_value()) result_.best = {placement, std::move(placed), *std::move(found.pattern)};
    return bound = std::max(bound, found.lower_bound);
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
    if (!list.complete() || options_.limits.stop()) {
      Improve(/*by_two=*/true);
      return;
    }
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
    RaiseBound(std::min(open, best_period()));
  }

  bool Allowed(const Placement& placement) const { return !options_.contiguous || IsContiguous(placement); }

  // Follows the moves that need fewer bytes, until one micro-batch at a time fits.
  void LookForOneThatFits(Placement from) {
    int64_t lacked = LackedBytes(chain_, from);
    while (lacked > 0 && !options_.limits.stop()) {
      Placement best = from;
      VisitNeighbours(from, chain_.ranks, [&](const Placement& to) {
        const int64_t bytes = Allowed(to) ? LackedBytes(chain_, to) : lacked;
        if (bytes < lacked) {
          lacked = bytes;
          best = to;
        }
        return options_.limits.stop();
      });
      if (best == from) return;
      from = best;
    }
    if (lacked == 0) Try(Renumbered(chain_, from));
  }

  // Moves layers to other ranks, and exchanges two, as long as that helps; one such move at a time, or two.
  void Improve(bool by_two) {
    if (!result_.best.has_value()) {
      Placement spread;
      const int ranks = std::min(chain_.ranks, chain_.size());
      for (int l = 0; l < chain_.size(); ++l) spread.push_back(l * ranks / chain_.size());
      LookForOneThatFits(spread);
    }
    for (bool better = result_.best.has_value(); better && !result_.proven() && !options_.limits.stop();) {
      const Placement from = result_.best->placement;
      const auto try_changed = [&](const Placement& to) { return TryChanged(to); };
      better = VisitNeighbours(from, chain_.ranks, try_changed);
      if (better || !by_two) continue;
      better = VisitNeighbours(from, chain_.ranks, [&](const Placement& via) {
        return VisitNeighbours(via, chain_.ranks, try_changed);
      });
    }
  }

  // Returns true if the placement is better than the best one, or there is no time for more.
  bool TryChanged(const Placement& changed) {
    if (options_.limits.stop()) return true;
    if (!Allowed(changed) || LoadOf(changed) >= best_period()) return false;
    const Placement placement = Renumbered(chain_, changed);
    if (bound_of_.contains(placement)) return false;
    if (LoadBound(PlaceChain(chain_, placement, options_.batches).problem) >= best_period()) return false;
    const int64_t before = best_period();
    // Among many moves, one that takes long to decide is not worth its time.
    constexpr int64_t kQuickNodes = 200;
    Try(placement, {std::min(options_.limits.nodes, kQuickNodes), options_.limits.stop});
    return best_period() < before;
  }

  // Returns the most that a rank has to do in a window; less than LoadBound, but quick.
  int64_t LoadOf(const Placement& placement) const {
    std::vector<int64_t> load(chain_.ranks, 0);
    for (int l = 0; l < chain_.size(); ++l) load[placement[l]] += chain_.WorkOn(placement[l], l);
    return options_.batches * *std::max_element(load.begin(), load.end());
  }

  const PlannedChain& chain_;
  const PlacementSearchOptions& options_;
  std::map<Placement, int64_t> bound_of_;  // of those that were tried: no pattern there is shorter
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
  for (const Placement& placement : list.placements()) {
    if (options.limits.stop()) break;
    consider(placement);
  }
  return least;
}

}  // namespace weft
