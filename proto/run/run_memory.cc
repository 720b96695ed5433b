#include "proto/run/run_memory.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "proto/run/file_section.h"
#include "proto/run/model_layers.h"
#include "proto/run/run_schedule.h"
#include "schedules/admission.h"
#include "schedules/graph.h"

namespace weft {
namespace {

constexpr int64_t kFloat = 4, kAlignment = 64;
constexpr int64_t kSmallTensors = 4096;     // scalars and the like
constexpr int64_t kParametersOfLayer = 12;  // at most, each aligned by itself

struct RankMemory {
  int64_t held = 0;  // weights, gradients, optimizer
  int64_t work = 0;
  int work_stage = 0;
};

// What does not come and go with micro-batches.
std::vector<RankMemory> CountRanks(const RunSpec& run, const Schedule& schedule,
                                   const std::vector<StageMemory>& stages) {
  const Graph graph(schedule);
  std::vector<RankMemory> ranks(schedule.ranks);
  const auto valid = [&](Rank rank) { return rank >= 0 && rank < schedule.ranks; };
  for (int s = 0; s < schedule.stages; ++s) {
    const int64_t parameters = stages[s].parameters;
    const bool travels = graph.gradient_travels(s);
    const int weights = travels || graph.has_reduce(s) ? 2 : 1;
    for (const Rank rank : graph.members(s)) {
      if (valid(rank)) ranks[rank].held += (weights + 1 + OptimizerBuffers(run.train.optimizer)) * parameters;
    }
    for (int b = 0; b < schedule.microbatches; ++b) {
      const Rank rank = schedule.compute(Job::Compute(0, s, b, graph.final_backward()));
      if (!valid(rank)) continue;
      if (travels) ranks[rank].held += parameters;
      if (stages[s].work > ranks[rank].work) {
        ranks[rank].work = stages[s].work;
        ranks[rank].work_stage = s;
      }
    }
  }
  return ranks;
}

}  // namespace

int OptimizerBuffers(const OptimizerSpec& optimizer) {
  if (const auto* sgd = std::get_if<SgdSpec>(&optimizer)) return sgd->momentum != 0 ? 1 : 0;
  return 2;
}

StageMemory CountStage(const RunSpec& run, int stage) {
  const std::vector<LayerCount> layers = CountLayers(run.model);
  int first = 0;
  for (int s = 0; s < stage; ++s) first += run.layers_of_stage[s];
  const int end = first + run.layers_of_stage[stage];
  const auto bytes_of = [&](int layer) {
    return kFloat * layers[layer].output_elements() * run.microbatch_samples() + kAlignment;
  };
  StageMemory memory;
  int64_t all = 0, output = 0;
  for (int l = first; l < end; ++l) {
    memory.parameters += kFloat * layers[l].parameters + kAlignment * kParametersOfLayer;
    all += layers[l].left_bytes * run.microbatch_samples() + layers[l].left_alignment;
    output = kFloat * layers[l].output_elements() * run.microbatch_samples();
  }
  const ActivationPolicy activations = ActivationsOf(run.schedule);
  const bool retained = activations == ActivationPolicy::kRetain;
  memory.left = retained ? all : (output + kAlignment - 1) / kAlignment * kAlignment;
  // A backward makes its parameters' gradient, that of its input, and gradients of activations: no more than
  // there are activations, at the end of the chain once more for the scores. Activations, and an input, that
  // are not there already come for the time of the job.
  const int64_t passes = 1 + (stage + 1 == run.stages() ? 1 : 0) + (retained ? 0 : 1);
  std::set<int> read;  // layers of other stages
  int64_t input = 0;
  for (int l = first; l < end; ++l) {
    for (const int from : layers[l].inputs) {
      if (from < first && read.insert(from).second) input += bytes_of(from);
    }
  }
  // Gradients of several consumers are summed into one more.
  int readers = 0;
  for (const LayerCount& layer : layers) {
    readers += std::count(layer.inputs.begin(), layer.inputs.end(), end - 1);
  }
  // The gradients that arrive at the parameters' places, and activations that were made again.
  memory.between = all + input + (activations == ActivationPolicy::kRecompute ? all : 0);
  memory.work = memory.parameters + passes * all + (retained ? 1 : 2) * input +
                (readers > 1 ? bytes_of(end - 1) : 0) + kSmallTensors;
  return memory;
}

absl::Status SetMemory(const RunSpec& run, Schedule* schedule) {
  if (run.memory == 0) return absl::OkStatus();
  std::vector<StageMemory> stages;
  ActivationMemory memory;
  for (int s = 0; s < run.stages(); ++s) {
    stages.push_back(CountStage(run, s));
    memory.left.push_back(stages.back().left + (schedule->split_backward ? stages.back().between : 0));
  }
  for (const RankMemory& rank : CountRanks(run, *schedule, stages)) {
    memory.budget.push_back(run.memory - rank.held - rank.work);
    if (memory.budget.back() >= 0) continue;
    return ErrorAt(
        "memory",
        absl::StrFormat("rank %d needs %d bytes for weights, gradients and optimizer, and %d while it works "
                        "on a micro-batch of stage %d; the budget is %d",
                        memory.budget.size() - 1, rank.held, rank.work, rank.work_stage, run.memory));
  }
  schedule->memory = std::move(memory);
  const absl::Status fits = CheckMemory(*schedule);
  return fits.ok() ? fits : ErrorAt("memory", fits.message());
}

}  // namespace weft
