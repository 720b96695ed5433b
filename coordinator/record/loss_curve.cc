#include "coordinator/record/loss_curve.h"

#include <cerrno>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/durable_file.h"
#include "base/run_files.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

std::vector<LossPoint> Points(const std::map<int, double>& by_step) {
  std::vector<LossPoint> points;
  points.reserve(by_step.size());
  for (const auto& [step, loss] : by_step) points.push_back({step, loss});
  return points;
}

}  // namespace

LossCurve ParseLossCurve(absl::string_view lines) {
  std::map<int, double> training, validation;
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    const int step = json["step"];
    const auto take = [&](const char* key, std::map<int, double>* losses) {
      if (json.contains(key) && json[key].is_number()) (*losses)[step] = json[key];
    };
    take("loss", &training);
    take("validation_loss", &validation);
  }
  LossCurve curve;
  curve.training = Points(training);
  curve.validation = Points(validation);
  if (!curve.training.empty()) {
    const LossPoint &first = curve.training.front(), &last = curve.training.back();
    curve.subtitle =
        absl::StrFormat("steps %d to %d; loss %.4f to %.4f", first.step, last.step, first.loss, last.loss);
  }
  return curve;
}

absl::Status WriteLossPicture(const std::string& folder, const std::string& title) {
  const std::string path = folder + "/steps.jsonl";
  errno = 0;
  std::ifstream file = RunFileToRead(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot read ", path, ": ", RunFileError(errno)));
  LossCurve curve = ParseLossCurve(text.str());
  curve.title = title;
  return WriteWholeFile(folder + "/loss.svg", DrawLoss(curve));
}

}  // namespace weft
