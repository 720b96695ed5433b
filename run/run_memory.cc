#include "run/run_memory.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "run/early_gradients.h"
#include "run/file_section.h"
#include "run/model_layers.h"
#include "run/received_copies.h"
#include "run/run_schedule.h"
#include "run/slice_bounds.h"
#include "run/stage_buffers.h"
#include "run/stage_cut.h"
#include "schedules/byte_text.h"
#include "schedules/dispatch/admission.h"
#include "schedules/dispatch/kept_stages.h"
#include "schedules/graph/graph.h"
#include "schedules/sync/catalogue.h"
#include "schedules/sync/given_tensors.h"

namespace weft {
namespace {

constexpr int64_t kFloat = 4;
constexpr int64_t kSmallTensors = 4096;  // scalars and the like

// Tells whether the schedule has the rank: one that is yet to be refused may name others.
bool IsRank(const Schedule& schedule, Rank rank) { return rank >= 0 && rank < schedule.ranks; }

// Adds what a holder keeps of a stage, or a rank of a state that visits it.
void Add(const KeptOfStage& of_stage, const RunSpec& run, const Graph& graph, const StageMemory& stage,
         RankMemory* rank) {
  const Kept& kept = *of_stage.kept;
  const bool sliced = kept.parts > 1;
  const int64_t held = sliced ? SliceBytes(stage, of_stage.part, kept.parts) : stage.parameters;
  // A slice is gathered before anything computes with it.
  const int64_t version = held + (sliced ? 0 : stage.narrowed);
  rank->weights += (kept.versions + kept.leaving) * version;
  rank->leaving += AwaitsVersions(graph, of_stage.stage, kept) ? kept.leaving * version : 0;
  rank->certain_weights += version;
  rank->gradients += (kept.sums + kept.sums_leaving) * SumBytes(stage, kept, of_stage.part);
  rank->optimizer += kept.optimizer ? OptimizerBuffers(run.train.optimizer) * held : 0;
}

// Returns the bytes that do not come and go with micro-batches. A rank may have each migrating state once:
// there while it computes, and put together for the next rank of its route until that rank fetches it. While
// one state leaves, it is there twice.
RankMemory CountHeld(const std::vector<KeptOfStage>& kept, const RunSpec& run, const Graph& graph,
                     const std::vector<StageMemory>& stages) {
  const bool migrating = graph.protocol(0).layout() == Layout::kTravelling;
  const int jobs_at_once = graph.has_pairs() ? 2 : 1;
  RankMemory rank, twice;
  int64_t narrowed = 0;  // of weights that come with a job, for its time
  for (const KeptOfStage& stage : kept) {
    const StageMemory& bytes = stages[stage.stage];
    rank.constants += bytes.constants;
    if (stage.fetches) narrowed = std::max(narrowed, bytes.narrowed);
    rank.gradients += (stage.handed_out + stage.handed_on) * bytes.parameters;
    rank.handed_out += stage.handed_out * bytes.parameters;
    rank.passed += (stage.handed_on - stage.handed_on_in_turn) * bytes.parameters;
    if (!stage.kept.has_value()) continue;
    RankMemory state;
    Add(stage, run, graph, bytes, &state);
    state.weights += migrating ? kSmallTensors : 0;
    rank.weights += state.weights;
    rank.leaving += state.leaving;
    rank.certain_weights += migrating ? 0 : state.certain_weights;
    rank.gradients += state.gradients;
    rank.optimizer += state.optimizer;
    if (stage.goes_on && state.held() > twice.held()) twice = state;
  }
  rank.weights += twice.weights + jobs_at_once * narrowed + rank.constants;
  rank.certain_weights += narrowed + rank.constants;
  rank.gradients += twice.gradients;
  rank.optimizer += twice.optimizer;
  return rank;
}

// Returns what a backward takes at its end beyond the room of its forward. Then the gradient of its weights
// is put together, to leave the rank, and the activations have gone; `stays` of the room have not. The room
// is for the larger of both, and shrinks to what the first forward was measured to keep.
int64_t WorkOfHandingOut(const StageMemory& stage, bool split, int64_t stays) {
  const int64_t activations = stage.sure_activations + (split ? stage.between : 0);
  return stage.end_work + std::min(stays, stage.parameters - activations);
}

// Adds what jobs take while they run. `stays`: bytes by stage of a forward's room that are there until its
// backward has ended.
void CountWork(const Graph& graph, const std::vector<StageMemory>& stages, const std::vector<int64_t>& stays,
               std::vector<RankMemory>* ranks) {
  const Schedule& schedule = graph.schedule();
  std::vector<int64_t> overlapped(schedule.ranks, 0);
  int64_t largest = 0;
  for (const StageMemory& stage : stages) largest = std::max(largest, stage.parameters);
  for (int s = 0; s < schedule.stages; ++s) {
    const bool sliced = graph.protocol(s).layout() == Layout::kSliced && graph.members(s).size() > 1;
    // The slices are put together; where a joint operation does that, the next job's lie beside them.
    const int64_t gathered =
        (sliced ? stages[s].parameters : 0) + (graph.joint_order().gathers() ? largest : 0);
    const auto take = [&](Rank rank, int64_t work, int64_t buffers) {
      if (!IsRank(schedule, rank)) return;
      (*ranks)[rank].buffers = std::max((*ranks)[rank].buffers, buffers + gathered);
      if (work + gathered <= (*ranks)[rank].work) return;
      (*ranks)[rank].work = work + gathered;
      (*ranks)[rank].work_stage = s;
    };
    for (int step = 0; step < schedule.period; ++step) {
      for (int b = 0; b < schedule.microbatches; ++b) {
        const Rank rank = schedule.compute(Job::Compute(step, s, b, graph.final_backward()));
        // A forward may be on another rank than its backward.
        const Job forward = Job::Compute(step, s, b, JobKind::kForward);
        const StageMemory& stage = stages[s];
        if (graph.HasRemoteBackward(forward)) {
          take(rank, stage.remade_work, stage.remade_work);
          take(schedule.compute(forward), stage.once_work, stage.once_work);
        } else {
          take(rank, schedule.split_backward ? stage.split_work : stage.work,
               schedule.split_backward ? stage.split_buffers : stage.buffers);
          take(rank, stage.forward_work, stage.forward_work);
          if (graph.protocol(s).gradients_leave())
            take(rank, WorkOfHandingOut(stage, schedule.split_backward, stays[s]), 0);
        }
        if (graph.has_pairs() && IsRank(schedule, rank))
          overlapped[rank] = std::max(overlapped[rank], stages[s].forward_work);
      }
    }
  }
  for (Rank rank = 0; rank < schedule.ranks; ++rank) {
    (*ranks)[rank].work += overlapped[rank];
    (*ranks)[rank].buffers += overlapped[rank];
  }
}

// Returns by stage the bytes of the gradient of its output where its own rank makes it: then it is there from
// the consumer's backward to the stage's own. In a chain without split backwards, stages in a row on one rank
// have one such gradient of a micro-batch at a time; the first of them, which ends last, has room for the
// largest.
std::vector<int64_t> CountReturned(const Graph& graph, const std::vector<StageMemory>& stages) {
  const Schedule& schedule = graph.schedule();
  std::vector<int64_t> returned(schedule.stages, 0);
  for (int s = schedule.stages - 1; s >= 0; --s) {
    for (const int input : graph.inputs(s)) {
      bool on_own = false, all_on_own = true;
      for (int b = 0; b < schedule.microbatches; ++b) {
        const bool own = schedule.compute(Job::Compute(0, s, b, graph.input_backward())) ==
                         schedule.compute(Job::Compute(0, input, b, graph.input_backward()));
        on_own |= own;
        all_on_own &= own;
      }
      if (!on_own) continue;
      returned[input] += stages[input].output;
      const bool chained =
          !schedule.split_backward && graph.inputs(s).size() == 1 && graph.consumers(s).size() <= 1;
      if (!chained || !all_on_own || graph.consumers(input).size() > 1) continue;
      returned[input] = std::max(returned[input], std::exchange(returned[s], 0));
    }
  }
  return returned;
}

// Returns, by rank, how many tensors of a step's micro-batches may wait at a time for their takers: as many
// as the takers' stage may have micro-batches in flight. `maker` and `taker` are jobs of one micro-batch.
// `own`: those that the rank takes itself, too.
std::map<Rank, int> CountUntaken(const Schedule& schedule, Job maker, Job taker, bool own) {
  std::map<Rank, int> untaken;
  for (int b = 0; b < schedule.microbatches; ++b) {
    maker.microbatch = taker.microbatch = b;
    const Rank made = schedule.compute(maker), taken = schedule.compute(taker);
    if (!IsRank(schedule, made) || !IsRank(schedule, taken) || (made == taken && !own)) continue;
    const std::optional<int> limit = schedule.limit ? schedule.limit(taken, taker.stage) : std::nullopt;
    int& count = untaken[made];
    if (!limit.has_value() || count < *limit) ++count;
  }
  return untaken;
}

// Adds the gradients that wait for a stage on another rank. `outputs`: and the outputs that a second half of
// the consumer still reads when the stage's own backward has ended.
void CountWaiting(const Graph& graph, const std::vector<StageMemory>& stages, bool outputs,
                  std::vector<RankMemory>* ranks) {
  const Schedule& schedule = graph.schedule();
  const auto job = [](int stage, JobKind kind) { return Job::Compute(0, stage, 0, kind); };
  const JobKind first = graph.input_backward(), last = graph.final_backward();
  for (int s = 0; s < schedule.stages; ++s) {
    for (const int input : graph.inputs(s)) {
      const auto add = [&](const std::map<Rank, int>& counts) {
        for (const auto& [rank, count] : counts) (*ranks)[rank].waiting += count * stages[input].output;
      };
      add(CountUntaken(schedule, job(s, first), job(input, first), /*own=*/false));
      if (!outputs || !schedule.split_backward) continue;
      add(CountUntaken(schedule, job(input, JobKind::kForward), job(s, last), /*own=*/true));
    }
  }
}

// Adds the gradients that come before their turn.
void CountEarly(const Graph& graph, const std::vector<StageMemory>& stages, std::vector<RankMemory>* ranks) {
  const std::vector<int> early = CountEarlyGradients(graph);
  for (int s = 0; s < graph.schedule().stages; ++s) {
    if (early[s] == 0) continue;
    const Rank rank = graph.schedule().compute(Job::Compute(0, s, 0, graph.final_backward()));
    if (IsRank(graph.schedule(), rank)) (*ranks)[rank].gradients += early[s] * stages[s].parameters;
  }
}

// Counts one sum where several steps are under way, and the rank has one sum at a time all the same.
void KeepSingleSums(const Graph& graph, std::vector<std::vector<KeptOfStage>>* kept) {
  const std::vector<bool> single = FindSingleSums(graph);
  for (std::vector<KeptOfStage>& of_rank : *kept) {
    for (KeptOfStage& stage : of_rank) {
      if (stage.kept.has_value() && single[stage.stage]) stage.kept->sums = 1;
    }
  }
}

std::vector<RankMemory> CountRanks(const RunSpec& run, const Graph& graph,
                                   const std::vector<StageMemory>& stages,
                                   const std::vector<int64_t>& stays) {
  std::vector<RankMemory> ranks(graph.schedule().ranks);
  std::vector<std::vector<KeptOfStage>> kept = KeptByRanks(graph, run.train.steps);
  if (graph.schedule().MaxStaleness() > 0) KeepSingleSums(graph, &kept);
  for (Rank rank = 0; rank < graph.schedule().ranks; ++rank)
    ranks[rank] = CountHeld(kept[rank], run, graph, stages);
  CountWork(graph, stages, stays, &ranks);
  CountWaiting(graph, stages, run.buffers.has_value(), &ranks);
  CountEarly(graph, stages, &ranks);
  // Libraries keep work memory for each thread and lane. A profile has one of each, a rank with pairs two.
  const int64_t workspaces = graph.has_pairs() ? 4 : 1;
  for (RankMemory& rank : ranks) {
    const int64_t standing = run.buffers.has_value() ? workspaces * run.buffers->standing : 0;
    const int64_t norms = run.buffers.has_value() && run.train.takes_norm() ? kSmallTensors : 0;
    rank.work += standing + norms;
    rank.buffers += standing + norms;
  }
  return ranks;
}

// Counts what a backward takes: `most` is that of a whole one or of a second half, `first` that of a first
// half, and `between` what the first half leaves, for which there is room without it. The last two are 0 for
// a whole one.
struct BackwardWork {
  int64_t most = 0, first = 0, between = 0;
};

// Returns what the largest job of a stage takes, from measured buffers. `all` are the bytes that a retaining
// forward keeps, `input` those of the stage's inputs.
int64_t MeasuredWork(const StageBuffers& measured, ActivationPolicy activations, bool split,
                     const BackwardWork& backward, int64_t all, int64_t input) {
  int64_t work = std::max(backward.most, backward.first - backward.between);
  if (activations == ActivationPolicy::kOffload) work += all + input;
  // The whole, or a first half, makes the forward again; what that keeps, a first half leaves.
  if (activations == ActivationPolicy::kRecompute) {
    work =
        split ? std::max(work, measured.forward - backward.between) : all + std::max(work, measured.forward);
  }
  return std::max(work, measured.update);
}

// Sets what jobs of a stage take, from measured buffers.
void SetMeasuredWork(const StageBuffers& measured, ActivationPolicy activations, bool has_input, int64_t all,
                     int64_t input, StageMemory* memory) {
  const bool retained = activations == ActivationPolicy::kRetain;
  // Activations that are made again, or come back, are buffers.
  const int64_t made_again = activations == ActivationPolicy::kRecompute ? all : 0;
  // On a GPU, what goes to the host is there until its copy has ended. A forward whose backward is on another
  // rank sends nothing.
  const bool offloads = activations == ActivationPolicy::kOffload;
  memory->forward_work = offloads   ? all + measured.forward
                         : retained ? measured.forward
                                    : measured.forward_once;
  memory->once_work = measured.forward_once;
  // A first half of a stage that offloads frees no activations of the rank's.
  const int64_t between = offloads ? measured.between : measured.between_beyond;
  const int64_t between_buffers = retained ? measured.between : between;
  memory->between = between + made_again;
  memory->between_buffers = between_buffers + made_again;
  const auto work = [&](bool split, const BackwardWork& backward) {
    return MeasuredWork(measured, activations, split, backward, all, input);
  };
  const int64_t whole = retained ? measured.backward : measured.backward_beyond;
  memory->work = work(false, {measured.backward_beyond});
  memory->buffers = work(false, {whole});
  // A second half without a first is a whole backward.
  memory->split_work = work(true, {has_input ? measured.backward_weight : measured.backward_beyond,
                                   measured.backward_input, between});
  memory->split_buffers =
      work(true, {has_input ? measured.backward_weight : whole, measured.backward_input, between_buffers});
  memory->end_work = measured.gradients;
  memory->remade_work = all + std::max({measured.forward, measured.backward_input, measured.backward_weight,
                                        measured.backward_beyond});
}

StageMemory CountLinkedStage(const RunSpec& run, const std::vector<LayerCount>& layers,
                             const StageLinks& links, int stage) {
  const int64_t element = ComputeBytes(run.precision);
  const auto bytes_of = [&](int layer) {
    return AlignedBytes(element * layers[layer].output.elements(run.microbatch_samples()));
  };
  StageMemory memory;
  int64_t trained = 0, output = 0, operation = 0;
  for (int l = links.first_layer; l < links.end_layer; ++l) {
    trained += layers[l].held_parameters;
    memory.parameters += kFloat * (layers[l].held_parameters + layers[l].held_statistics);
    memory.constants += layers[l].constant_bytes;
    operation = std::max(
        operation, layers[l].work_bytes * run.microbatch_samples() + layers[l].work_fixed + kTensorAlignment);
    output = element * layers[l].output.elements(run.microbatch_samples());
  }
  memory.parameters =
      std::max(memory.parameters, kTensorAlignment);  // a stage without any has an empty buffer
  const int64_t all = KeptTensorBytes(layers, links.first_layer, links.end_layer, run.microbatch_samples());
  if (element < kFloat) memory.narrowed = AlignedBytes(element * trained);
  const ActivationPolicy activations = ActivationsOf(run, stage);
  const bool retained = activations == ActivationPolicy::kRetain;
  memory.output = AlignedBytes(output);
  memory.activation_bytes = retained ? all : memory.output;
  // The loss is there until the device has done the forward, whatever that keeps.
  memory.gpu_activations =
      retained ? BytesKeptOnGpu(layers, links.first_layer, links.end_layer, run.microbatch_samples())
               : (stage + 1 == run.stages() ? kTensorAlignment : 0);
  memory.sure_activations = std::holds_alternative<ExportedSpec>(run.model) ? 0 : memory.activation_bytes;
  // A backward makes the gradient of its parameters, that of its input, and gradients of activations: no more
  // than there are activations, at the end of the chain once more for the scores. Activations and an input
  // that are not there already come for the time of the job.
  const int64_t passes = 1 + (stage + 1 == run.stages() ? 1 : 0) + (retained ? 0 : 1);
  int64_t input = 0;
  for (const int from : links.inputs) input += bytes_of(from);
  memory.offloaded = all - memory.output + input;
  // These are the gradients that arrive at the parameters' places, and activations that were made again.
  memory.between = all + input + (activations == ActivationPolicy::kRecompute ? all : 0);
  // Gradients of several consumers are summed into one more.
  const int64_t summed = links.consumers > 1 ? bytes_of(links.end_layer - 1) : 0;
  memory.work = memory.parameters + memory.narrowed + passes * all + operation + (retained ? 1 : 2) * input +
                summed + kSmallTensors;
  // The forward's saved tensors are in `activation_bytes`; the tensors that it makes on the way, or makes
  // again and drops, are no more than that.
  memory.forward_work = memory.narrowed + all + input + operation + kSmallTensors;
  memory.between_buffers = memory.between;
  memory.buffers = memory.split_work = memory.split_buffers = memory.remade_work = memory.work;
  memory.once_work = memory.forward_work;
  memory.end_work = memory.parameters + input + summed + kSmallTensors;
  if (run.buffers.has_value())
    SetMeasuredWork(CountStageBuffers(run, layers, links), activations, !links.inputs.empty(), all, input,
                    &memory);
  return memory;
}

}  // namespace

int OptimizerBuffers(const OptimizerSpec& optimizer) {
  if (const auto* sgd = std::get_if<SgdSpec>(&optimizer)) return sgd->momentum != 0 ? 1 : 0;
  return 2;
}

int64_t SliceBytes(const StageMemory& stage, int part, int parts) {
  const SliceBounds bounds = SliceOf(stage.parameters / kFloat, part, parts);
  return std::max(kFloat * (bounds.end - bounds.begin), kTensorAlignment);
}

int64_t SumBytes(const StageMemory& stage, const Kept& kept, int part) {
  const int parts = std::max(kept.parts, kept.parts_of_sum);
  return kept.whole_sums || parts == 1 ? stage.parameters : SliceBytes(stage, part, parts);
}

StageMemory CountStage(const RunSpec& run, int stage) {
  const std::vector<LayerCount> layers = CountLayers(run.model, run.precision);
  return CountLinkedStage(run, layers, LinkStages(layers, run.layers_of_stage)[stage], stage);
}

std::vector<StageMemory> CountStages(const RunSpec& run) {
  std::vector<StageMemory> stages;
  const std::vector<LayerCount> layers = CountLayers(run.model, run.precision);
  const std::vector<StageLinks> links = LinkStages(layers, run.layers_of_stage);
  stages.reserve(static_cast<size_t>(run.stages()));
  for (int s = 0; s < run.stages(); ++s) stages.push_back(CountLinkedStage(run, layers, links[s], s));
  return stages;
}

RunMemory CountRun(const RunSpec& run, const RunSchedule& schedule) {
  const std::vector<StageMemory> stages = CountStages(run);
  RunMemory memory;
  ActivationMemory& forwards = memory.forwards;
  for (const StageMemory& stage : stages) {
    forwards.activation_bytes.push_back(stage.activation_bytes +
                                        (schedule.scheme.split_backward ? stage.between : 0));
    memory.gpu_activations.push_back(stage.gpu_activations);
  }
  const Graph graph(schedule);
  for (int s = 0; s < schedule.scheme.stages; ++s)
    forwards.gradient_bytes.push_back(graph.protocol(s).gradients_leave() ? stages[s].parameters : 0);
  ReceivedCopies copies = CountReceived(graph, run, stages);
  if (run.buffers.has_value()) forwards.returned_bytes = CountReturned(graph, stages);
  forwards.received_bytes = std::move(copies.of_forward);
  std::vector<int64_t> stays;
  for (int s = 0; s < schedule.scheme.stages; ++s)
    stays.push_back(forwards.BytesOf(s) - forwards.activation_bytes[s]);
  memory.ranks = CountRanks(run, graph, stages, stays);
  if (ReductionOf(run.schedule) == ReductionMode::kFast) {
    // Known only when the run has its devices.
    RunSchedule joint = schedule;
    joint.terms.reduction = ReductionMode::kFast;
    const std::vector<RankMemory> others = CountRanks(run, Graph(joint), stages, stays);
    for (size_t r = 0; r < others.size(); ++r) {
      RankMemory& rank = memory.ranks[r];
      const int64_t beside_forwards = std::max(rank.beside_forwards(), others[r].beside_forwards());
      if (others[r].beside_activations() > rank.beside_activations()) rank = others[r];
      const int64_t may_wait = rank.beside_activations() - beside_forwards;
      rank.leaving = std::min(rank.leaving, may_wait);
      rank.passed = std::min(rank.passed, may_wait - rank.leaving);
      rank.handed_out = may_wait - rank.leaving - rank.passed;
    }
  }
  for (size_t r = 0; r < memory.ranks.size(); ++r) memory.ranks[r].received = copies.of_rank[r];
  return memory;
}

std::vector<double> RunMemory::BytesOfForwards() const {
  std::vector<double> bytes;
  for (size_t s = 0; s < forwards.activation_bytes.size(); ++s)
    bytes.push_back(static_cast<double>(forwards.BytesOf(static_cast<int>(s)) + gpu_activations[s]));
  return bytes;
}

absl::Status SetMemory(const RunSpec& run, RunSchedule* schedule) {
  if (run.memory == 0) return absl::OkStatus();
  RunMemory counted = CountRun(run, *schedule);
  ActivationMemory memory = std::move(counted.forwards);
  for (size_t s = 0; s < memory.activation_bytes.size(); ++s)
    memory.activation_bytes[s] += counted.gpu_activations[s];
  const auto text = [](int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); };
  for (const RankMemory& rank : counted.ranks) {
    memory.budget.push_back(run.memory - rank.beside_forwards());
    if (memory.budget.back() >= 0) continue;
    return ErrorAt(
        "memory",
        absl::StrFormat(
            "rank %d needs %s for weights, gradients and optimizer (%s, %s and %s), %s of "
            "buffers while it works on a micro-batch of stage %d and others wait for its gradients, and %s "
            "received from other ranks; the budget is %s",
            memory.budget.size() - 1, text(rank.held() - rank.handed_out - rank.leaving - rank.passed),
            text(rank.weights - rank.leaving), text(rank.gradients - rank.handed_out - rank.passed),
            text(rank.optimizer), text(rank.work + rank.waiting), rank.work_stage, text(rank.received),
            text(run.memory)));
  }
  schedule->terms.memory = std::move(memory);
  const absl::Status fits = CheckMemory(*schedule);
  return fits.ok() ? fits : ErrorAt("memory", fits.message());
}

}  // namespace weft
