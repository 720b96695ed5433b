#include "run/run_memory.h"

#include <algorithm>
#include <set>
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
#include "schedules/graph/graph.h"
#include "schedules/sync/catalogue.h"

namespace weft {
namespace {

constexpr int64_t kFloat = 4, kAlignment = 64;
constexpr int64_t kSmallTensors = 4096;     // scalars and the like
constexpr int64_t kParametersOfLayer = 20;  // the most tensors of a layer; each is aligned by itself

// Adds migrating states. A rank may have each stage's state once: there while it computes, and put together
// for the next rank of its route until that rank fetches it. While one state leaves, it is there twice.
void CountStates(const RunSpec& run, const Graph& graph, const std::vector<StageMemory>& stages,
                 std::vector<RankMemory>* ranks) {
  const Schedule& schedule = graph.schedule();
  std::vector<int64_t> largest(schedule.ranks, 0);
  for (int s = 0; s < schedule.stages; ++s) {
    const int versions = std::min(1 + schedule.MaxStaleness(s), 1 + run.train.steps);
    const int64_t state = (versions + 1 + OptimizerBuffers(run.train.optimizer)) * stages[s].parameters +
                          versions * stages[s].narrowed + kSmallTensors;
    std::set<Rank> ranks_on_route;
    for (int b = 0; b < schedule.microbatches; ++b) {
      ranks_on_route.insert(graph.RankOf(Job::Compute(0, s, b, JobKind::kForward)));
      ranks_on_route.insert(graph.RankOf(Job::Compute(0, s, b, graph.final_backward())));
    }
    for (const Rank rank : ranks_on_route) {
      if (rank < 0 || rank >= schedule.ranks) continue;
      (*ranks)[rank].held += state;
      if (ranks_on_route.size() > 1) largest[rank] = std::max(largest[rank], state);
    }
  }
  for (Rank rank = 0; rank < schedule.ranks; ++rank) (*ranks)[rank].held += largest[rank];
}

// Counts the bytes that do not come and go with micro-batches.
std::vector<RankMemory> CountRanks(const RunSpec& run, const Schedule& schedule,
                                   const std::vector<StageMemory>& stages) {
  const Graph graph(schedule);
  std::vector<RankMemory> ranks(schedule.ranks);
  std::vector<int64_t> overlapped(schedule.ranks, 0);
  int64_t largest = 0;
  for (const StageMemory& stage : stages) largest = std::max(largest, stage.parameters);
  const auto valid = [&](Rank rank) { return rank >= 0 && rank < schedule.ranks; };
  for (int s = 0; s < schedule.stages; ++s) {
    const int64_t parameters = stages[s].parameters;
    const auto members = static_cast<int64_t>(graph.members(s).size());
    const Protocol& protocol = graph.sync(s);
    const bool sliced = protocol.layout() == Layout::kSliced && members > 1;
    const int64_t part = sliced ? (parameters + members - 1) / members + kAlignment : parameters;
    // The slices are put together; where a joint operation does that, the next job's lie beside them.
    const int64_t work =
        stages[s].work + (sliced ? parameters : 0) + (graph.joint_order().gathers() ? largest : 0);
    const auto of_run = [&run](int steps) { return std::min(steps, run.train.steps); };
    for (int m = 0; m < members; ++m) {
      const Rank rank = protocol.holder(m).rank;
      if (!valid(rank) || protocol.layout() == Layout::kTravelling) continue;
      const Kept kept = protocol.KeptBy(graph, m);
      const int versions = std::min(kept.versions, 1 + run.train.steps) + kept.leaving;
      const int state = kept.optimizer ? OptimizerBuffers(run.train.optimizer) : 0;
      const int sums = (of_run(kept.sums) + kept.parts_of_sum - 1) / kept.parts_of_sum;
      ranks[rank].held += (versions + state) * part + sums * (kept.whole_sums ? parameters : part);
      // A slice is gathered before anything computes with it.
      if (!sliced) ranks[rank].held += versions * stages[s].narrowed;
    }
    const bool hands_out = protocol.gradients_leave() || protocol.passes_sums();
    std::vector<int64_t> handed_out(schedule.ranks, 0);
    for (int step = 0; step < schedule.period; ++step) {
      std::vector<int64_t> of_step(schedule.ranks, 0);
      for (int b = 0; b < schedule.microbatches; ++b) {
        const Rank rank = schedule.compute(Job::Compute(step, s, b, graph.final_backward()));
        if (!valid(rank)) continue;
        if (hands_out) of_step[rank] += parameters * of_run(1 + schedule.StalenessOf(s, b));
        handed_out[rank] = std::max(handed_out[rank], of_step[rank]);
        if (graph.has_pairs()) overlapped[rank] = std::max(overlapped[rank], stages[s].forward_work);
        if (work > ranks[rank].work) {
          ranks[rank].work = work;
          ranks[rank].work_stage = s;
        }
      }
    }
    for (Rank rank = 0; rank < schedule.ranks; ++rank) ranks[rank].held += handed_out[rank];
  }
  if (graph.sync(0).layout() == Layout::kTravelling) CountStates(run, graph, stages, &ranks);
  for (Rank rank = 0; rank < schedule.ranks; ++rank) ranks[rank].work += overlapped[rank];
  return ranks;
}

}  // namespace

int OptimizerBuffers(const OptimizerSpec& optimizer) {
  if (const auto* sgd = std::get_if<SgdSpec>(&optimizer)) return sgd->momentum != 0 ? 1 : 0;
  return 2;
}

StageMemory CountStage(const RunSpec& run, int stage) {
  const int64_t element = ComputeBytes(run.precision);
  const std::vector<LayerCount> layers = CountLayers(run.model, run.precision);
  const StageLinks links = LinkStages(layers, run.layers_of_stage)[stage];
  const auto bytes_of = [&](int layer) {
    return element * layers[layer].output_elements() * run.microbatch_samples() + kAlignment;
  };
  StageMemory memory;
  int64_t all = 0, output = 0, operation = 0;
  for (int l = links.first_layer; l < links.end_layer; ++l) {
    memory.parameters +=
        kFloat * (layers[l].parameters + layers[l].statistics) + kAlignment * kParametersOfLayer;
    all += layers[l].activation_bytes * run.microbatch_samples() + layers[l].fixed_activation_bytes;
    operation = std::max(operation,
                         layers[l].work_bytes * run.microbatch_samples() + layers[l].work_fixed + kAlignment);
    output = element * layers[l].output_elements() * run.microbatch_samples();
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

RunMemory CountRun(const RunSpec& run, const Schedule& schedule) {
  std::vector<StageMemory> stages;
  RunMemory memory;
  for (int s = 0; s < run.stages(); ++s) {
    stages.push_back(CountStage(run, s));
    memory.activation_bytes.push_back(stages.back().activation_bytes +
                                      (schedule.split_backward ? stages.back().between : 0));
  }
  memory.ranks = CountRanks(run, schedule, stages);
  if (ReductionOf(run.schedule) == ReductionMode::kFast) {
    // Known only when the run has its devices.
    Schedule joint = schedule;
    joint.sync = ReducedBy(ReductionMode::kFast, joint.sync);
    const std::vector<RankMemory> others = CountRanks(run, joint, stages);
    for (size_t r = 0; r < others.size(); ++r) {
      RankMemory& rank = memory.ranks[r];
      if (others[r].held + others[r].work > rank.held + rank.work) rank = others[r];
    }
  }
  return memory;
}

absl::Status SetMemory(const RunSpec& run, Schedule* schedule) {
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
  schedule->memory = std::move(memory);
  const absl::Status fits = CheckMemory(*schedule);
  return fits.ok() ? fits : ErrorAt("memory", fits.message());
}

}  // namespace weft
