#include "client/kubeflow/trainer_status.h"

#include <algorithm>
#include <climits>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

std::string Figure(double value) { return absl::StrFormat("%.9g", value); }

}  // namespace

std::string TrainerStatus(const ProgressState& state, double steps_per_second, absl::string_view time) {
  nlohmann::ordered_json status = nlohmann::ordered_json::object();
  if (state.steps > 0) status["progressPercentage"] = int64_t{100} * state.steps_done / state.steps;
  if (steps_per_second > 0) {
    const double remaining = std::ceil((state.steps - state.steps_done) / steps_per_second);
    status["estimatedRemainingSeconds"] = static_cast<int64_t>(std::min<double>(remaining, INT32_MAX));
  }
  auto metrics = nlohmann::ordered_json::array();
  const auto add = [&metrics](const std::string& name, const std::string& value) {
    metrics.push_back({{"name", name}, {"value", value}});
  };
  add("step", absl::StrCat(state.steps_done));
  add("steps", absl::StrCat(state.steps));
  if (state.has_loss) add("loss", Figure(state.loss));
  if (state.validation.has_value()) {
    add("validation_loss", Figure(state.validation->loss));
    for (const auto& [name, value] : state.validation->metrics)
      add(absl::StrCat("validation_", name), Figure(value));
  }
  status["metrics"] = std::move(metrics);
  status["lastUpdatedTime"] = time;
  return nlohmann::ordered_json{{"trainerStatus", std::move(status)}}.dump();
}

}  // namespace weft
