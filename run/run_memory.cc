#include "run/run_memory.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "run/file_section.h"
#include "run/model_layers.h"
#include "run/run_schedule.h"
#include "run/stage_cut.h"
#include "schedules/byte_text.h"
#include "schedules/dispatch/admission.h"
#include "schedules/dispatch/kept_stages.h"
#include "schedules/graph/graph.h"
#include "schedules/sync/catalogue.h"

namespace weft {
namespace {

constexpr int64_t kFloat = 4, kAlignment = 64;
constexpr int64_t kSmallTensors = 4096;     // scalars and the like
constexpr int64_t kParametersOfLayer = 20;  // the most tensors of a layer; each is aligned by itself

// Returns the bytes of what a holder keeps of a stage, or a rank of a state that visits it.
int64_t BytesOf(const Kept& kept, const RunSpec& run, const StageMemory& stage) {
  const int64_t parameters = stage.parameters;
  const bool sliced = kept.parts > 1;
  const int64_t part = sliced ? (parameters + kept.parts - 1) / kept.parts + kAlignment : parameters;
  const int versions = kept.versions + kept.leaving;
  const int optimizer = kept.optimizer ? OptimizerBuffers(run.train.optimizer) : 0;
  const int sums = (kept.sums + kept.parts_of_sum - 1) / kept.parts_of_sum;
  return (versions + optimizer) * part + sums * (kept.whole_sums ? parameters : part) +
         // A slice is gathered before anything computes with it.
         (sliced ? 0 : versions * stage.narrowed);
}

// Returns the bytes that do not come and go with micro-batches. A rank may have each migrating state once:
// there while it computes, and put together for the next rank of its route until that rank fetches it. While
// one state leaves, it is there twice.
int64_t HeldBytes(const std::vector<KeptOfStage>& kept, const RunSpec& run,
                  const std::vector<StageMemory>& stages, bool migrating) {
  int64_t held = 0, twice = 0;
  for (const KeptOfStage& stage : kept) {
    const StageMemory& bytes = stages[stage.stage];
    held += stage.handed_out * bytes.parameters;
    if (!stage.kept.has_value()) continue;
    const int64_t state = BytesOf(*stage.kept, run, bytes) + (migrating ? kSmallTensors : 0);
    held += state;
    if (stage.goes_on) twice = std::max(twice, state);
  }
  return held + twice;
}

// Adds what jobs take while they run.
void CountWork(const Graph& graph, const std::vector<StageMemory>& stages, std::vector<RankMemory>* ranks) {
  const Schedule& schedule = graph.schedule();
  std::vector<int64_t> overlapped(schedule.ranks, 0);
  int64_t largest = 0;
  for (const StageMemory& stage : stages) largest = std::max(largest, stage.parameters);
  for (int s = 0; s < schedule.stages; ++s) {
    const bool sliced = graph.protocol(s).layout() == Layout::kSliced && graph.members(s).size() > 1;
    // The slices are put together; where a joint operation does that, the next job's lie beside them.
    const int64_t work =
        stages[s].work + (sliced ? stages[s].parameters : 0) + (graph.joint_order().gathers() ? largest : 0);
    for (int step = 0; step < schedule.period; ++step) {
      for (int b = 0; b < schedule.microbatches; ++b) {
        const Rank rank = schedule.compute(Job::Compute(step, s, b, graph.final_backward()));
        if (rank < 0 || rank >= schedule.ranks) continue;
        if (graph.has_pairs()) overlapped[rank] = std::max(overlapped[rank], stages[s].forward_work);
        RankMemory& memory = (*ranks)[rank];
        if (work > memory.work) {
          memory.work = work;
          memory.work_stage = s;
        }
      }
    }
  }
  for (Rank rank = 0; rank < schedule.ranks; ++rank) (*ranks)[rank].work += overlapped[rank];
}

std::vector<RankMemory> CountRanks(const RunSpec& run, const RunSchedule& schedule,
                                   const std::vector<StageMemory>& stages) {
  const Graph graph(schedule);
  std::vector<RankMemory> ranks(graph.schedule().ranks);
  const std::vector<std::vector<KeptOfStage>> kept = KeptByRanks(graph, run.train.steps);
  const bool migrating = graph.protocol(0).layout() == Layout::kTravelling;
  for (Rank rank = 0; rank < graph.schedule().ranks; ++rank) {
    ranks[rank].held = HeldBytes(kept[rank], run, stages, migrating);
  }
  CountWork(graph, stages, &ranks);
  return ranks;
}

StageMemory CountLinkedStage(const RunSpec& run, const std::vector<LayerCount>& layers,
                             const StageLinks& links, int stage) {
  const int64_t element = ComputeBytes(run.precision);
  const auto bytes_of = [&](int layer) {
    return element * layers[layer].output.elements(run.microbatch_samples()) + kAlignment;
  };
  StageMemory memory;
  int64_t all = 0, output = 0, operation = 0;
  for (int l = links.first_layer; l < links.end_layer; ++l) {
    memory.parameters +=
        kFloat * (layers[l].parameters + layers[l].statistics) + kAlignment * kParametersOfLayer;
    all += layers[l].activation_bytes * run.microbatch_samples() + layers[l].fixed_activation_bytes;
    operation = std::max(operation,
                         layers[l].work_bytes * run.microbatch_samples() + layers[l].work_fixed + kAlignment);
    output = element * layers[l].output.elements(run.microbatch_samples());
  }
  if (element < kFloat) memory.narrowed = memory.parameters * element / kFloat;
  const ActivationPolicy activations = ActivationsOf(run.schedule, stage);
  const bool retained = activations == ActivationPolicy::kRetain;
  memory.activation_bytes = retained ? all : (output + kAlignment - 1) / kAlignment * kAlignment;
  // A backward makes the gradient of its parameters, that of its input, and gradients of activations: no more
  // than there are activations, at the end of the chain once more for the scores. Activations and an input
  // that are not there already come for the time of the job.
  const int64_t passes = 1 + (stage + 1 == run.stages() ? 1 : 0) + (retained ? 0 : 1);
  int64_t input = 0;
  for (const int from : links.inputs) input += bytes_of(from);
  // These are the gradients that arrive at the parameters' places, and activations that were made again.
  memory.between = all + input + (activations == ActivationPolicy::kRecompute ? all : 0);
  memory.work = memory.parameters + memory.narrowed + passes * all + operation + (retained ? 1 : 2) * input +
                // Gradients of several consumers are summed into one more.
                (links.consumers > 1 ? bytes_of(links.end_layer - 1) : 0) + kSmallTensors;
  // The forward's saved tensors are in `activation_bytes`; the tensors that it makes on the way, or makes
  // again and drops, are no more than that.
  memory.forward_work = memory.narrowed + all + input + operation + kSmallTensors;
  return memory;
}

}  // namespace

int OptimizerBuffers(const OptimizerSpec& optimizer) {
  if (const auto* sgd = std::get_if<SgdSpec>(&optimizer)) return sgd->momentum != 0 ? 1 : 0;
  return 2;
}

StageMemory CountStage(const RunSpec& run, int stage) {
  const std::vector<LayerCount> layers = CountLayers(run.model, run.precision);
  return CountLinkedStage(run, layers, LinkStages(layers, run.layers_of_stage)[stage], stage);
}

RunMemory CountRun(const RunSpec& run, const RunSchedule& schedule) {
  std::vector<StageMemory> stages;
  RunMemory memory;
  const std::vector<LayerCount> layers = CountLayers(run.model, run.precision);
  const std::vector<StageLinks> links = LinkStages(layers, run.layers_of_stage);
  for (int s = 0; s < run.stages(); ++s) {
    stages.push_back(CountLinkedStage(run, layers, links[s], s));
    memory.activation_bytes.push_back(stages.back().activation_bytes +
                                      (schedule.scheme.split_backward ? stages.back().between : 0));
  }
  memory.ranks = CountRanks(run, schedule, stages);
  if (ReductionOf(run.schedule) == ReductionMode::kFast) {
    // Known only when the run has its devices.
    RunSchedule joint = schedule;
    joint.terms.reduction = ReductionMode::kFast;
    const std::vector<RankMemory> others = CountRanks(run, joint, stages);
    for (size_t r = 0; r < others.size(); ++r) {
      RankMemory& rank = memory.ranks[r];
      if (others[r].held + others[r].work > rank.held + rank.work) rank = others[r];
    }
  }
  return memory;
}

absl::Status SetMemory(const RunSpec& run, RunSchedule* schedule) {
  if (run.memory == 0) return absl::OkStatus();
  RunMemory counted = CountRun(run, *schedule);
  ActivationMemory memory;
  memory.activation_bytes = std::move(counted.activation_bytes);
  for (const RankMemory& rank : counted.ranks) {
    memory.budget.push_back(run.memory - rank.held - rank.work);
    if (memory.budget.back() >= 0) continue;
    return ErrorAt(
        "memory",
        absl::StrFormat("rank %d needs %s for weights, gradients and optimizer, and %s while it works on a "
                        "micro-batch of stage %d; the budget is %s",
                        memory.budget.size() - 1, FormatBytes(static_cast<double>(rank.held)),
                        FormatBytes(static_cast<double>(rank.work)), rank.work_stage,
                        FormatBytes(static_cast<double>(run.memory))));
  }
  schedule->terms.memory = std::move(memory);
  const absl::Status fits = CheckMemory(*schedule);
  return fits.ok() ? fits : ErrorAt("memory", fits.message());
}

}  // namespace weft
