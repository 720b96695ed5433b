// Trains a small run (run_files.h) by the real programs, and reads its results.
#ifndef WEFT_TESTS_PROCESS_TRAINED_RUN_H_
#define WEFT_TESTS_PROCESS_TRAINED_RUN_H_

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft {

// Loss and accuracy by step, of the lines of steps.jsonl that are validations.
using Validations = std::map<int, std::pair<double, double>>;

inline Validations ReadValidations(const std::string& out) {
  Validations validations;
  std::ifstream file(out + "/steps.jsonl");
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json step = nlohmann::json::parse(line);
    if (step.contains("validation_loss"))
      validations[step["step"]] = {step["validation_loss"], step["validation_accuracy"]};
  }
  return validations;
}

struct TrainedRun {
  CommandResult result;
  // If that is a success:
  std::map<std::string, std::string> weights;  // files of the checkpoint
  // Losses of each step, -1 where it is null; norms if the run takes them.
  std::vector<double> losses, norms;
  std::vector<int> skipped;  // steps
  Validations validations;
  nlohmann::json summary;
};

inline TrainedRun TrainSmallRun(const TestFolder& folder, const std::map<std::string, std::string>& changes,
                                const std::vector<std::string>& flags) {
  const std::string out = folder / "out";
  std::filesystem::remove_all(out);
  std::vector<std::string> words = {"weft", "train", WriteSmallRun(folder, changes)};
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), {"--out", out});
  TrainedRun run;
  run.result = Command::Run(words, 120);
  if (run.result.code != 0) return run;
  for (const auto& entry : std::filesystem::directory_iterator(out + "/checkpoint")) {
    if (entry.path().extension() == ".safetensors")
      run.weights[entry.path().filename()] = ReadWholeFile(entry.path());
  }
  std::ifstream file(out + "/steps.jsonl");
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json step = nlohmann::json::parse(line);
    if (step.contains("validation_loss")) continue;
    const auto number = [](const nlohmann::json& value) {
      return value.is_null() ? -1 : value.get<double>();
    };
    run.losses.push_back(number(step["loss"]));
    if (step.contains("gradient_norm")) run.norms.push_back(number(step["gradient_norm"]));
    if (step.value("skipped", false)) run.skipped.push_back(step["step"]);
  }
  run.validations = ReadValidations(out);
  run.summary = nlohmann::json::parse(ReadWholeFile(out + "/summary.json"));
  return run;
}

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_TRAINED_RUN_H_
