#include "run/learning_rate.h"

#include <climits>
#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "run/file_section.h"

namespace weft {
namespace {

using Json = nlohmann::json;
using Decay = LearningRateSchedule::Decay;

// Names in the order of Decay.
constexpr const char* kNames[] = {"constant", "linear", "cosine", "step"};

double PeakOf(const OptimizerSpec& optimizer) {
  return std::visit([](const auto& o) { return o.lr; }, optimizer);
}

bool HasFloor(Decay decay) { return decay == Decay::kLinear || decay == Decay::kCosine; }

std::vector<std::string> KeysOf(Decay decay) {
  if (decay == Decay::kStep) return {"step_size", "gamma", "warmup"};
  if (HasFloor(decay)) return {"warmup", "min_lr"};
  return {"warmup"};
}

void ReadParameters(FileSection& section, const TrainSpec& train, LearningRateSchedule* schedule) {
  section.Read("warmup", schedule->warmup, 0, INT_MAX / 2);
  if (schedule->decay == Decay::kStep) {
    section.Require("step_size", "step_size: 30, the steps between two decays");
    section.Read("step_size", schedule->step_size, 1, INT_MAX / 2);
    section.Read("gamma", schedule->gamma, 0, 1);
  }
  if (!HasFloor(schedule->decay)) return;
  section.Read("min_lr", schedule->min_lr, 0, 1000);
  const double peak = PeakOf(train.optimizer);
  if (section.ok() && schedule->min_lr > peak) {
    section.Fail("min_lr", absl::StrCat("the rate falls from the optimizer's lr, ", Json(peak).dump(),
                                        ", to this value, so it must not be larger; it is ",
                                        Json(schedule->min_lr).dump()));
  }
}

}  // namespace

double LearningRateAt(const TrainSpec& train, int step) {
  const LearningRateSchedule& s = train.lr_schedule;
  const double peak = PeakOf(train.optimizer);
  if (step < s.warmup) return peak * (step + 1) / s.warmup;
  const int since = step - s.warmup;
  const double progress = static_cast<double>(since) / (train.steps - s.warmup);
  switch (s.decay) {
    case Decay::kConstant:
      break;
    case Decay::kLinear:
      return s.min_lr + (peak - s.min_lr) * (1 - progress);
    case Decay::kCosine:
      return s.min_lr + (peak - s.min_lr) * (1 + std::cos(M_PI * progress)) / 2;
    case Decay::kStep:
      return peak * std::pow(s.gamma, since / s.step_size);
  }
  return peak;
}

LearningRateSchedule ReadLearningRateSchedule(FileSection& train, const TrainSpec& spec,
                                              absl::Status& status) {
  LearningRateSchedule schedule;
  if (!train.Has("lr_schedule")) return schedule;
  const Choice choice =
      ReadChoice(train.At("lr_schedule"), train.PathOf("lr_schedule"),
                 {"learning-rate schedule", {"constant", "cosine", "linear", "step"}, {}}, status);
  for (int i = 0; i < 4; ++i) {
    if (choice.name == kNames[i]) schedule.decay = static_cast<Decay>(i);
  }
  FileSection section(choice.parameters, choice.path, KeysOf(schedule.decay), status);
  ReadParameters(section, spec, &schedule);
  return schedule;
}

Json ToJson(const LearningRateSchedule& schedule) {
  Json parameters = {{"warmup", schedule.warmup}};
  if (HasFloor(schedule.decay)) parameters["min_lr"] = schedule.min_lr;
  if (schedule.decay == Decay::kStep) {
    parameters["step_size"] = schedule.step_size;
    parameters["gamma"] = schedule.gamma;
  }
  return {{kNames[static_cast<int>(schedule.decay)], parameters}};
}

}  // namespace weft
