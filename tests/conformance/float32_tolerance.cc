#include "tests/conformance/float32_tolerance.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/conformance/device_fixture.h"
#include "tests/conformance/exact_training.h"
#include "worker/shell/reference/reference.h"

namespace weft::testing {
namespace {

// A kink that is so near that a device passes it, each of them passes with a probability of about 1/2.
constexpr int kDisturbed = 16;

// The float32 tensors of a checkpoint, without the optimizer's state: those that it began with.
using Tensors = std::map<std::string, std::vector<uint8_t>>;
Trajectory::Weights WeightsOf(const Tensors& checkpoint, const Tensors& initial) {
  Trajectory::Weights weights;
  for (const auto& [name, unused] : initial) {
    const std::vector<uint8_t>& bytes = checkpoint.at(name);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    weights[name].assign(values.begin(), values.end());
  }
  return weights;
}

}  // namespace

RunSpec ToleranceRun(const std::string& model, const std::string& optimizer, const std::string& folder) {
  RunSpec run = SmallRun(model, optimizer, /*stages=*/2, folder);
  run.train.steps = model == "gpt" ? 6 : 4;
  // An error in the residual network grows tenfold a step at the other tests' rates, and soon tells nothing.
  if (model != "gpt") {
    std::visit([](auto& o) { o.lr /= 10; }, run.train.optimizer);
  }
  if (const char* seed = std::getenv("WEFT_TOLERANCE_SEED"); seed != nullptr) {
    run.train.seed = std::strtoull(seed, nullptr, 10);
  }
  return run;
}

const Truth& TruthOf(const std::string& model, const std::string& optimizer) {
  static auto* const made = new std::map<std::pair<std::string, std::string>, Truth>;
  const auto [entry, is_new] = made->try_emplace({model, optimizer});
  if (!is_new) return entry->second;
  TestFolder folder;
  const RunSpec run = ToleranceRun(model, optimizer, folder.path());
  Truth& truth = entry->second;
  truth.trajectory = TrainExactly(run);
  std::vector<Trajectory> disturbed;
  const double rho = RelativeRounding(LongestSum(run));
  for (uint64_t seed = 1; seed <= kDisturbed; ++seed) disturbed.push_back(TrainExactly(run, {rho, seed}));
  truth.tolerance = ToleranceOf(run, truth.trajectory, disturbed);
  return truth;
}

Trajectory TrainPlainly(const RunSpec& run, DeviceBackend* backend) {
  Trajectory trajectory;
  for (const int steps : {1, run.train.steps}) {
    TestFolder folder;
    RunSpec part = run;
    part.until = steps;
    trajectory.losses.clear();
    Require(RunReference(
        part, folder.path(),
        [&](const ReferenceStep& step) {
          trajectory.losses.push_back(step.loss);
          return true;
        },
        backend));
    const Tensors initial = ReadCheckpoint(absl::StrCat(folder.path(), "/checkpoint-0"));
    trajectory.weights[0] = WeightsOf(initial, initial);
    trajectory.weights[steps] =
        WeightsOf(ReadCheckpoint(absl::StrCat(folder.path(), "/checkpoint")), initial);
  }
  return trajectory;
}

Trajectory TrainByJobs(const RunSpec& run, Device& device) {
  const Outcome outcome = Train(device, run, {Arrangement::Kind::kPipeline});
  Trajectory trajectory;
  trajectory.losses = outcome.losses;
  trajectory.weights[0] = WeightsOf(outcome.initial, outcome.initial);
  trajectory.weights[run.train.steps] = WeightsOf(outcome.trained, outcome.initial);
  return trajectory;
}

Distance DistanceOf(const Trajectory& a, const Trajectory& b, const Tolerance& tolerance) {
  return {WorstLoss(a, b, tolerance), WorstWeights(a, b, tolerance)};
}

void Print(const std::string& what, const Distance& distance) {
  std::printf("%s: loss %.3g (%s), weights %.3g (%s) of the tolerance\n", what.c_str(), distance.loss.ratio,
              distance.loss.where.c_str(), distance.weights.ratio, distance.weights.where.c_str());
}

}  // namespace weft::testing
