#include "worker/shell/offline_tasks.h"

#include <signal.h>

#include <fstream>
#include <iostream>
#include <sstream>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "run/run_text.h"
#include "worker/shell/exit_code.h"
#include "worker/shell/reference/evaluate.h"
#include "worker/shell/reference/generate.h"
#include "worker/shell/reference/reference.h"

namespace weft {
namespace {

volatile sig_atomic_t stop_reference = 0;

absl::StatusOr<RunSpec> ReadSpecification(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::stringstream text;
  text << file.rdbuf();
  return ParseRunText(text.str());
}

absl::StatusOr<GenerateRequest> ParseRequest(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  GenerateRequest request;
  try {
    request.prompt = json.at("prompt").get<std::vector<int64_t>>();
    request.tokens = json.at("tokens").get<int>();
    request.sampling.temperature = json.at("temperature").get<double>();
    request.sampling.top_k = json.at("top_k").get<int>();
    request.sampling.seed = json.at("seed").get<uint64_t>();
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("--request: ", e.what()));
  }
  if (!(request.sampling.temperature >= 0) || request.sampling.top_k < 0)
    return absl::InvalidArgumentError("--request: temperature and top_k must not be below 0");
  return request;
}

// Returns the code for a checkpoint that is damaged or cannot be opened: as bad a configuration as such data.
// Other tasks speak to a coordinator, which may be what is unavailable.
int CodeOfReading(const absl::Status& status) {
  const bool unreadable = absl::IsDataLoss(status) || absl::IsUnavailable(status);
  return unreadable ? kBadConfiguration : CodeOf(status);
}

}  // namespace

int CheckModel(const std::string& specification) {
  const absl::StatusOr<RunSpec> spec = ReadSpecification(specification);
  if (!spec.ok()) return Complain(spec.status(), kBadConfiguration);
  if (const absl::Status fits = CheckExportedModel(*spec); !fits.ok())
    std::cout << nlohmann::json{{"problem", fits.message()}}.dump() << std::endl;
  return kOk;
}

int TrainReference(const std::string& specification, const std::string& out, DeviceBackend* backend) {
  const absl::StatusOr<RunSpec> spec = ReadSpecification(specification);
  if (!spec.ok()) return Complain(spec.status(), kBadConfiguration);
  const auto print = [](const ReferenceStep& s) {
    nlohmann::json line = {{"step", s.step}, {"loss", s.loss}, {"seconds", s.seconds}};
    if (s.gradient_norm.has_value()) line["gradient_norm"] = *s.gradient_norm;
    if (s.skipped) line["skipped"] = true;
    std::cout << line.dump() << std::endl;
    return std::cout.good();
  };
  // A signal ends it after the step that it is in, with a checkpoint where it has a folder.
  if (!out.empty()) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, [](int) { stop_reference = 1; });
  }
  ReferenceCheckpoints checkpoints;
  checkpoints.stop = [] { return stop_reference != 0; };
  checkpoints.saved = [](int step, const std::string& failure) {
    nlohmann::json line = {{"checkpoint", step}};
    if (!failure.empty()) line["failure"] = failure;
    std::cout << line.dump() << std::endl;
  };
  checkpoints.validated = [](int step, const Evaluation& e) {
    const nlohmann::json line = {
        {"validation", step}, {"loss", e.loss()}, {"metrics", e.metrics()}, {"samples", e.samples}};
    std::cout << line.dump() << std::endl;
  };
  checkpoints.hashed = [](const JobHashes& job) { std::cout << HashLine(job) << "\n"; };
  const absl::Status status = RunReference(*spec, out, print, backend, checkpoints);
  if (absl::IsCancelled(status)) return Complain(status, kInterrupted);
  return status.ok() ? kOk : Complain(status, CodeOf(status));
}

int EvaluateCheckpoint(const std::string& specification, const std::string& checkpoint, int64_t samples,
                       DeviceBackend* backend) {
  const absl::StatusOr<RunSpec> spec = ReadSpecification(specification);
  if (!spec.ok()) return Complain(spec.status(), kBadConfiguration);
  const auto print = [](const Evaluation& e) {
    nlohmann::json line = {{"samples", e.samples},
                           {"all_samples", e.all_samples},
                           {"loss", e.loss()},
                           {"metrics", e.metrics()},
                           {"version", e.version}};
    if (e.predictions > 0) line.update({{"predictions", e.predictions}, {"correct", e.correct}});
    std::cout << line.dump() << std::endl;
    return std::cout.good();
  };
  const absl::StatusOr<Evaluation> result = Evaluate(*spec, checkpoint, print, backend, samples);
  if (result.ok()) return kOk;
  return Complain(result.status(), CodeOfReading(result.status()));
}

int GenerateText(const std::string& specification, const std::string& checkpoint,
                 const std::string& request_json, DeviceBackend* backend) {
  const absl::StatusOr<RunSpec> spec = ReadSpecification(specification);
  if (!spec.ok()) return Complain(spec.status(), kBadConfiguration);
  const absl::StatusOr<GenerateRequest> request = ParseRequest(request_json);
  if (!request.ok()) return Complain(request.status(), kUsage);
  const auto print = [](int64_t token) {
    std::cout << "{\"token\":" << token << "}" << std::endl;
    return std::cout.good();
  };
  const absl::Status status = Generate(*spec, checkpoint, *request, print, backend);
  if (status.ok()) return kOk;
  return Complain(status, CodeOfReading(status));
}

}  // namespace weft
