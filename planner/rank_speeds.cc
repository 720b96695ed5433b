#include "planner/rank_speeds.h"

#include <algorithm>
#include <cmath>

namespace weft {
namespace {

constexpr int kMaxRounds = 2000;
constexpr double kStill = 1e-10;  // the fit has come to rest where no logarithm changes by more

// A sum of weighted values.
struct WeightedMean {
  double sum = 0, weight = 0;
  void Add(double value, double by) {
    sum += value * by;
    weight += by;
  }
};

// Puts the means where there are any, and returns the largest change.
double Take(const std::vector<WeightedMean>& means, std::vector<double>* values) {
  double change = 0;
  for (size_t i = 0; i < means.size(); ++i) {
    if (means[i].weight == 0) continue;
    const double mean = means[i].sum / means[i].weight;
    change = std::max(change, std::abs(mean - (*values)[i]));
    (*values)[i] = mean;
  }
  return change;
}

}  // namespace

// In logarithms the fit is linear: each round gives the costs their best values for these speeds, then the
// speeds theirs for these costs.
RankSpeeds FitRankSpeeds(const std::vector<TimedWork>& times, int ranks, int works,
                         const std::vector<double>& known) {
  std::vector<double> speeds(ranks), costs(works);  // logarithms
  const auto is_known = [&](size_t rank) { return rank < known.size() && known[rank] > 0; };
  for (size_t r = 0; r < speeds.size(); ++r) speeds[r] = is_known(r) ? std::log(known[r]) : 0;
  std::vector<bool> done(works);
  for (int round = 0; round < kMaxRounds; ++round) {
    std::vector<WeightedMean> of_work(works), of_rank(ranks);
    for (const TimedWork& t : times) {
      if (t.seconds > 0) of_work[t.work].Add(std::log(t.seconds) + speeds[t.rank], t.seconds * t.count);
    }
    Take(of_work, &costs);
    for (const TimedWork& t : times) {
      if (t.seconds > 0 && !is_known(t.rank))
        of_rank[t.rank].Add(costs[t.work] - std::log(t.seconds), t.seconds * t.count);
    }
    if (Take(of_rank, &speeds) < kStill) break;
  }
  RankSpeeds fit;
  for (const TimedWork& t : times) done[t.work] = done[t.work] || t.seconds > 0;
  for (const double log : speeds) fit.speeds.push_back(std::exp(log));
  for (int w = 0; w < works; ++w) fit.seconds.push_back(done[w] ? std::exp(costs[w]) : 0);
  return fit;
}

void ScaleToFastest(int ranks, RankSpeeds* fit) {
  if (ranks == 0) return;
  const double fastest = *std::max_element(fit->speeds.begin(), fit->speeds.begin() + ranks);
  for (double& speed : fit->speeds) speed /= fastest;
  for (double& seconds : fit->seconds) seconds /= fastest;
}

}  // namespace weft
