#include "tests/conformance/rounding_bound.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "run/resnet.h"

namespace weft::testing {
namespace {

// Each of `samples` of a micro-batch.
int64_t LongestOf(const MlpSpec& m, int64_t samples) {
  return std::max<int64_t>({m.width, m.inputs, m.classes, samples});
}
int64_t LongestOf(const TwoTowerSpec& m, int64_t samples) {
  return std::max<int64_t>({m.width, m.inputs, m.classes, samples});
}
int64_t LongestOf(const GptSpec& m, int64_t samples) {
  return std::max<int64_t>({int64_t{4} * m.width, m.vocabulary, samples * m.context});
}
int64_t LongestOf(const VitSpec& m, int64_t samples) {
  return std::max<int64_t>({int64_t{4} * m.width, int64_t{m.channels} * m.patch * m.patch, m.classes,
                            samples * (m.patches() + 1)});
}
int64_t LongestOf(const NormedConvolution& c, int64_t samples) {
  return std::max(
      {c.in * c.kernel * c.kernel, c.out * c.kernel * c.kernel, samples * c.out_side * c.out_side});
}
int64_t LongestOf(const ResNetSpec& m, int64_t samples) {
  const ResNetPlan plan = PlanOf(m);
  int64_t longest = std::max<int64_t>({LongestOf(plan.stem, samples), plan.features, m.classes});
  for (const ResNetBlock& block : plan.blocks) {
    for (const NormedConvolution& c : block.path) longest = std::max(longest, LongestOf(c, samples));
    if (block.shortcut.has_value()) longest = std::max(longest, LongestOf(*block.shortcut, samples));
  }
  return longest;
}
// Sums of exported graphs are not counted: no bound is claimed for them.
int64_t LongestOf(const ExportedSpec&, int64_t) { std::abort(); }

double MeanMagnitude(const std::vector<double>& a) {
  return MeanDifference(a, std::vector<double>(a.size(), 0.0));
}

// Returns the ratio. A difference that is not a number is further off than any tolerance; a tolerance that is
// not finite is none.
double RatioOf(double difference, double tolerance) {
  const double ratio = difference / tolerance;
  return std::isfinite(tolerance) && !std::isnan(ratio) ? ratio : std::numeric_limits<double>::infinity();
}

void Keep(const Excess& candidate, Excess* worst) {
  if (candidate.ratio > worst->ratio) *worst = candidate;
}

}  // namespace

double MeanDifference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) std::abort();
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return sum / static_cast<double>(a.size());
}

int64_t LongestSum(const RunSpec& run) {
  const int64_t samples = run.microbatch_samples();
  return std::visit([&](const auto& model) { return LongestOf(model, samples); }, run.model) +
         run.train.microbatches;
}

double RelativeRounding(int64_t n) { return std::sqrt(static_cast<double>(n)) * kUnitRoundoff; }

Tolerance ToleranceOf(const RunSpec& run, const Trajectory& truth, const std::vector<Trajectory>& disturbed) {
  const double rho = RelativeRounding(LongestSum(run));
  Tolerance tolerance;
  for (size_t t = 0; t < truth.losses.size(); ++t) {
    double most = 0;
    for (const Trajectory& other : disturbed)
      most = std::max(most, std::abs(other.losses[t] - truth.losses[t]));
    tolerance.losses.push_back(kJumps * most + rho * std::abs(truth.losses[t]));
  }
  std::map<std::string, double> path;
  for (const auto& [t, weights] : truth.weights) {
    for (const auto& [name, values] : weights) {
      if (t > 0) path[name] += MeanDifference(values, truth.weights.at(t - 1).at(name));
      double most = 0;
      for (const Trajectory& other : disturbed)
        most = std::max(most, MeanDifference(other.weights.at(t).at(name), values));
      tolerance.weights[t][name] =
          kJumps * most +
          kUnitRoundoff * (kWeightRoundings * t * MeanMagnitude(values) + kChangeRoundings * path[name]);
    }
  }
  return tolerance;
}

Excess WorstLoss(const Trajectory& a, const Trajectory& b, const Tolerance& tolerance) {
  if (a.losses.size() != b.losses.size() || a.losses.size() > tolerance.losses.size()) std::abort();
  Excess worst;
  for (size_t t = 0; t < a.losses.size(); ++t) {
    Keep({RatioOf(std::abs(a.losses[t] - b.losses[t]), tolerance.losses[t]), absl::StrCat("step ", t)},
         &worst);
  }
  return worst;
}

Excess WorstWeights(const Trajectory& a, const Trajectory& b, const Tolerance& tolerance) {
  Excess worst;
  for (const auto& [t, weights] : a.weights) {
    const auto others = b.weights.find(t);
    if (t == 0 || others == b.weights.end()) continue;
    for (const auto& [name, values] : weights) {
      const double difference = MeanDifference(values, others->second.at(name));
      Keep({RatioOf(difference, tolerance.weights.at(t).at(name)), absl::StrCat(name, " after step ", t - 1)},
           &worst);
    }
  }
  return worst;
}

}  // namespace weft::testing
