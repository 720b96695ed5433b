#include "client/planning/needed_memory.h"

#include <algorithm>
#include <cmath>

#include "client/planning/cut_moves.h"

namespace weft {
namespace {

constexpr int kHalvings = 12;
constexpr double kLess = 1 - 1.0 / (1 << kHalvings);

}  // namespace

std::optional<double> BytesNeeded(const PlanChoice& choice, double below, const PredictWithin& predict,
                                  const std::function<bool()>& stop) {
  if (below * kLess < 1) return std::nullopt;
  const auto unlimited = predict(choice, 0);
  if (!unlimited.ok() || unlimited->peak_bytes.empty()) return std::nullopt;
  const double peak = *std::max_element(unlimited->peak_bytes.begin(), unlimited->peak_bytes.end());
  double most = std::max(1.0, std::min(std::ceil(peak), std::floor(below * kLess)));
  // A limit may ask for more than what is used without one.
  for (int i = 0; stop() || !predict(choice, most).ok(); ++i) {
    if (stop() || i == 2 || 2 * most > below) return std::nullopt;
    most *= 2;
  }
  double less = 0;
  for (int i = 0; i < kHalvings && most - less > 1 && !stop(); ++i) {
    const double middle = std::ceil((less + most) / 2);
    if (middle == most) break;
    (predict(choice, middle).ok() ? most : less) = middle;
  }
  return most;
}

NeededMemory NeedLess(NeededMemory choice, const std::vector<std::string>& policies, double memory,
                      const PredictWithin& predict, const std::function<bool()>& stop) {
  const auto take = [&](const PlanChoice& changed) {
    if (stop()) return false;
    const auto bytes = BytesNeeded(changed, choice.bytes, predict, stop);
    if (!bytes.has_value()) return false;
    choice = {changed, *bytes};
    return true;
  };
  const auto change_policy = [&] {
    for (int s = 0; s < choice.choice.stages(); ++s) {
      if (ChangePolicy(choice.choice, s, policies, take)) return true;
    }
    return false;
  };
  while (choice.bytes > memory && !predict(choice.choice, memory).ok() &&
         (MoveLayer(choice.choice, take) || (policies.size() > 1 && change_policy()))) {
  }
  return choice;
}

}  // namespace weft
