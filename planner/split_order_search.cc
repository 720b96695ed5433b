#include "planner/split_order_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/splitmix64.h"
#include "planner/zero_bubble_order.h"

namespace weft {
namespace {

constexpr int64_t kTriesBetweenStops = 1024;
constexpr size_t kReach = 8;                                        // places by which a job moves at most
constexpr double kFirstTemperature = 0.2, kLastTemperature = 0.01;  // parts of the mean job
constexpr double kTotalWeight = 0.01;  // of the mean over the ranks, beside the period

struct RatedOrder {
  SplitOrder order;
  int64_t period = 0;
  double energy = 0;
};

class Annealing {
 public:
  Annealing(const SplitPipeline& pipeline, const SplitSearchLimits& limits)
      : pipeline_(pipeline),
        limits_(limits),
        ranks_(pipeline.stages.size()),
        jobs_(3 * pipeline.microbatches),
        least_(pipeline.MostWork()),
        clock_(pipeline) {}

  std::optional<SplitSearchResult> Run() {
    std::optional<RatedOrder> best;
    for (SplitOrder& order : ZeroBubbleOrders(pipeline_)) {
      const auto times = clock_.TimesOf(order);
      if (!times.has_value() || (best.has_value() && EnergyOf(*times) >= best->energy)) continue;
      best = {std::move(order), times->period, EnergyOf(*times)};
    }
    if (!best.has_value()) return std::nullopt;
    Anneal(&*best);
    Tighten(&*best);
    return SplitSearchResult{std::move(best->order), best->period, best->period == least_};
  }

 private:
  double EnergyOf(const SplitTimes& times) const {
    const double mean = static_cast<double>(times.total) / static_cast<double>(ranks_);
    return static_cast<double>(times.period) + kTotalWeight * mean;
  }

  // Returns a whole number below `end`, or one between 0 and 1.
  size_t Draw(size_t end) { return static_cast<size_t>(SplitMix64(0, drawn_++) % end); }
  double DrawPart() { return static_cast<double>(SplitMix64(0, drawn_++) >> 11) * 0x1p-53; }

  void Anneal(RatedOrder* best) {
    const double job = static_cast<double>(least_) / static_cast<double>(jobs_);
    RatedOrder now = *best;
    for (int64_t i = 0; i < limits_.moves && best->period > least_; ++i) {
      if (i % kTriesBetweenStops == 0 && limits_.stop()) return;
      const double done = static_cast<double>(i) / static_cast<double>(limits_.moves);
      const double temperature =
          job * kFirstTemperature * std::pow(kLastTemperature / kFirstTemperature, done);
      TryMove(temperature, &now);
      if (now.energy < best->energy) *best = now;
    }
  }

  // Moves each backward_weight before the jobs of other kinds that need not come first. It gives its bytes
  // back earlier, and finds more of them in the cache.
  void Tighten(RatedOrder* best) {
    for (size_t rank = 0; rank < ranks_; ++rank) {
      std::string& word = best->order[rank];
      for (size_t place = 1; place < word.size() && !limits_.stop(); ++place) {
        if (word[place] != 'W') continue;
        for (size_t at = place; at > 0 && word[at - 1] != 'W'; --at) {
          std::swap(word[at - 1], word[at]);
          const auto times = IsSound(pipeline_, rank, word) ? clock_.TimesOf(best->order) : std::nullopt;
          if (!times.has_value() || times->period > best->period) {
            std::swap(word[at - 1], word[at]);
            break;
          }
          best->period = times->period;
        }
      }
    }
  }

  void TryMove(double temperature, RatedOrder* now) {
    const size_t rank = Draw(ranks_);
    std::string& word = now->order[rank];
    before_ = word;
    MoveJob(&word);
    if (word == before_) return;
    if (IsSound(pipeline_, rank, word)) {
      const auto times = clock_.TimesOf(now->order);
      if (times.has_value() && DrawPart() < std::exp((now->energy - EnergyOf(*times)) / temperature)) {
        now->period = times->period;
        now->energy = EnergyOf(*times);
        return;
      }
    }
    word = before_;
  }

  // Puts a job of the word some places earlier, which is the same as some jobs one place later, or the
  // reverse.
  void MoveJob(std::string* word) {
    const size_t first = Draw(word->size());
    const size_t last = std::min(first + 1 + Draw(kReach), word->size() - 1);
    const auto begin = word->begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = word->begin() + static_cast<std::ptrdiff_t>(last) + 1;
    std::rotate(begin, Draw(2) == 0 ? begin + 1 : end - 1, end);
  }

  const SplitPipeline& pipeline_;
  const SplitSearchLimits& limits_;
  const size_t ranks_;
  const int64_t jobs_;   // of a rank
  const int64_t least_;  // no period is shorter
  SplitClock clock_;
  uint64_t drawn_ = 0;  // random numbers
  std::string before_;
};

}  // namespace

std::optional<SplitSearchResult> FindSplitOrder(const SplitPipeline& pipeline,
                                                const SplitSearchLimits& limits) {
  return Annealing(pipeline, limits).Run();
}

}  // namespace weft
