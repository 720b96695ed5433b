#include "worker/shell/compute/training_state.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/fnv1a.h"
#include "base/require.h"
#include "base/threads.h"
#include "nlohmann/json.hpp"
#include "run/run_schedule.h"
#include "worker/shell/checkpoint/checkpoint.h"
#include "worker/shell/compute/optimizer.h"

namespace weft {
namespace {

using Metadata = std::map<std::string, std::string>;

// Returns one number where it is the same for all micro-batches, else a list.
std::string StalenessText(const std::vector<int>& staleness) {
  if (staleness.empty()) return "0";
  const bool equal =
      std::all_of(staleness.begin(), staleness.end(), [&](int s) { return s == staleness[0]; });
  return equal ? absl::StrCat(staleness[0]) : absl::StrJoin(staleness, ",");
}

std::string OptimizerText(const OptimizerSpec& optimizer) {
  const auto* sgd = std::get_if<SgdSpec>(&optimizer);
  if (sgd == nullptr) return "adamw";
  return sgd->momentum == 0 ? "sgd" : "sgd with momentum";
}

std::string BufferName(const StageLayout& layout, const ParameterSlot& slot, const std::string& buffer) {
  return absl::StrCat(CheckpointName(layout.stage, slot), ".", buffer);
}

std::string PathOf(const std::string& folder, const std::string& file) {
  return absl::StrCat(folder, "/", file);
}

absl::StatusOr<CheckpointIndex> ReadResumableIndex(const std::string& folder) {
  absl::StatusOr<CheckpointIndex> index = CheckpointIndex::Read(folder);
  if (!index.ok() || (!index->state.empty() && index->version > 0)) return index;
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s holds weights alone, and no training goes on without its older weights and its optimizer's state; "
      "use the checkpoint that a run leaves at its end",
      folder));
}

// ---- one stage's files

// Requires a file that the index names.
absl::Status Named(const absl::Status& status) {
  if (!absl::IsNotFound(status)) return status;
  return absl::DataLossError(absl::StrCat(status.message(), ", which the checkpoint's index names"));
}

absl::Status CheckVersion(const std::string& path, const Metadata& metadata, int version) {
  const auto found = metadata.find("version");
  if (found != metadata.end() && found->second == absl::StrCat(version)) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "the checkpoint mixes versions: %s is of version %s, the index of %d; did another run write there too?",
      path, found == metadata.end() ? "none" : found->second, version));
}

absl::Status CheckTensor(const std::string& path, const SafetensorsHeader& header, const std::string& name,
                         const std::vector<int64_t>& size) {
  const SafetensorsEntry* entry = header.Find(name);
  if (entry != nullptr && entry->type == DataType::kFloat32 && entry->shape == size) return absl::OkStatus();
  const std::string has =
      entry == nullptr ? "none" : absl::StrCat("one of size [", absl::StrJoin(entry->shape, ", "), "]");
  return absl::InvalidArgumentError(absl::StrFormat(
      "the checkpoint is of another model or other stages: the run has %s of size [%s], %s has %s", name,
      absl::StrJoin(size, ", "), path, has));
}

absl::Status CheckCount(const std::string& path, const SafetensorsHeader& header, size_t wanted) {
  if (header.entries.size() == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "the checkpoint is of another model or other stages: %s holds %d tensors, the run has %d there", path,
      header.entries.size(), wanted));
}

absl::Status CheckRule(const std::string& path, const Metadata& metadata, const StateRule& rule, int stage) {
  const auto saved = [&metadata](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string("nothing") : found->second;
  };
  const std::string optimizer = OptimizerText(rule.optimizer), staleness = StalenessText(rule.staleness);
  if (saved("optimizer") != optimizer) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the checkpoint holds the state of the optimizer %s, the run's is %s (%s)",
                        saved("optimizer"), optimizer, path));
  }
  if (saved("staleness") == staleness) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "the checkpoint is of another rule: on stage %d it has micro-batches read weights that are %s updates "
      "old, the run %s; placements may change, the rule may not (%s)",
      stage, saved("staleness"), staleness, path));
}

// Checks that the headers of a stage's files agree with the index and the run.
absl::Status CheckStage(const RunSpec& run, const CheckpointIndex& index, const StageLayout& layout,
                        const StateRule& rule, const SafetensorsHeader& weights,
                        const SafetensorsHeader& state) {
  const std::string& folder = run.resume.checkpoint;
  const std::string weights_path = PathOf(folder, StageFileName(layout.stage));
  const std::string state_path = PathOf(folder, StateFileName(layout.stage));
  absl::Status status = CheckVersion(weights_path, weights.metadata, run.resume.step);
  status.Update(CheckVersion(state_path, state.metadata, run.resume.step));
  status.Update(index.Check(folder, StageFileName(layout.stage), weights));
  status.Update(index.Check(folder, StateFileName(layout.stage), state));
  for (const ParameterSlot& slot : layout.slots) {
    status.Update(
        CheckTensor(weights_path, weights, CheckpointName(layout.stage, slot), slot.parameter.size));
  }
  status.Update(CheckCount(weights_path, weights, layout.slots.size()));
  status.Update(CheckRule(state_path, state.metadata, rule, layout.stage));
  const std::vector<std::string> buffers = StateBuffers(rule, run.resume.step);
  for (const std::string& buffer : buffers) {
    for (const ParameterSlot& slot : layout.slots)
      status.Update(CheckTensor(state_path, state, BufferName(layout, slot, buffer), slot.parameter.size));
  }
  status.Update(CheckCount(state_path, state, buffers.size() * layout.slots.size()));
  return status;
}

// Copies the part of one parameter that lies in the range to its place in `out`.
void CopySlot(const SafetensorsFile& file, const std::string& name, const ParameterSlot& slot,
              SliceBounds range, float* out) {
  const int64_t begin = std::max(range.begin, slot.offset);
  const int64_t end = std::min(range.end, slot.offset + slot.parameter.elements());
  if (begin >= end) return;
  const uint8_t* data = file.data.data() + file.header.Find(name)->begin;
  std::memcpy(out + (begin - range.begin), data + static_cast<size_t>(begin - slot.offset) * sizeof(float),
              static_cast<size_t>(end - begin) * sizeof(float));
}

}  // namespace

int64_t StateRule::OldestRead(int64_t version) const {
  const int most = staleness.empty() ? 0 : *std::max_element(staleness.begin(), staleness.end());
  return std::max<int64_t>(0, version - most);
}

std::vector<StateRule> StateRulesOf(const ScheduledRun& scheduled) {
  const RunSpec& run = scheduled.spec;
  std::vector<StateRule> rules(run.stages(), StateRule{{}, run.train.optimizer, ""});
  if (run.schedule.name.empty()) return rules;  // a rank's compute alone has no run around it
  Require(scheduled.schedule != nullptr, "the schedule that the run names could be made");
  for (int s = 0; s < run.stages(); ++s) {
    for (int b = 0; b < run.train.microbatches; ++b)
      rules[s].staleness.push_back(scheduled.schedule->scheme.StalenessOf(s, b));
  }
  const std::string training = TrainingId(run, rules);
  for (StateRule& rule : rules) rule.training = training;
  return rules;
}

// Drops the folders from a file's name, in every text that has some.
static void DropFolders(nlohmann::json* value) {
  if (value->is_string()) {
    const std::string text = value->get<std::string>();
    *value = text.substr(text.rfind('/') + 1);
  } else if (value->is_structured()) {
    for (nlohmann::json& part : *value) DropFolders(&part);
  }
}

std::string TrainingId(const RunSpec& run, const std::vector<StateRule>& rules) {
  const nlohmann::json all = ToJson(run);
  nlohmann::json parts;
  for (const char* key : {"model", "data", "train", "stages", "precision"}) parts[key] = all[key];
  // The packed form of graphs depends on the program that packed them.
  if (const auto* exported = std::get_if<ExportedSpec>(&run.model); exported != nullptr)
    parts["model"]["exported"]["graphs"] = *exported->source;
  DropFolders(&parts["data"]);
  if (all.contains("weights")) {  // frozen parameters are theirs to the end
    parts["weights"] = all["weights"];
    DropFolders(&parts["weights"]);
  }
  for (const StateRule& rule : rules) parts["staleness"].push_back(StalenessText(rule.staleness));
  return absl::StrFormat("%016x", Fnv1a().Add(parts.dump()).hash());
}

std::vector<std::string> StateBuffers(const StateRule& rule, int64_t version) {
  std::vector<std::string> names;
  for (int64_t v = rule.OldestRead(version); v < version; ++v) names.push_back(absl::StrCat("version", v));
  for (const char* name : Optimizer(rule.optimizer).state_names()) names.emplace_back(name);
  return names;
}

absl::StatusOr<std::vector<std::string>> BuffersNamedBy(const SafetensorsHeader& state) {
  const auto text = [&state](const char* key) {
    const auto found = state.metadata.find(key);
    return found == state.metadata.end() ? std::string() : found->second;
  };
  StateRule rule;
  for (const absl::string_view part : absl::StrSplit(text("staleness"), ',')) {
    int staleness = 0;
    if (!absl::SimpleAtoi(part, &staleness) || staleness < 0)
      return absl::DataLossError("its metadata do not name the staleness");
    rule.staleness.push_back(staleness);
  }
  SgdSpec momentum;
  momentum.momentum = 0.9;
  const std::vector<OptimizerSpec> optimizers = {SgdSpec(), momentum, AdamWSpec()};
  const auto named = std::find_if(optimizers.begin(), optimizers.end(), [&](const OptimizerSpec& optimizer) {
    return OptimizerText(optimizer) == text("optimizer");
  });
  if (named == optimizers.end()) return absl::DataLossError("its metadata do not name the optimizer");
  rule.optimizer = *named;
  int64_t version = 0;
  if (!absl::SimpleAtoi(text("version"), &version) || version < 0)
    return absl::DataLossError("its metadata do not name the version");
  return StateBuffers(rule, version);
}

SlotPointers SlotsOf(const StageLayout& layout, const float* flat) {
  SlotPointers slots;
  for (const ParameterSlot& slot : layout.slots) slots.push_back(flat + slot.offset);
  return slots;
}

absl::Status WriteTrainingState(const std::string& folder, const StageLayout& layout, const StateRule& rule,
                                int64_t version, int64_t optimizer_steps, const SlotPointers& newest,
                                const std::vector<SlotPointers>& buffers) {
  if (absl::Status s = MakeCheckpointFolder(PathOf(folder, "state")); !s.ok()) return s;
  const std::vector<std::string> names = StateBuffers(rule, version);
  std::vector<SafetensorsSource> tensors;
  for (size_t i = 0; i < names.size(); ++i) {
    for (size_t k = 0; k < layout.slots.size(); ++k) {
      const ParameterSlot& slot = layout.slots[k];
      tensors.push_back(
          {BufferName(layout, slot, names[i]), DataType::kFloat32, slot.parameter.size, buffers.at(i).at(k)});
    }
  }
  absl::Status state;
  const auto write_state = [&] {
    state = WriteSafetensors(PathOf(folder, StateFileName(layout.stage)), tensors,
                             {{"format", "pt"},
                              {"version", absl::StrCat(version)},
                              {"training", rule.training},
                              {"staleness", StalenessText(rule.staleness)},
                              {"optimizer", OptimizerText(rule.optimizer)},
                              {kOptimizerSteps, absl::StrCat(optimizer_steps)}});
  };
  absl::StatusOr<std::thread> beside = TryStartThread(write_state);
  if (!beside.ok()) write_state();
  const absl::Status weights = WriteStageFile(folder, layout, newest, version, rule.training);
  if (beside.ok()) beside->join();
  return state.ok() ? weights : state;
}

absl::StatusOr<SavedStage> SavedStage::Read(const RunSpec& run, const StateRule& rule, int stage) {
  const absl::StatusOr<CheckpointIndex> index = ReadResumableIndex(run.resume.checkpoint);
  if (!index.ok()) return index.status();
  SavedStage saved;
  saved.layout_ = LayOutStage(run, stage);
  absl::StatusOr<SafetensorsFile> weights =
      ReadSafetensors(PathOf(run.resume.checkpoint, StageFileName(stage)));
  if (!weights.ok()) return Named(weights.status());
  absl::StatusOr<SafetensorsFile> state =
      ReadSafetensors(PathOf(run.resume.checkpoint, StateFileName(stage)));
  if (!state.ok()) return Named(state.status());
  const absl::Status fits = CheckStage(run, *index, saved.layout_, rule, weights->header, state->header);
  if (!fits.ok()) return fits;
  saved.weights_ = *std::move(weights);
  saved.state_ = *std::move(state);
  return saved;
}

int64_t OptimizerStepsOf(const SafetensorsHeader& state) {
  int64_t steps = 0;
  const auto found = state.metadata.find(kOptimizerSteps);
  const bool reported = found != state.metadata.end() && absl::SimpleAtoi(found->second, &steps);
  const auto version = state.metadata.find("version");
  if (!reported && version != state.metadata.end()) (void)absl::SimpleAtoi(version->second, &steps);
  return std::max<int64_t>(0, steps);
}

int64_t SavedStage::optimizer_steps() const { return OptimizerStepsOf(state_.header); }

void SavedStage::CopyNewest(SliceBounds range, float* out) const {
  std::fill(out, out + (range.end - range.begin), 0.0f);
  for (const ParameterSlot& slot : layout_.slots)
    CopySlot(weights_, CheckpointName(layout_.stage, slot), slot, range, out);
}

void SavedStage::CopyBuffer(const std::string& name, SliceBounds range, float* out) const {
  std::fill(out, out + (range.end - range.begin), 0.0f);
  for (const ParameterSlot& slot : layout_.slots)
    CopySlot(state_, BufferName(layout_, slot, name), slot, range, out);
}

absl::StatusOr<int> ResumeStep(const std::string& folder) {
  const absl::StatusOr<CheckpointIndex> index = ReadResumableIndex(folder);
  if (!index.ok()) return index.status();
  return index->version;
}

static constexpr absl::string_view kDamagedCheckpoint = "weft/damaged_checkpoint";

absl::Status AsDamagedCheckpoint(absl::Status status) {
  if (absl::IsDataLoss(status) || absl::IsNotFound(status))
    status.SetPayload(kDamagedCheckpoint, absl::Cord());
  return status;
}

bool IsDamagedCheckpoint(const absl::Status& status) {
  return status.GetPayload(kDamagedCheckpoint).has_value();
}

absl::Status CheckResume(const ScheduledRun& scheduled) {
  const RunSpec& run = scheduled.spec;
  const std::string& folder = run.resume.checkpoint;
  const absl::StatusOr<CheckpointIndex> index = ReadResumableIndex(folder);
  if (!index.ok()) return index.status();
  if (index->version != run.resume.step) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the checkpoint %s is of step %d, the run goes on at %d", folder, index->version, run.resume.step));
  }
  if (static_cast<int>(index->state.size()) != run.stages()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the checkpoint %s is of a model cut into %d stages, the run's has %d", folder,
                        index->state.size(), run.stages()));
  }
  const std::vector<StateRule> rules = StateRulesOf(scheduled);
  for (int stage = 0; stage < run.stages(); ++stage) {
    const auto weights = ReadSafetensorsHeader(PathOf(folder, StageFileName(stage)));
    if (!weights.ok()) return Named(weights.status());
    const auto state = ReadSafetensorsHeader(PathOf(folder, StateFileName(stage)));
    if (!state.ok()) return Named(state.status());
    absl::Status fits = CheckStage(run, *index, LayOutStage(run, stage), rules[stage], *weights, *state);
    if (!fits.ok()) return fits;
  }
  return absl::OkStatus();
}

}  // namespace weft
