#include "worker/shell/reference/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "run/learning_rate.h"
#include "run/model_layers.h"
#include "run/run_id.h"
#include "run/run_schedule.h"
#include "run/stage_cut.h"
#include "worker/shell/checkpoint/checkpoint.h"
#include "worker/shell/checkpoint/checkpoint_folders.h"
#include "worker/shell/checkpoint/safetensors.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/elementwise.h"
#include "worker/shell/compute/non_finite.h"
#include "worker/shell/compute/optimizer.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/stage_update.h"
#include "worker/shell/compute/sum_of_squares.h"
#include "worker/shell/compute/training_state.h"
#include "worker/shell/data/data.h"
#include "worker/shell/reference/evaluate.h"
#include "worker/shell/reference/reference_hashes.h"
#include "worker/shell/torch/cross_entropy.h"
#include "worker/shell/torch/graph_layer.h"
#include "worker/shell/torch/loss_counts.h"
#include "worker/shell/torch/plain_device.h"
#include "worker/shell/torch/torch_context.h"
#include "worker/shell/torch/torch_layers.h"
#include "worker/shell/torch/torch_stage.h"

namespace weft {
namespace {

// The staleness of the weights of a stage that a micro-batch reads: how many updates older than the newest
// they are, where there have been that many. Stages and micro-batches count from 0.
using Staleness = std::function<int(int stage, int microbatch)>;

// Returns that of the run's stages without those of tied parameters.
Staleness StalenessOfPlaced(const ScheduledRun& scheduled) {
  const RunSpec& run = scheduled.spec;
  const int stages = run.placed_stages(), microbatches = run.train.microbatches;
  const ScheduleSpec& schedule = run.schedule;
  // Under cdp_v1, all of theta_hat is theta_{t-1}.
  if (schedule.rule == "cdp_v1") return [](int, int) { return 1; };
  // Under cdp_v2, counted from 1, stage j of micro-batch i is of theta_t if j >= N - i + 1, else of
  // theta_{t-1}.
  if (schedule.rule == "cdp_v2") {
    return [microbatches](int stage, int b) {
      const int j = stage + 1, i = b + 1;
      return j >= microbatches - i + 1 ? 0 : 1;
    };
  }
  const bool own_formula = schedule.name == "custom" || schedule.parameters.contains("in_flight");
  // Under pipedream a step is a micro-batch; the last stage reads the newest, each stage before it one update
  // less.
  if (schedule.name == "pipedream" && !own_formula) {
    return [stages](int stage, int) { return stages - 1 - stage; };
  }
  if (schedule.name == "pipedream_2bw") return [](int, int) { return 1; };
  if (schedule.name == "custom" || schedule.name == "pipedream") {
    // The user's own formula is its definition.
    return [made = scheduled.schedule, tied = run.tied_stages](int stage, int b) {
      return made->scheme.StalenessOf(tied + stage, b);
    };
  }
  return [](int, int) { return 0; };
}

// A tied parameter is read as old as the stage behind it, whose rank it shares.
Staleness StalenessOf(const ScheduledRun& scheduled) {
  return [placed = StalenessOfPlaced(scheduled), tied = scheduled.spec.tied_stages](int stage, int b) {
    return placed(std::max(0, stage - tied), b);
  };
}

// Copies the tensor of that name into `values` of its size.
absl::Status Take(const SafetensorsFile& file, const std::string& name, const at::Tensor& values) {
  const SafetensorsEntry* entry = file.header.Find(name);
  const size_t bytes = static_cast<size_t>(values.numel()) * sizeof(float);
  if (entry == nullptr || entry->end - entry->begin != bytes)
    return absl::DataLossError(absl::StrCat("the checkpoint does not hold ", name, " as the model has it"));
  std::memcpy(values.mutable_data_ptr(), file.data.data() + entry->begin, bytes);
  return absl::OkStatus();
}

// Returns the parameter in a flat tensor of its stage.
at::Tensor ValuesOf(const at::Tensor& flat, const ParameterSlot& slot) {
  return flat.narrow(0, slot.offset, slot.parameter.elements()).view(slot.parameter.size);
}

// The parameters after some updates.
struct Theta {
  at::Tensor flat;                 // float32; places as the stage's layout has them
  std::vector<at::Tensor> leaves;  // tensors that the layers read, for each slot
};

struct PlainStage {
  StageLayout layout;
  std::deque<Theta> thetas;       // theta_t, theta_{t-1}, .. as far back as a micro-batch may read
  std::vector<at::Tensor> sums;   // sums of this step's gradients, float32, for each slot
  std::vector<at::Tensor> state;  // state of the optimizer, flat
  Optimizer optimizer;
};

// Names the job in a failure, as the runtime does.
absl::Status Named(const Job& job, const absl::Status& status) {
  return status.ok() ? status
                     : absl::Status(status.code(), absl::StrCat(Describe(job), ": ", status.message()));
}

class PlainModel {
 public:
  PlainModel(const RunSpec& run, Staleness staleness, PlainDevice& device, ReferenceHashes& hashes)
      : run_(run),
        staleness_(std::move(staleness)),
        device_(device),
        hashes_(hashes),
        counts_(CountLayers(run.model)),
        layers_(BuildLayers(run.model)) {
    for (int s = 0; s < run.stages(); ++s) {
      stages_.push_back({LayOutStage(run, s), {}, {}, {}, Optimizer(run.train.optimizer)});
      stages_.back().sums.resize(stages_.back().layout.slots.size());
    }
  }

  // Makes ready what the layers need beside weights and data. Call once, before the first micro-batch.
  absl::Status Prepare() {
    absl::Status status;
    for (const auto& layer : layers_) {
      if (status.ok()) status = device_.Prepare(*layer, run_.microbatch_samples());
    }
    return status;
  }

  // Makes theta_0.
  absl::Status Initialize() {
    for (PlainStage& stage : stages_) {
      const at::Tensor flat = NewFlat(stage.layout);
      absl::Status s;
      for (const ParameterSlot& slot : stage.layout.slots) {
        if (s.ok()) s = weft::Initialize(slot.parameter, run_.train.seed, slot.layer, ValuesOf(flat, slot));
      }
      if (s.ok()) s = Append(flat, &stage);
      for (int i = 0; i < stage.optimizer.state_buffers() && s.ok(); ++i)
        s = AppendState(NewFlat(stage.layout), &stage);
      if (!s.ok()) return s;
    }
    return absl::OkStatus();
  }

  // Loads theta_t, those before it that are still read, and the optimizer's state, where a run stopped before
  // step t.
  absl::Status Load(const std::string& folder, int t) {
    for (PlainStage& stage : stages_) {
      if (absl::Status s = LoadStage(folder, t, &stage); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  at::Tensor Loss(const at::Tensor& data, const at::Tensor& targets, const MaskKey& key) const {
    const bool narrows = run_.precision == Precision::kBFloat16 && data.is_floating_point();
    const at::Tensor inputs = narrows ? data.to(c10::kBFloat16) : data;
    std::vector<at::Tensor> outputs;
    for (const PlainStage& stage : stages_) {
      const std::vector<at::Tensor>& leaves = Read(stage, key.microbatch).leaves;
      const int number = stage.layout.stage;
      hashes_.NoteWeights(number, std::max(0, key.step - staleness_(number, key.microbatch)),
                          Read(stage, key.microbatch).flat);
      size_t slot = 0;
      for (int l = stage.layout.first_layer; l < stage.layout.end_layer; ++l) {
        std::vector<at::Tensor> read;
        for (const int from : counts_[l].inputs) read.push_back(outputs[from]);
        if (counts_[l].reads_data) read.push_back(inputs);
        outputs.push_back(layers_[l]->Forward(read.data(), leaves.data() + slot, key));
        while (slot < leaves.size() && stage.layout.slots[slot].layer == l) ++slot;
      }
      hashes_.NoteOutput(number, outputs.back());
    }
    // A model with a loss of its own has no targets.
    return targets.numel() > 0 ? weft::Loss(outputs.back(), targets, key.math) : outputs.back();
  }

  // Adds the gradients of the micro-batch's backward to the sums of its step.
  void AddGradients(int microbatch) {
    for (PlainStage& stage : stages_) {
      const std::vector<at::Tensor>& leaves = Read(stage, microbatch).leaves;
      at::Tensor flat;
      if (hashes_.on()) flat = NewFlat(stage.layout);
      for (size_t i = 0; i < leaves.size(); ++i) {
        at::Tensor& gradient = leaves[i].mutable_grad();
        const at::Tensor wide = gradient.to(c10::kFloat);
        if (hashes_.on()) ValuesOf(flat, stage.layout.slots[i]).copy_(wide);
        stage.sums[i] = stage.sums[i].defined() ? stage.sums[i] + wide : wide;
        stage.sums[i] = stage.sums[i].contiguous();
        gradient.reset();
      }
      if (hashes_.on()) hashes_.NoteGradient(stage.layout.stage, flat, HostSums(stage));
    }
  }

  // Notes the hashes of a step's updates, of the sums as they were before clipping.
  void NoteSums() {
    if (!hashes_.on()) return;
    sums_noted_.clear();
    for (const PlainStage& stage : stages_) sums_noted_.push_back(HostSums(stage));
  }
  void NoteUpdates(int step) {
    for (size_t s = 0; s < sums_noted_.size(); ++s)
      hashes_.NoteUpdate(step, static_cast<int>(s), sums_noted_[s], stages_[s].thetas.front().flat);
  }

  // Returns the norm of the sums, all trained parameters together; not a number if one of them is not finite.
  absl::StatusOr<double> GradientNorm(int step) const {
    SumOfSquares all;
    for (const PlainStage& stage : stages_) {
      at::Tensor limbs;
      const Job job = Job::Reduce(step, stage.layout.stage, 0);
      absl::Status s = device_.Run(job, [&] {
        limbs = at::zeros({static_cast<int64_t>(SumOfSquares::kLimbs)}, device_.Options(c10::kLong));
        auto* const to = static_cast<uint64_t*>(limbs.mutable_data_ptr());
        for (size_t i = 0; i < stage.sums.size(); ++i) {
          if (IsStatistic(stage, i)) continue;
          device_.math().AddSquares(to, stage.sums[i].const_data_ptr<float>(), stage.sums[i].numel());
        }
        return absl::OkStatus();
      });
      if (!s.ok()) return s;
      const absl::StatusOr<at::Tensor> host = device_.ToHost(limbs);
      if (!host.ok()) return host.status();
      const auto squares = SumOfSquares::FromLimbs(static_cast<const uint64_t*>(host->const_data_ptr()));
      if (!squares.has_norm() && run_.train.non_finite == NonFinite::kStop) return NonFiniteSum(job, stage);
      all.Add(squares);
    }
    return all.Norm();
  }

  // Shrinks all parameters' sums alike, to a norm of clip_norm.
  void ClipGradients(double norm) {
    if (run_.train.clip_norm == 0 || !(norm > run_.train.clip_norm)) return;
    for (PlainStage& stage : stages_) {
      for (size_t i = 0; i < stage.sums.size(); ++i) {
        if (!IsStatistic(stage, i)) stage.sums[i] = stage.sums[i] * (run_.train.clip_norm / norm);
      }
    }
  }

  // Makes theta_{t+1} equal to theta_t; the optimizer makes no step.
  void Skip() {
    for (PlainStage& stage : stages_) Push(stage.thetas.front(), &stage);
  }

  // Updates theta_t to theta_{t+1}, by the sums.
  void Update(int t) {
    const double rate = LearningRateAt(run_.train, t);
    for (PlainStage& stage : stages_) {
      const at::Tensor next = at::zeros({stage.layout.elements}, device_.Options(c10::kFloat));
      stage.optimizer.Begin(rate);
      for (size_t i = 0; i < stage.sums.size(); ++i) {
        IsStatistic(stage, i) ? MoveAverageOf(stage, i, next) : Train(stage, i, next);
      }
      Push(ThetaOf(next, stage.layout), &stage);
    }
  }

  // Ends step t: the sums are begun anew. OutOfRange if its update made a value at which the run stops.
  absl::Status EndStep(int t) {
    for (PlainStage& stage : stages_) {
      if (absl::Status s = CheckMade(Job::Update(t, stage.layout.stage, 0), stage); !s.ok()) return s;
      for (at::Tensor& sum : stage.sums) sum.reset();
    }
    return absl::OkStatus();
  }

  absl::Status Save(const CheckpointFolders& folders, int version) const {
    absl::Status written = WriteStages(folders.Partial(version), version);
    if (written.ok()) return folders.Seal(version, run_.checkpoint.keep);
    folders.Drop(version);
    return written;
  }

  // theta_t as a checkpoint in memory.
  absl::StatusOr<Checkpoint> Weights(int version) const {
    Checkpoint checkpoint;
    checkpoint.version = absl::StrCat(version);
    for (const PlainStage& stage : stages_) {
      const absl::StatusOr<at::Tensor> flat = device_.ToHost(stage.thetas.front().flat);
      if (!flat.ok()) return flat.status();
      for (const ParameterSlot& slot : stage.layout.slots) {
        const std::string name = CheckpointName(stage.layout.stage, slot);
        const float* const values = flat->const_data_ptr<float>() + slot.offset;
        checkpoint.parameters[name.substr(name.find('.') + 1)].assign(values,
                                                                      values + slot.parameter.elements());
      }
    }
    return checkpoint;
  }

 private:
  absl::Status WriteStages(const std::string& folder, int version) const {
    for (const PlainStage& stage : stages_) {
      std::vector<at::Tensor> there;  // theta_{t-k}, .., theta_t, then the optimizer's
      for (auto theta = stage.thetas.rbegin(); theta != stage.thetas.rend(); ++theta)
        there.push_back(theta->flat);
      there.insert(there.end(), stage.state.begin(), stage.state.end());
      std::vector<at::Tensor> host;
      std::vector<SlotPointers> slots;
      for (const at::Tensor& flat : there) {
        absl::StatusOr<at::Tensor> copy = device_.ToHost(flat);
        if (!copy.ok()) return copy.status();
        host.push_back(*std::move(copy));
        slots.push_back(SlotsOf(stage.layout, host.back().const_data_ptr<float>()));
      }
      const auto newest = slots.begin() + static_cast<std::ptrdiff_t>(stage.thetas.size() - 1);
      const SlotPointers values = *newest;
      slots.erase(newest);
      absl::Status s = version == 0 ? WriteStageFile(folder, stage.layout, values, 0)
                                    : WriteTrainingState(folder, stage.layout, Rule(stage.layout.stage),
                                                         version, stage.optimizer.steps(), values, slots);
      if (!s.ok()) return s;
    }
    return absl::OkStatus();
  }

  static bool IsStatistic(const PlainStage& stage, size_t slot) {
    return stage.layout.slots[slot].parameter.kind == ParameterSpec::Kind::kStatistic;
  }

  // Adds the newest, and drops the oldest that no micro-batch reads any more.
  void Push(const Theta& theta, PlainStage* stage) const {
    stage->thetas.push_front(theta);
    if (static_cast<int>(stage->thetas.size()) > Oldest(stage->layout.stage) + 1) stage->thetas.pop_back();
  }

  // Returns the sums as a flat buffer of the host.
  absl::StatusOr<at::Tensor> FlatSums(const PlainStage& stage) const {
    at::Tensor flat = NewFlat(stage.layout);
    for (size_t i = 0; i < stage.sums.size(); ++i) {
      const absl::StatusOr<at::Tensor> host = device_.ToHost(stage.sums[i]);
      if (!host.ok()) return host.status();
      ValuesOf(flat, stage.layout.slots[i]).copy_(*host);
    }
    return flat;
  }

  // Returns the same where the device is the host.
  static at::Tensor HostSums(const PlainStage& stage) {
    at::Tensor flat = NewFlat(stage.layout);
    for (size_t i = 0; i < stage.sums.size(); ++i) ValuesOf(flat, stage.layout.slots[i]).copy_(stage.sums[i]);
    return flat;
  }

  absl::Status NonFiniteSum(const Job& job, const PlainStage& stage) const {
    const absl::StatusOr<at::Tensor> sums = FlatSums(stage);
    if (!sums.ok()) return sums.status();
    return Named(job,
                 NonFiniteGradient(stage.layout, 0, stage.layout.elements, sums->const_data_ptr<float>()));
  }

  // Checks that the newest weights are finite, which the job made of the sums.
  absl::Status CheckMade(const Job& job, const PlainStage& stage) const {
    if (run_.train.non_finite == NonFinite::kContinue) return absl::OkStatus();
    const absl::StatusOr<at::Tensor> made = device_.ToHost(stage.thetas.front().flat);
    if (!made.ok()) return made.status();
    if (AllFinite(made->const_data_ptr<float>(), made->numel())) return absl::OkStatus();
    const absl::StatusOr<at::Tensor> sums = FlatSums(stage);
    if (!sums.ok()) return sums.status();
    return Named(job, CheckUpdated(run_, stage.layout, 0, stage.layout.elements,
                                   made->const_data_ptr<float>(), sums->const_data_ptr<float>()));
  }

  // Makes a buffer of zeros on the host.
  static at::Tensor NewFlat(const StageLayout& layout) { return at::zeros({layout.elements}, c10::kFloat); }

  // Makes parameters whose leaves are `flat` itself where layers compute in float32, else its narrowed copy.
  Theta ThetaOf(const at::Tensor& flat, const StageLayout& layout) const {
    const at::Tensor narrow = run_.precision == Precision::kBFloat16 ? flat.to(c10::kBFloat16) : flat;
    Theta theta{flat, {}};
    for (const ParameterSlot& slot : layout.slots) {
      theta.leaves.push_back(ValuesOf(slot.parameter.is_wide() ? flat : narrow, slot).detach());
      theta.leaves.back().set_requires_grad(true);
    }
    return theta;
  }

  // Append the next older theta of the stage, or a buffer of its optimizer, from a tensor of the host.
  absl::Status Append(const at::Tensor& host, PlainStage* stage) {
    const absl::StatusOr<at::Tensor> flat = device_.ToDevice(host);
    if (!flat.ok()) return flat.status();
    return device_.Run(Job::Update(0, stage->layout.stage, 0), [&] {
      stage->thetas.push_back(ThetaOf(*flat, stage->layout));
      return absl::OkStatus();
    });
  }
  absl::Status AppendState(const at::Tensor& host, PlainStage* stage) {
    absl::StatusOr<at::Tensor> flat = device_.ToDevice(host);
    if (!flat.ok()) return flat.status();
    stage->state.push_back(*std::move(flat));
    return absl::OkStatus();
  }

  absl::Status LoadStage(const std::string& folder, int t, PlainStage* stage) {
    const int number = stage->layout.stage;
    const auto weights = ReadSafetensors(absl::StrCat(folder, "/", StageFileName(number)));
    if (!weights.ok()) return weights.status();
    const auto state = ReadSafetensors(absl::StrCat(folder, "/", StateFileName(number)));
    if (!state.ok()) return state.status();
    const auto take = [&](const SafetensorsFile& file,
                          const std::string& ending) -> absl::StatusOr<at::Tensor> {
      const at::Tensor flat = NewFlat(stage->layout);
      for (const ParameterSlot& slot : stage->layout.slots) {
        absl::Status s = Take(file, absl::StrCat(CheckpointName(number, slot), ending), ValuesOf(flat, slot));
        if (!s.ok()) return s;
      }
      return flat;
    };
    for (int age = 0; age <= std::min(t, Oldest(number)); ++age) {
      const auto flat = age == 0 ? take(*weights, "") : take(*state, absl::StrCat(".version", t - age));
      if (!flat.ok()) return flat.status();
      if (absl::Status s = Append(*flat, stage); !s.ok()) return s;
    }
    for (const char* name : stage->optimizer.state_names()) {
      const auto flat = take(*state, absl::StrCat(".", name));
      if (!flat.ok()) return flat.status();
      if (absl::Status s = AppendState(*flat, stage); !s.ok()) return s;
    }
    stage->optimizer.Resume(OptimizerStepsOf(state->header));
    return absl::OkStatus();
  }

  // Returns the most that a micro-batch is behind on the stage.
  int Oldest(int stage) const {
    int oldest = 0;
    for (int b = 0; b < run_.train.microbatches; ++b) oldest = std::max(oldest, staleness_(stage, b));
    return oldest;
  }

  StateRule Rule(int stage) const { return Rules().at(stage); }

  std::vector<StateRule> Rules() const {
    std::vector<StateRule> rules(run_.stages(), StateRule{{}, run_.train.optimizer, ""});
    for (int stage = 0; stage < run_.stages(); ++stage) {
      for (int b = 0; b < run_.train.microbatches; ++b)
        rules[stage].staleness.push_back(staleness_(stage, b));
    }
    const std::string training = TrainingId(run_, rules);
    for (StateRule& rule : rules) rule.training = training;
    return rules;
  }

  // Returns the parameters that the micro-batch reads: as old as its rule says, or the first.
  const Theta& Read(const PlainStage& stage, int microbatch) const {
    const auto most = static_cast<int>(stage.thetas.size()) - 1;
    return stage.thetas[std::min(staleness_(stage.layout.stage, microbatch), most)];
  }

  void Train(const PlainStage& stage, size_t slot, const at::Tensor& next) const {
    const int64_t offset = stage.layout.slots[slot].offset;
    Optimizer::State state{};
    for (size_t i = 0; i < stage.state.size(); ++i)
      state[i] = stage.state[i].mutable_data_ptr<float>() + offset;
    stage.optimizer.Apply(device_.math(), stage.thetas.front().flat.const_data_ptr<float>() + offset,
                          next.mutable_data_ptr<float>() + offset, stage.sums[slot].const_data_ptr<float>(),
                          state, /*factor=*/nullptr, stage.sums[slot].numel(),
                          stage.layout.slots[slot].decays);
  }

  // Moves a running average, whose gradient is the sum of the micro-batches' measurements (batch_norm.h).
  void MoveAverageOf(const PlainStage& stage, size_t slot, const at::Tensor& next) const {
    at::NoGradGuard no_grad;
    const ParameterSlot& place = stage.layout.slots[slot];
    // The division is by a tensor: a GPU divides by a number of the host by multiplying with its rounded
    // inverse.
    const at::Tensor count = at::full({}, run_.train.microbatches, device_.Options(c10::kFloat));
    const at::Tensor measured = stage.sums[slot] / count;
    const float momentum = place.parameter.momentum;
    const at::Tensor kept = ValuesOf(stage.thetas.front().flat, place) * (1 - momentum);
    ValuesOf(next, place).copy_(kept + measured * momentum);
  }

  const RunSpec& run_;
  const Staleness staleness_;
  PlainDevice& device_;
  ReferenceHashes& hashes_;
  const std::vector<LayerCount> counts_;
  const std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<PlainStage> stages_;
  std::vector<at::Tensor> sums_noted_;  // flat, by stage
};

// Returns one micro-batch's loss, and adds its gradients to the sums.
absl::StatusOr<double> TrainMicrobatch(const RunSpec& run, const Dataset& data, LossCounts& counts, int step,
                                       int b, PlainDevice& device, PlainModel& model,
                                       ReferenceHashes& hashes) {
  const int64_t samples = run.microbatch_samples();
  at::Tensor inputs = at::empty({samples, data.inputs()}, TorchType(data.input_type()));
  at::Tensor targets = at::empty({samples * data.targets()}, c10::kLong);
  absl::Status s = data.ReadInputs(run, step, b, inputs.data_ptr());
  if (s.ok()) s = data.ReadTargets(run, step, b, targets.mutable_data_ptr<int64_t>());
  if (!s.ok()) return s;
  const absl::StatusOr<at::Tensor> read = device.ToDevice(inputs), wanted = device.ToDevice(targets);
  if (!read.ok()) return read.status();
  if (!wanted.ok()) return wanted.status();
  MaskKey key{run.train.seed, step, b, true, &device.math()};
  key.generator = &device.generator_lock();
  at::Tensor loss;
  s = device.Run(Job::Compute(step, 0, b, JobKind::kForward), [&] {
    const absl::StatusOr<float> divisor = counts.DivisorOf(step);
    if (!divisor.ok()) return divisor.status();
    key.loss_divisor = *divisor;
    loss = model.Loss(*read, *wanted, key);
    (loss / run.train.microbatches).backward();
    model.AddGradients(b);
    return absl::OkStatus();
  });
  if (!s.ok()) return s;
  const absl::StatusOr<at::Tensor> there = device.ToHost(loss.detach());
  if (!there.ok()) return there.status();
  const double mean = static_cast<double>(there->item<float>());
  hashes.EndMicrobatch(step, b, mean);
  return mean;
}

// Saves between the steps, where the run file or the caller that stops the training asks for it.
class StepCheckpoints {
 public:
  StepCheckpoints(const RunSpec& run, const CheckpointFolders* folders,
                  const ReferenceCheckpoints& checkpoints)
      : run_(run), folders_(folders), checkpoints_(checkpoints), last_(std::chrono::steady_clock::now()) {}

  // Saves after so many updates, if that is due. Cancelled if the training ends here.
  absl::Status After(int step, const PlainModel& model) {
    if (folders_ == nullptr || step == run_.end_step()) return absl::OkStatus();
    const bool stop = checkpoints_.stop != nullptr && checkpoints_.stop();
    if (!stop && !IsDue(step)) return absl::OkStatus();
    last_ = std::chrono::steady_clock::now();
    const absl::Status saved = model.Save(*folders_, step);
    if (checkpoints_.saved) checkpoints_.saved(step, std::string(saved.message()));
    if (!stop) return absl::OkStatus();
    return saved.ok() ? absl::CancelledError(absl::StrCat("the reference was stopped after step ", step))
                      : saved;
  }

 private:
  bool IsDue(int step) const {
    const CheckpointSpec& spec = run_.checkpoint;
    if (spec.every_steps > 0) return step % spec.every_steps == 0;
    const std::chrono::seconds every(spec.every_seconds);
    return spec.every_seconds > 0 && std::chrono::steady_clock::now() - last_ >= every;
  }

  const RunSpec& run_;
  const CheckpointFolders* const folders_;  // null for none
  const ReferenceCheckpoints& checkpoints_;
  std::chrono::steady_clock::time_point last_;
};

// Validates the weights if the run file asks for it. Training stops if held-out data cannot be read, as for
// its own data.
absl::Status ValidateAfter(const RunSpec& run, int step, const PlainModel& model,
                           const ReferenceCheckpoints& checkpoints) {
  if (!run.ValidatesAfter(step)) return absl::OkStatus();
  const absl::StatusOr<Checkpoint> weights = model.Weights(step);
  if (!weights.ok()) return weights.status();
  const auto evaluation = EvaluateHeldOut(
      run, *weights, [&](const Evaluation&) { return !checkpoints.stop || !checkpoints.stop(); });
  if (absl::IsCancelled(evaluation.status())) return absl::OkStatus();  // whoever goes on here makes it
  if (!evaluation.ok()) return evaluation.status();
  if (checkpoints.validated) checkpoints.validated(step, *evaluation);
  return absl::OkStatus();
}

// Returns the stages that each stage reads.
std::vector<std::vector<int>> InputsOfStages(const RunSpec& run) {
  std::vector<std::vector<int>> inputs = StageInputs(CountLayers(run.model), run.layers_of_stage);
  if (!inputs.empty()) return inputs;
  inputs.resize(run.stages());
  for (int s = 1; s < run.stages(); ++s) inputs[s] = {s - 1};
  return inputs;
}

absl::Status Train(const ScheduledRun& scheduled, const std::string& out_dir,
                   const std::function<bool(const ReferenceStep&)>& on_step,
                   const ReferenceCheckpoints& checkpoints, PlainDevice& device) {
  const RunSpec& run = scheduled.spec;
  if (absl::Status s = CheckGraphs(run); !s.ok()) return s;
  std::optional<CheckpointFolders> folders;
  if (!out_dir.empty() && !run.checkpoint.none) {
    folders.emplace(out_dir, scheduled, NewRunId(), 1);
    if (absl::Status s = folders->Prepare(); !s.ok()) return s;
  }
  StepCheckpoints on_the_way(run, folders.has_value() ? &*folders : nullptr, checkpoints);
  absl::StatusOr<std::unique_ptr<Dataset>> data = Dataset::Open(run);
  if (!data.ok()) return data.status();
  ReferenceHashes hashes(InputsOfStages(run), run.first_step(),
                         run.record_hashes && device.is_host() ? checkpoints.hashed : nullptr);
  PlainModel model(run, StalenessOf(scheduled), device, hashes);
  LossCounts counts(run);
  absl::Status begun = model.Prepare();
  if (begun.ok()) begun = run.first_step() > 0 ? CheckResume(scheduled) : model.Initialize();
  if (begun.ok() && run.first_step() > 0) begun = model.Load(run.resume.checkpoint, run.first_step());
  if (begun.ok() && run.first_step() == 0 && folders.has_value()) begun = model.Save(*folders, 0);
  if (begun.ok() && run.first_step() > 0) begun = ValidateAfter(run, run.first_step(), model, checkpoints);
  if (!begun.ok()) return begun;
  for (int step = run.first_step(); step < run.end_step(); ++step) {
    const auto start = std::chrono::steady_clock::now();
    double loss_sum = 0;
    for (int b = 0; b < run.train.microbatches; ++b) {
      const absl::StatusOr<double> loss =
          TrainMicrobatch(run, **data, counts, step, b, device, model, hashes);
      if (!loss.ok()) return loss.status();
      const Job forward = Job::Compute(step, run.stages() - 1, b, JobKind::kForward);
      if (absl::Status s = Named(forward, CheckLoss(run, *loss)); !s.ok()) return s;
      loss_sum += *loss;
    }
    std::optional<double> gradient_norm;
    if (run.train.takes_norm()) {
      const absl::StatusOr<double> norm = model.GradientNorm(step);
      if (!norm.ok()) return norm.status();
      gradient_norm = *norm;
      hashes.NoteNorm(step, *norm);
    }
    model.NoteSums();
    const bool skips = run.train.non_finite == NonFinite::kSkip && !std::isfinite(*gradient_norm);
    absl::Status updated = device.Run(Job::Update(step, 0, 0), [&] {
      if (gradient_norm.has_value()) model.ClipGradients(*gradient_norm);
      skips ? model.Skip() : model.Update(step);
      return absl::OkStatus();
    });
    if (updated.ok()) updated = model.EndStep(step);
    if (updated.ok()) model.NoteUpdates(step);
    if (!updated.ok()) return updated;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (!on_step({step, loss_sum / run.train.microbatches, seconds.count(), gradient_norm, skips})) {
      return absl::CancelledError(absl::StrCat("the reference was stopped after step ", step));
    }
    if (absl::Status s = ValidateAfter(run, step + 1, model, checkpoints); !s.ok()) return s;
    if (absl::Status s = on_the_way.After(step + 1, model); !s.ok()) return s;
  }
  return folders.has_value() ? model.Save(*folders, run.end_step()) : absl::OkStatus();
}

}  // namespace

absl::Status CheckExportedModel(const RunSpec& run) {
  PrepareProcess();
  PrepareThread();
  return CheckGraphs(run);
}

absl::Status RunReference(const RunSpec& run, const std::string& out_dir,
                          const std::function<bool(const ReferenceStep&)>& on_step, DeviceBackend* backend,
                          const ReferenceCheckpoints& checkpoints) {
  const absl::StatusOr<ScheduledRun> scheduled = ScheduledRun::Make(run);
  if (!scheduled.ok()) return scheduled.status();
  return OnPlainDevice(run, backend, "reference", [&](PlainDevice& device) {
    return Train(*scheduled, out_dir, on_step, checkpoints, device);
  });
}

}  // namespace weft
